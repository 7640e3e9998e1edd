"""The runner of trials: it launches each trial and writes it, or takes it from the study.

A resumed run goes through the same steps as the first run. It takes the trials that exist
from the study, and launches only those that are missing.
"""

from __future__ import annotations

import shlex
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autofit.errors import AutofitError
from autofit.memory.memory_model import MemoryModel
from autofit.runtime.command.redaction import HIDDEN
from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.session.budget import Budget
from autofit.session.events import LaunchEnded, LaunchStarted, Listener, Notice, StageStarted
from autofit.study.study_folder import Study
from autofit.study.study_records import LOST_LAUNCH, SkippedCandidate
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Rejected, Stage, lacks_device_memory
from autofit.trial.purpose import Phase, TrialPurpose
from autofit.trial.trial import Fidelity, Trial

if TYPE_CHECKING:  # the storage's libraries are heavy
    from autofit.fleet.shared_tune import SharedTune

# A candidate's key, and the facts that are equal if a launch repeats an earlier one.
_Identity = tuple[str, tuple[object, ...]]

# If this many launches, with the baseline, are refused with the same text, all others will be.
_SAME_REFUSALS = 3


class Launching(Protocol):
    """The interface with which a runner launches candidates."""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool, as_served: bool
    ) -> LaunchPlan | Rejected:
        """Return the command of a candidate, or the setting that the runtime lacks."""
        ...

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
    ) -> LaunchResult:
        """Start a server, send the requests, measure, and stop the server."""
        ...


@dataclass(slots=True)
class TrialRunner:
    """A runner of the trials of one study.

    Attributes:
        launching: starts servers.
        budget: counts launches and time; its clock measures the duration of launches.
        emit: shows events.
        wall_clock: gives the date of a launch; it can be set back or forward at any time.
        memory: observes every trial; None if no memory is predicted.
        shared: the tune's trials of other workers; None if there are none.
        trials: every trial of this run, in order, with those taken from the study.
        notes: messages for the result.
    """

    study: Study
    launching: Launching
    budget: Budget
    emit: Listener
    wall_clock: Callable[[], float]
    memory: MemoryModel | None = None
    shared: SharedTune | None = None
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _known: dict[_Identity, deque[Trial]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = defaultdict(deque)
        for trial in self.study.trials():
            if self.shared is not None and trial.purpose.role == "explore":
                continue  # the search takes it with those of the other workers
            self._known[trial.candidate.key, trial.purpose.identity].append(trial)

    def note(self, text: str) -> None:
        """Show a message to the user, and keep it for the result."""
        self.notes.append(text)
        self.emit(Notice(text))

    def is_known(self, purpose: TrialPurpose, candidate: Candidate) -> bool:
        """Return whether the study has a trial of this launch that this run has not taken yet."""
        return bool(self._known.get((candidate.key, purpose.identity)))

    @property
    def untaken_s(self) -> float:
        """The seconds of those launches in the study that this run has not taken yet."""
        return sum(trial.spent_s for known in self._known.values() for trial in known)

    def run(
        self,
        purpose: TrialPurpose,
        candidate: Candidate,
        request_plan: RequestPlan,
        *,
        layout: str = "",
        is_verbatim: bool = False,
    ) -> Trial:
        """Launch a candidate, unless the study already has the trial, and return the trial.

        Raises:
            AutofitError: the runtime refuses every candidate.
        """
        known = self._take_known((candidate.key, purpose.identity), request_plan.fidelity)
        if known is not None:
            self.take(known, earlier_s=known.spent_s)
            return known
        trial = self._launch(
            purpose, candidate, request_plan, layout=layout, is_verbatim=is_verbatim
        )
        self._finish(trial, is_reused=False)
        return trial

    def take(self, trial: Trial, *, earlier_s: float = 0.0) -> None:
        """Take a trial that was launched by an earlier run or by another worker.

        `earlier_s` is the time that an earlier run of this worker spent on it.
        """
        self._finish(trial, is_reused=True, earlier_s=earlier_s)

    def _finish(self, trial: Trial, *, is_reused: bool, earlier_s: float = 0.0) -> None:
        self.budget.record_launch(trial.phase, trial.seconds, earlier_s=earlier_s)
        self.trials.append(trial)
        if self.memory is not None:
            self.memory.observe(trial)
        self.emit(LaunchEnded(trial, is_reused))
        self._end_if_all_are_refused()

    def _end_if_all_are_refused(self) -> None:
        """End the run if the baseline and several candidates are refused with the same text.

        They share the task, the user's arguments, the model and the build. The cause must be
        one of these, so the runtime would refuse every candidate.

        Raises:
            AutofitError: all launches were refused.
        """
        refused = {_refusal(trial) for trial in self.trials}
        if len(self.trials) < _SAME_REFUSALS or self.trials[0].phase != "baseline":
            return
        refusal = next(iter(refused))
        if len(refused) > 1 or refusal is None:
            return
        advice = dict.fromkeys(note for trial in self.trials for note in trial.notes)
        raise AutofitError(
            f"the runtime refuses every launch, whatever its settings: {refusal}",
            "; ".join(advice)
            or "check what all share: --context, --parallel, the arguments after `--`, the "
            "model or the build",
        )

    def _take_known(self, identity: _Identity, fidelity: Fidelity) -> Trial | None:
        """Take a trial that measured enough from the study, or return None if there is none."""
        known = self._known.get(identity, deque())
        for index, trial in enumerate(known):
            if fidelity == "load" or not trial.shows_fit_only:
                del known[index]
                return trial
        if identity[1][0] == "baseline" and self.shared is not None:
            return self.shared.find_baseline()
        return None

    def skip(self, skipped: SkippedCandidate) -> None:
        """Write a candidate that is not launched to the study."""
        self.study.skip(skipped)

    def _launch(
        self,
        purpose: TrialPurpose,
        candidate: Candidate,
        request_plan: RequestPlan,
        *,
        layout: str,
        is_verbatim: bool,
    ) -> Trial:
        shared = self.shared
        number = shared.begin(purpose) if shared is not None else self.study.next_number()
        overhead = self.budget.timer.overhead
        started_at, began_s = self.wall_clock(), self.budget.clock()
        plan = self.launching.plan(
            candidate,
            is_verbatim=is_verbatim,
            as_served=purpose.phase in ("confirm", "prove"),
        )
        self.emit(LaunchStarted(number, purpose, candidate, layout))
        argv: Sequence[str] = plan.shown.argv if isinstance(plan, LaunchPlan) else ()
        env = plan.shown.env if isinstance(plan, LaunchPlan) else {}
        started = Trial(
            number=number,
            purpose=purpose,
            candidate=candidate,
            outcome=LOST_LAUNCH,
            layout=layout,
            is_verbatim=is_verbatim,
            argv=tuple(argv),
            env=dict(env),
            started_at=started_at,
        )
        with self.study.launching(started):
            if isinstance(plan, LaunchPlan):
                limits = plan.limits.at_most(self.budget.stage_limit_s(purpose.phase))
                result = self.launching.launch(
                    replace(plan, limits=limits),
                    request_plan,
                    log_path=self.study.log_path(number),
                    on_stage=lambda stage: self.emit(StageStarted(number, stage)),
                )
            else:
                result = LaunchResult(outcome=plan)
            trial = replace(
                started,
                outcome=result.outcome,
                measurement=result.measurement,
                seconds=self.budget.clock() - began_s,
                notes=(*_useful_advice(purpose.phase, result), *result.notes),
                fidelity=request_plan.fidelity,
                overhead=overhead,
            )
            self.study.write_trial(trial)
        if shared is not None:
            shared.deliver(trial)
        self.budget.timer.restart()
        return trial


def _refusal(trial: Trial) -> str | None:
    """Return the runtime's text if it refused a launch, or None for any other outcome."""
    return trial.outcome.evidence if isinstance(trial.outcome, Rejected) else None


def _useful_advice(phase: Phase, result: LaunchResult) -> tuple[str, ...]:
    """Return the advice on a failure; none if a search expects it for lack of device memory."""
    is_expected = phase in ("boundary", "search") and lacks_device_memory(result.outcome)
    return () if is_expected else result.advice


def resume_hint(study: Study) -> str:
    """Return a hint how to resume a stopped study."""
    count = len(study.trials())
    kept = f"{count} finished launch{'es are' if count != 1 else ' is'} kept"
    command = resume_command(study)
    again = f", with your secrets in place of {HIDDEN}" if HIDDEN in command else ""
    return f"{kept if count else 'no launch had finished'}; resume with `{command}`{again}"


def resume_command(study: Study) -> str:
    """Return the command that resumes a study.

    A secret in its words is hidden, as in the study, and must be given again.
    """
    words = list(study.header.argv[1:])
    end = words.index("--") if "--" in words else len(words)
    own = iter(words[:end])
    kept = []
    for word in own:
        if word == "--study":
            next(own, None)
        elif word != "--resume" and not word.startswith("--study="):
            kept.append(word)
    return shlex.join(["autofit", *kept, "--study", str(study.path), "--resume", *words[end:]])
