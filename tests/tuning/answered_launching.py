"""What a runner needs of a runtime, answered at once instead of by a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from tuning.answering_client import AnsweringClient

from autofit.runtime.effort import Effort
from autofit.runtime.launch import LaunchResult
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Rejected, Stage


class AnsweredLaunching(ABC):
    """Launches that `result` answers, through the stages of a real one."""

    __slots__ = ()

    client_of: Callable[[Candidate], AnsweringClient]

    @abstractmethod
    def result(self, plan: LaunchPlan, effort: Effort) -> LaunchResult:
        """What a launch shows; the layout is the variable LAYOUT of its plan."""

    def plan(self, candidate: Candidate, *, layout: str, as_served: bool) -> LaunchPlan | Rejected:
        """A command that says no more than the layout."""
        return LaunchPlan(candidate, ("server", "--port", "{port}"), {"LAYOUT": layout})

    def launch(
        self,
        plan: LaunchPlan,
        effort: Effort,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
        check_stop: Callable[[], None],
    ) -> LaunchResult:
        """What `result` and `client_of` say, with a log that says nothing."""
        log_path.write_text("a log\n")
        for stage in ("load", "prompt", "stop"):
            check_stop()
            on_stage(stage)
        found = self.result(plan, effort)
        if effort.questions is not None and found.outcome.kind == "completed":
            effort.questions.ask(self.client_of(plan.candidate), plan.limits)
        return found
