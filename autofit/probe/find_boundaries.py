"""The probe of fit boundaries to the layer, both sides shown by launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from autofit.memory.dominance import find_ruling_failure, shows_full_host
from autofit.memory.memory_model import MemoryModel
from autofit.memory.spill_review import needs_neighbour, review_launches
from autofit.probe.boundary_line import BoundaryLine
from autofit.probe.probe_result import open_boundary_texts, probe_document
from autofit.runtime.server.request_plan import plan_fit_test
from autofit.session.budget_advice import Need, first_shortage, launches_need
from autofit.session.events import BoundaryMoved, CandidateSkipped, Listener, Notice, PhaseStarted
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.study.study_records import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Skipped, lacks_device_memory
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial

# The same for every launch, so that a launch of one layout is known in another.
PURPOSE = TrialPurpose("boundary", "fit_check")
# Predicted free memory of a first candidate: before any launch, and after one has calibrated
# the predictions.
_FIRST_MARGIN_MIB = 320.0
_LATER_MARGIN_MIB = 96.0
# A prediction that is too low by more than this is not trusted: counters that do not know of a
# limit, for one.
_UNRELIABLE_MIB = 400.0
# A boundary takes this many launches on nearly all random machines.
_USUAL_LAUNCHES = 4


@dataclass(slots=True)
class ProbeSession:
    """A probe in progress: launches its candidates and keeps its notes for the user."""

    task: Task
    memory: MemoryModel
    runner: TrialRunner
    emit: Listener
    boundaries: int
    notes: list[str] = field(default_factory=list)
    _skipped: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self._skipped = {one.candidate.key for one in self.runner.study.skipped()}

    def note(self, text: str) -> None:
        """Show the user a text and keep it for the result."""
        self.notes.append(text)
        self.emit(Notice(text))

    def skip(self, candidate: Candidate, layout: str, outcome: Skipped) -> None:
        """Show a candidate that is not launched, and write it to the study once."""
        self.emit(CandidateSkipped(candidate, outcome))
        if candidate.key not in self._skipped:
            self._skipped.add(candidate.key)
            self.runner.skip(SkippedCandidate(candidate, outcome, "boundary", layout))

    def launch(self, candidate: Candidate, layout: str) -> Trial:
        """Launch a candidate with a prompt that shows whether it fits."""
        if not self._has_run_kv_type(candidate):
            self.memory.ask_planner(candidate)
        ubatch = candidate.get_int("ubatch", 512)
        plan = plan_fit_test(self.task.workload, ubatch)
        plan = replace(plan, full_context_check=self.memory.full_context_check(candidate))
        trial = self.runner.run(PURPOSE, candidate, plan, layout=layout)
        shortage = first_shortage(self.runner.trials, self.runner.budget, self._need)
        if shortage:
            self.note(shortage)
        return trial

    def has_time(self, candidate: Candidate) -> bool:
        """Return whether there is time for a launch of usual length.

        A launch that the study has already takes none, and the first is made in any case.
        """
        left_s = self.runner.budget.left_for_s("prove")  # all of it: nothing follows
        seconds = [trial.seconds for trial in self.memory.launches]
        if left_s is None or not seconds or self.runner.is_known(PURPOSE, candidate):
            return True
        return left_s - self.runner.untaken_s > median(seconds)

    def _need(self, first: Trial) -> Need:
        count = self.boundaries
        purpose = f"to prove both sides of {count} {'boundary' if count == 1 else 'boundaries'}"
        return launches_need(first.seconds, 2 * count, _USUAL_LAUNCHES * count, purpose)

    def _has_run_kv_type(self, candidate: Candidate) -> bool:
        cache_type = candidate.params.get("cache_type_k")
        return any(
            trial.is_completed and trial.candidate.params.get("cache_type_k") == cache_type
            for trial in self.memory.launches
        )


def find_boundaries(
    task: Task,
    lines: Sequence[BoundaryLine],
    memory: MemoryModel,
    runner: TrialRunner,
    emit: Listener,
) -> dict[str, Any]:
    """Find the boundary of every line, and return the result document.

    After the budget is spent, only steps without a launch are made.
    """
    session = ProbeSession(task, memory, runner, emit, boundaries=len(lines))
    emit(PhaseStarted("boundary"))
    for line in lines:
        recall_launches(line, session)
    is_cut_off = walk_lines(lines, session)
    for line in lines:
        for text in exception_texts(line):
            session.note(text)
        skip_zero(line, session)
    if is_cut_off:
        for text in open_boundary_texts(lines, runner.study):
            session.note(text)
    return probe_document(
        task,
        study=runner.study,
        lines=lines,
        trials=memory.launches,
        rest=runner.budget.timer.overhead,
        seconds=runner.budget.spent_s,
        is_cut_off=is_cut_off,
        notes=session.notes,
    )


def recall_launches(line: BoundaryLine, session: ProbeSession) -> None:
    """Take the launches of a line from the study, and from other lines.

    The search would not find them again: launches since then have calibrated the predictions,
    which now choose other host layers.
    """
    if not session.runner.untaken_s and not session.memory.launches:
        return
    for host_layers in range(line.search.most, -1, -1):
        candidate = line.candidate(host_layers)
        if candidate is None:
            continue
        if session.runner.is_known(PURPOSE, candidate):
            session.launch(candidate, line.layout)
        if session.memory.launch_of(candidate) is not None:
            settle(line, host_layers, candidate, session)
    review(session, [line])


def walk_lines(lines: Sequence[BoundaryLine], session: ProbeSession) -> bool:
    """Search every line to its end; return whether the budget ended before.

    A line is searched again if a launch of a later one shows that one of its launches spilled.
    """
    is_cut_off = False
    is_open = True
    while is_open:
        is_open = False
        for line in lines:
            while (host_layers := next_host_layers(line)) is not None:
                candidate = line.candidate(host_layers)
                if candidate is None:
                    break
                if not settle(line, host_layers, candidate, session):
                    is_cut_off = True
                    break
                is_open = True
                review(session, [line])
                fits, fails = line.search.fits, line.search.fails
                session.emit(
                    BoundaryMoved(
                        line.layout,
                        line.cache_type,
                        line.reported(fits),
                        line.reported(fails, fits=False),
                        line.ubatch,
                    )
                )
        review(session, lines)
    return is_cut_off


def next_host_layers(line: BoundaryLine) -> int | None:
    """Return the number of host layers to test next, or None at the end of a line."""
    if line.stopped_by is not None:
        return None
    is_calibrated = any(trial.is_completed for trial in line.memory.launches)
    margin_mib = _LATER_MARGIN_MIB if is_calibrated else _FIRST_MARGIN_MIB
    neighbour = _neighbour_with_room(line, margin_mib)
    if neighbour is not None:
        return neighbour
    return line.search.next_by_prediction(
        line.free_mib, margin_mib=margin_mib, is_unreliable=line.excess_mib > _UNRELIABLE_MIB
    )


def _neighbour_with_room(line: BoundaryLine, margin_mib: float) -> int | None:
    """Return the next higher number of host layers if only its launch can reveal a spill."""
    fits = line.search.fits
    trial = line.launch(fits)
    if fits is None or trial is None or not needs_neighbour(trial, line.memory):
        return None
    for n in range(fits + 1, line.search.most + 1):
        free = line.free_mib(n)
        if free is not None and n not in line.search.known and free >= margin_mib:
            return n
    return None


def settle(
    line: BoundaryLine, host_layers: int, candidate: Candidate, session: ProbeSession
) -> bool:
    """Determine whether a candidate fits, with a launch if nothing else shows it.

    Return False if the budget has no time for that launch.
    """
    trial = session.memory.launch_of(candidate)
    if trial is None:
        ruling = find_ruling_failure(candidate, line.layout, session.memory)
        if ruling is not None:
            trial, reason = ruling
            line.ruled_out[host_layers] = trial
            text = f"{reason} (launch {trial.number})"
            session.skip(candidate, line.layout, Skipped(text, because=trial.candidate.key))
        elif session.has_time(candidate):
            trial = session.launch(candidate, line.layout)
        else:
            return False
    is_launched = host_layers not in line.ruled_out
    line.search.record(host_layers, fits=trial.is_completed, is_launched=is_launched)
    if shows_full_host(trial, session.memory):
        line.search.most = host_layers - 1
    elif not trial.is_completed and not lacks_device_memory(trial.outcome):
        line.stopped_by = trial
    return True


def review(session: ProbeSession, lines: Sequence[BoundaryLine]) -> None:
    """Judge all launches again, and record those that turn out to have spilled."""
    for trial in review_launches(session.memory):
        session.note(f"launch {trial.number} ran, but spilled: {trial.outcome.evidence}")
    for line in lines:
        for host_layers, trial in line.launches.items():
            if line.search.known[host_layers] and not trial.is_completed:
                line.search.record(host_layers, fits=False)


def exception_texts(line: BoundaryLine) -> Iterator[str]:
    """Describe the numbers of host layers whose result contradicts the boundary."""
    for host_layers, fits in line.search.exceptions.items():
        count = line.reported(host_layers, fits=fits)
        text = f"{line.layout}, {line.cache_type}: {count} layers with experts in RAM"
        if fits:
            fails = line.reported(line.search.fails, fits=False)
            yield f"{text} fit, but {fails} do not: the boundary is not monotonic"
        elif line.exceeds_host(host_layers):
            yield f"{text} need more memory than the host has"
        else:
            yield f"{text} do not fit, but {line.reported(line.search.fits)} do"


def skip_zero(line: BoundaryLine, session: ProbeSession) -> None:
    """Skip the candidate without host layers if its prediction alone ruled it out."""
    candidate, free = line.candidate(0), line.free_mib(0)
    is_open = line.search.is_zero_separate and 0 not in line.search.known
    if is_open and candidate is not None and free is not None and free < 0:
        text = f"a device would lack {-free:.0f} MiB (estimated)"
        session.skip(candidate, line.layout, Skipped(text))
