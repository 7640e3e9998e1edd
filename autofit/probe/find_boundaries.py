"""Finds fit boundaries to the layer, both sides shown by launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from autofit.memory.boundary_walk import BoundaryWalk
from autofit.memory.dominance import ruled_out, shows_full_host
from autofit.memory.memory_model import MemoryModel
from autofit.memory.spill_review import needs_neighbour, review_launches
from autofit.model.placement.layout import SINGLE, plan_layout
from autofit.model.sizes.kv_cache import kv_element_bytes
from autofit.probe.probe_result import Line, budget_words, probe_document
from autofit.runtime.server.request_plan import plan_fit_test
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.budget_advice import BudgetAdvice, Need, launches_need
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.events import BoundaryMoved, CandidateSkipped, Listener, Notice, PhaseStarted
from autofit.session.layer_count import reported_host_layers
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.study.skipped import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Skipped, is_memory_failure, lacks_device_memory
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial

# The same for every launch, so that one which another layout asked for is known.
PURPOSE = TrialPurpose("boundary", "fit_check")
# What a first candidate should leave free: before anything was launched, and once launches
# have corrected the estimate.
_FIRST_MARGIN_MIB = 320.0
_LATER_MARGIN_MIB = 96.0
# A prediction that is wrong by more than this is not worth much: counters that know nothing
# of a limit, for one.
_DOUBTFUL_MIB = 400.0
# What a boundary takes on random machines, at most but for a few.
_SENSIBLE_LAUNCHES = 4


@dataclass(slots=True)
class Probe:
    """One probe; `run` goes through all boundaries and returns the result document.

    `points` has the settings to be probed by KV type, layout and host layers left out.
    """

    task: Task
    factory: CandidateFactory
    memory: MemoryModel
    runner: TrialRunner
    emit: Listener
    layouts: Sequence[str]
    points: Mapping[str, Point]
    notes: list[str] = field(default_factory=list)
    is_cut_off: bool = False
    _advice: BudgetAdvice = field(init=False)
    _by_candidate: dict[str, int] = field(default_factory=dict)
    _skipped: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._advice = BudgetAdvice(self.runner.budget, self._note)
        self._skipped = {one.candidate.key for one in self.runner.study.skipped()}

    def run(self) -> dict[str, Any]:
        """Walk along every line, and again where a later launch puts an earlier one in doubt.

        Once the budget is spent, only what needs no launch goes on.
        """
        self.emit(PhaseStarted("boundary"))
        # Narrow KV types first: what does not fit with them fits with no wider one.
        cache_types = sorted(self.points, key=kv_element_bytes)
        lines = [self._line(layout, kind) for layout in self.layouts for kind in cache_types]
        for line in lines:
            self._take_up(line)
        is_open = True
        while is_open:
            is_open = sum(self._walk(line) for line in lines) > 0
            self._review(lines)
        for line in lines:
            self._note_exceptions(line)
        if self.is_cut_off:
            for text in budget_words(lines, self.runner.study, self._told):
                self._note(text)
        return probe_document(
            self.task,
            study=self.runner.study,
            lines=lines,
            trials=self.trials,
            told_of=self._told,
            rest=self.runner.budget.timer.overhead,
            seconds=self.runner.budget.spent_s,
            is_cut_off=self.is_cut_off,
            notes=self.notes,
        )

    def _line(self, layout: str, cache_type: str) -> Line:
        walk = BoundaryWalk(
            most=self.factory.most_host_layers(),
            guess=self._fewest(layout, self.points[cache_type]),
            zero_is_apart=not layout.startswith(SINGLE),
        )
        base = self.factory.candidate_of(self.points[cache_type])
        ubatch = base.get_int("ubatch", 512) if base else 512
        return Line(layout, cache_type, ubatch, self.points[cache_type], walk)

    def _fewest(self, layout: str, point: Point) -> int:
        """The fewest host layers that fit by the estimate, all where none are enough."""
        most = self.factory.most_host_layers()
        base = self.factory.candidate_of(point)
        if base is None:
            return most
        found = plan_layout(self.task.inventory, base, self.task.devices, layout, None)
        return found.host_expert_layers if found.fits else most

    def _candidate(self, line: Line, host_layers: int) -> Candidate | None:
        return self.factory.candidate_of(
            {**line.point, LAYOUT_AXIS: line.layout, HOST_LAYERS_AXIS: host_layers}
        )

    def _told(self, line: Line, host_layers: int | None, *, fits: bool = True) -> int | None:
        """A number of host layers as a user is told it: on one device as `n_cpu_moe` counts."""
        return reported_host_layers(
            line.layout,
            host_layers,
            lambda n: self._candidate(line, n),
            self.task.inventory.units,
            fits=fits,
        )

    def _take_up(self, line: Line) -> None:
        """Begin a line with what the study holds of it.

        What was learned since then may lead along other counts than the first time.
        """
        if not self.runner.untaken_s and not self.trials:
            return
        for host_layers in range(self.factory.most_host_layers(), -1, -1):
            candidate = self._candidate(line, host_layers)
            if candidate is None:
                continue
            if self.runner.is_known(PURPOSE, candidate):
                self._launch(line, candidate)
            if candidate.key in self._by_candidate:
                self._settle(line, host_layers, candidate)
        self._review([line])

    def _walk(self, line: Line) -> bool:
        """Go on with a line as far as it leads; whether anything was launched or known anew."""
        is_new = False
        while line.stopped_by is None:
            host_layers = self._calibrating(line)
            if host_layers is None:
                host_layers = line.walk.next_value(
                    lambda n: self._free_mib(line, n),
                    margin_mib=self._margin_mib(),
                    is_doubtful=self._wrong_mib(line) > _DOUBTFUL_MIB,
                )
            if host_layers is None:
                break
            candidate = self._candidate(line, host_layers)
            if candidate is None:
                break
            if not self._settle(line, host_layers, candidate):
                self.is_cut_off = True
                break
            is_new = True
            self._review([line])
            fits = self._told(line, line.walk.fits)
            fails = self._told(line, line.walk.fails, fits=False)
            self.emit(BoundaryMoved(line.layout, line.cache_type, fits, fails, line.ubatch))
        return is_new

    def _free_mib(self, line: Line, host_layers: int) -> float | None:
        """What the tightest device would keep; what failed against the prediction lowers it."""
        candidate = self._candidate(line, host_layers)
        if candidate is None:
            return None
        free = self.memory.free_mib(candidate)
        return 0.0 if free is None else free - self._wrong_mib(line)

    def _wrong_mib(self, line: Line) -> float:
        """How much more than is predicted must be missing, by what failed all the same."""
        wrong = [0.0]
        for n, index in line.trials.items():
            failed = self._candidate(line, n)
            if failed is not None and lacks_device_memory(self.trials[index].outcome):
                wrong.append((self.memory.free_mib(failed) or 0.0) + 1.0)
        return max(wrong)

    def _margin_mib(self) -> float:
        is_learned = any(trial.is_completed for trial in self.trials)
        return _LATER_MARGIN_MIB if is_learned else _FIRST_MARGIN_MIB

    def _calibrating(self, line: Line) -> int | None:
        """With more room, where only that shows whether a full device has spilled."""
        fits = line.walk.fits
        index = None if fits is None else line.trials.get(fits)
        if fits is None or index is None or not needs_neighbour(self.trials[index], self.memory):
            return None
        for n in range(fits + 1, line.walk.most + 1):
            free = self._free_mib(line, n)
            if free is not None and n not in line.walk.known and free >= self._margin_mib():
                return n
        return None

    def _settle(self, line: Line, host_layers: int, candidate: Candidate) -> bool:
        """Find out whether a candidate fits, by a launch if nothing else tells.

        False where the budget has no time for that launch.
        """
        known = self._by_candidate.get(candidate.key)
        if known is None:
            skipped = ruled_out(candidate, line.layout, self.memory)
            if skipped is not None:
                self._rule_out(line, host_layers, skipped)
                return True
            if not self._has_time(candidate):
                return False
            known = self._launch(line, candidate)
        line.trials[host_layers] = known
        trial = self.trials[known]
        line.walk.tell(host_layers, fits=trial.is_completed)
        if self._wants_host(line, host_layers):
            # Fewer host layers take less of the host.
            line.walk.most = host_layers - 1
        elif not trial.is_completed and not lacks_device_memory(trial.outcome):
            line.stopped_by = known
        return True

    def _has_time(self, candidate: Candidate) -> bool:
        """Whether a launch, as long as those before, may begin; a known one costs nothing."""
        left_s = self.runner.budget.left_for_s("prove")  # all of it: nothing follows
        if left_s is None or self.runner.is_known(PURPOSE, candidate):
            return True
        made = [trial.seconds for trial in self.trials]
        return left_s - self.runner.untaken_s > (median(made) if made else 0.0)

    def _rule_out(self, line: Line, host_layers: int, skipped: SkippedCandidate) -> None:
        self._skip(skipped)
        failed = self._by_candidate[skipped.outcome.because or ""]
        line.walk.tell(host_layers, fits=False, is_launched=False)
        line.ruled_out[host_layers] = failed
        if shows_full_host(self.trials[failed], self.memory):
            line.walk.most = host_layers - 1
        elif not is_memory_failure(self.trials[failed].outcome):
            line.stopped_by = failed

    def _launch(self, line: Line, candidate: Candidate) -> int:
        if not self._has_alike(candidate):
            self.memory.ask_planner(candidate)
        ubatch = candidate.get_int("ubatch", 512)
        trial = self.runner.run(
            PURPOSE,
            candidate,
            replace(
                plan_fit_test(self.task.workload, ubatch),
                full_context_check=self.memory.context_fill(candidate),
            ),
            layout=line.layout,
        )
        self._advice.look_at(trial, self._need)
        self._by_candidate[candidate.key] = len(self.trials) - 1
        return len(self.trials) - 1

    def _need(self, first: Trial) -> Need:
        """What all boundaries take, by the first launch that ran."""
        count = len(self.layouts) * len(self.points)
        words = f"proving both sides of {count} {'boundary' if count == 1 else 'boundaries'}"
        return launches_need(first.seconds, 2 * count, _SENSIBLE_LAUNCHES * count, words)

    def _has_alike(self, candidate: Candidate) -> bool:
        return any(
            trial.is_completed
            and trial.candidate.params.get("cache_type_k") == candidate.params.get("cache_type_k")
            for trial in self.trials
        )

    def _review(self, lines: Sequence[Line]) -> None:
        """See whether what ran has spilled, by all that is known now."""
        for trial in review_launches(self.memory):
            self._note(f"launch {trial.number} ran, but spilled: {trial.outcome.evidence}")
        for line in lines:
            for host_layers, index in line.trials.items():
                if line.walk.known.get(host_layers) and not self.trials[index].is_completed:
                    line.walk.tell(host_layers, fits=False)

    def _skip(self, skipped: SkippedCandidate) -> None:
        self.emit(CandidateSkipped(skipped.candidate, skipped.outcome))
        if skipped.candidate.key not in self._skipped:
            self._skipped.add(skipped.candidate.key)
            self.runner.skip(skipped)

    def _note_exceptions(self, line: Line) -> None:
        """Say where the truth is not monotone, and why no host layer at all was not tried."""
        for host_layers, fits in line.walk.exceptions.items():
            where = f"{line.layout}, {line.cache_type}"
            told = self._told(line, host_layers, fits=fits)
            what = f"{where}: {told} host expert layers"
            if fits:
                fails = self._told(line, line.walk.fails, fits=False)
                self._note(f"{what} fit, though {fails} do not: less is not always more")
            elif self._wants_host(line, host_layers):
                self._note(f"{what} are more than the host has memory for")
            else:
                self._note(f"{what} do not fit, though {self._told(line, line.walk.fits)} do")
        zero = self._candidate(line, 0)
        free = self._free_mib(line, 0) or 0.0
        if line.walk.zero_is_apart and zero and 0 not in line.walk.known and free < 0:
            text = f"by the estimate it lacks {-free:.0f} MiB on a device"
            self._skip(SkippedCandidate(zero, Skipped(text), "boundary", line.layout))

    def _wants_host(self, line: Line, host_layers: int) -> bool:
        index = line.trials.get(host_layers)
        return index is not None and shows_full_host(self.trials[index], self.memory)

    @property
    def trials(self) -> list[Trial]:
        """The launches, with their outcomes as finally judged."""
        return self.memory.launches

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.emit(Notice(text))
