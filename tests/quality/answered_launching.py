"""What a runner needs of a runtime, answered at once instead of by a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from quality.answering_client import AnsweringClient

from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Rejected, Stage


class AnsweredLaunching(ABC):
    """Launches that `result` answers, through the stages of a real one."""

    __slots__ = ()

    client_of: Callable[[Candidate], AnsweringClient]

    @abstractmethod
    def result(self, plan: LaunchPlan, request_plan: RequestPlan) -> LaunchResult:
        """What a launch shows; VERBATIM is 1 in its plan for the user's own command."""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool, as_served: bool
    ) -> LaunchPlan | Rejected:
        """A command that says no more than whether it is the user's own."""
        return LaunchPlan(
            candidate, ("server", "--port", "{port}"), {"VERBATIM": str(int(is_verbatim))}
        )

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
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
        found = self.result(plan, request_plan)
        if request_plan.questions is not None and found.outcome.kind == "completed":
            request_plan.questions.ask(self.client_of(plan.candidate), plan.limits)
        return found
