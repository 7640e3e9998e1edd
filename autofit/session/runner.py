"""The runner of trials: each is launched, numbered and written, or taken from the study.

A resumed run goes through the same steps as the first run. Every launch that the study already
has is taken from it, so that only the missing ones are launched.
"""

from __future__ import annotations

import shlex
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from autofit.errors import AutofitError, Interrupted
from autofit.memory.memory_model import MemoryModel
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

# A candidate's key, and what two launches of it share if the second repeats the first.
_Identity = tuple[str, tuple[object, ...]]

# If this many launches are refused with the same text, the baseline among them, all will be.
_SAME_REFUSALS = 3


class Launching(Protocol):
    """The interface through which a runner launches candidates of a runtime."""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool, as_served: bool
    ) -> LaunchPlan | Rejected:
        """Return the command of a candidate, or why the runtime has no such setting."""
        ...

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
        check_stop: Callable[[], None],
    ) -> LaunchResult:
        """Start a server, send the requests, measure, and stop it."""
        ...


@dataclass(slots=True)
class TrialRunner:
    """The launches of one study.

    Attributes:
        launching: starts servers.
        budget: counts launches and time.
        emit: shows events.
        should_stop: is asked between the stages of a launch. Once it is true, the launch is
            ended without a trial, and the run stops.
        memory: observes every trial, None where no memory is predicted.
        trials: every trial of this run, in order, those taken from the study included.
        notes: messages for the result.
    """

    study: Study
    launching: Launching
    budget: Budget
    emit: Listener
    wall_clock: Callable[[], float]
    should_stop: Callable[[], bool] = lambda: False
    memory: MemoryModel | None = None
    trials: list[Trial] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _known: dict[_Identity, deque[Trial]] = field(init=False)

    def __post_init__(self) -> None:
        self._known = defaultdict(deque)
        for trial in self.study.trials():
            self._known[trial.candidate.key, trial.purpose.identity].append(trial)

    def note(self, text: str) -> None:
        """Show the user a text, and keep it for the result."""
        self.notes.append(text)
        self.emit(Notice(text))

    def is_known(self, purpose: TrialPurpose, candidate: Candidate) -> bool:
        """Return whether the study has a trial of this launch that was not taken yet."""
        return bool(self._known.get((candidate.key, purpose.identity)))

    @property
    def untaken_s(self) -> float:
        """Seconds that an earlier run spent on launches which this run has not taken yet."""
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
        """Return the trial of a candidate: launched, unless the study already has it.

        Raises:
            Interrupted: `should_stop` became true.
            AutofitError: the runtime refuses every candidate.
        """
        known = self._take_known((candidate.key, purpose.identity), request_plan.fidelity)
        if known is None:
            self._check_stop()
        trial = known or self._launch(
            purpose, candidate, request_plan, layout=layout, is_verbatim=is_verbatim
        )
        is_reused = known is not None
        earlier_s = trial.spent_s if is_reused else 0.0
        self.budget.record_launch(purpose.phase, trial.seconds, earlier_s=earlier_s)
        self.trials.append(trial)
        if self.memory is not None:
            self.memory.observe(trial)
        self.emit(LaunchEnded(trial, is_reused))
        self._end_if_all_are_refused()
        return trial

    def _end_if_all_are_refused(self) -> None:
        """End a run in which baseline and candidates are refused with the same text.

        They share the task, the user's arguments, the model and the build, so that no candidate
        would be accepted.

        Raises:
            AutofitError: all were refused.
        """
        refused = {_refusal(trial) for trial in self.trials}
        if len(self.trials) < _SAME_REFUSALS or self.trials[0].phase != "baseline":
            return
        refusal = next(iter(refused))
        if len(refused) > 1 or refusal is None:
            return
        advice = dict.fromkeys(note for trial in self.trials for note in trial.notes)
        raise AutofitError(
            f"every launch is refused, whatever its settings: {refusal}",
            "; ".join(advice)
            or "the cause is common to all: --context, --parallel, the arguments after `--`, the "
            "model or the build",
        )

    def _take_known(self, identity: _Identity, fidelity: Fidelity) -> Trial | None:
        """Take from the study a trial that measured enough, or None if there is none."""
        known = self._known.get(identity, deque())
        for index, trial in enumerate(known):
            if fidelity == "load" or not trial.shows_fit_only:
                del known[index]
                return trial
        return None

    def skip(self, skipped: SkippedCandidate) -> None:
        """Write to the study a candidate that is not launched."""
        self.study.skip(skipped)

    def _check_stop(self) -> None:
        if self.should_stop():
            raise Interrupted("stopped", resume_hint(self.study))

    def _launch(
        self,
        purpose: TrialPurpose,
        candidate: Candidate,
        request_plan: RequestPlan,
        *,
        layout: str,
        is_verbatim: bool,
    ) -> Trial:
        number, overhead = self.study.next_number(), self.budget.timer.overhead
        started_at = self.wall_clock()
        plan = self.launching.plan(
            candidate,
            is_verbatim=is_verbatim,
            as_served=purpose.phase in ("confirm", "prove"),
        )
        self.emit(LaunchStarted(number, purpose, candidate, layout))
        argv: Sequence[str] = plan.argv if isinstance(plan, LaunchPlan) else ()
        env = plan.env if isinstance(plan, LaunchPlan) else {}
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
                result = self.launching.launch(
                    plan,
                    request_plan,
                    log_path=self.study.log_path(number),
                    on_stage=lambda stage: self.emit(StageStarted(number, stage)),
                    check_stop=self._check_stop,
                )
            else:
                result = LaunchResult(outcome=plan)
            trial = replace(
                started,
                outcome=result.outcome,
                measurement=result.measurement,
                seconds=self.wall_clock() - started_at,
                notes=(*_useful_advice(purpose.phase, result), *result.notes),
                fidelity=request_plan.fidelity,
                overhead=overhead,
            )
            self.study.write_trial(trial)
        self.budget.timer.restart()
        return trial


def _refusal(trial: Trial) -> str | None:
    """Return the text with which a launch was refused, or None for any other outcome."""
    return trial.outcome.evidence if isinstance(trial.outcome, Rejected) else None


def _useful_advice(phase: Phase, result: LaunchResult) -> tuple[str, ...]:
    """Return the advice on a failure; none for an expected lack of device memory in a search."""
    is_expected = phase in ("boundary", "search") and lacks_device_memory(result.outcome)
    return () if is_expected else result.advice


def resume_hint(study: Study) -> str:
    """Return how to resume a study that was stopped."""
    return f"what was measured is saved; {resume_command(study)}"


def resume_command(study: Study) -> str:
    """Return how to resume a study."""
    return f"resume with the same command and --study {shlex.quote(str(study.path))} --resume"
