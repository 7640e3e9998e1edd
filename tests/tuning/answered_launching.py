"""What a runner needs of a runtime, answered at once instead of by a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from autofit.runtime.effort import Effort
from autofit.runtime.launch import LaunchResult
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Rejected, Stage


class AnsweredLaunching(ABC):
    """Launches that `result` answers, through the stages of a real one."""

    __slots__ = ()

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
        """What `result` says, with a log that says nothing."""
        log_path.write_text("a log\n")
        for stage in ("load", "prompt", "stop"):
            check_stop()
            on_stage(stage)
        return self.result(plan, effort)
