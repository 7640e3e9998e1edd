"""Launches by rules instead of processes, for a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quality.simulated_answers import NO_CHANGES, AnsweredLaunching, AnsweringClient

from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Completed, Outcome, OutOfMemory, Rejected

NO_ROOM = OutOfMemory("prompt", "CUDA error: out of memory", "device", "pool", "CUDA0")


def measured(request_plan: RequestPlan, seconds: float, free_mib: float = 900.0) -> Measurement:
    """A measurement of a plan's requests, each of which took some seconds."""
    samples = tuple(
        Sample(
            prompt_tokens=request.prompt_tokens,
            prompt_s=seconds / 2,
            ttft_s=seconds / 2,
            predicted_tokens=request.predicted_tokens,
            predicted_s=seconds / 2,
            request=request.request,
            order=order,
            is_warmup=request.is_warmup,
        )
        for order, request in enumerate(request_plan.requests)
    )
    return Measurement(
        samples, 1.0, {"CUDA0": 2000.0, "host": 50.0}, {"CUDA0": free_mib, "host": 9000.0}
    )


@dataclass(slots=True)
class SimulatedLaunching(AnsweredLaunching):
    """Launches whose outcome a rule decides; `made` are those that took place, in order."""

    outcome_of: Callable[[Candidate, RequestPlan], Outcome] = lambda *_: Completed()
    seconds_of: Callable[[Candidate], float] = lambda _: 1.0
    free_mib: float = 900.0
    client_of: Callable[[Candidate], AnsweringClient] = NO_CHANGES
    made: list[tuple[Candidate, RequestPlan]] = field(default_factory=list)
    served: list[bool] = field(default_factory=list)

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool, as_served: bool
    ) -> LaunchPlan | Rejected:
        """A command, unless the runtime lacks a parameter."""
        self.served.append(as_served)
        if "unknown" in candidate.params:
            return Rejected("plan", "no such parameter", "unknown_flag")
        return AnsweredLaunching.plan(
            self, candidate, is_verbatim=is_verbatim, as_served=as_served
        )

    def result(self, plan: LaunchPlan, request_plan: RequestPlan) -> LaunchResult:
        """The result by the rules."""
        self.made.append((plan.candidate, request_plan))
        outcome = self.outcome_of(plan.candidate, request_plan)
        seconds = self.seconds_of(plan.candidate)
        found = (
            measured(request_plan, seconds, self.free_mib) if outcome.kind == "completed" else None
        )
        advice = () if outcome.kind == "completed" else ("raise n_cpu_moe by 1",)
        return LaunchResult(outcome, found, ("a note",), advice)
