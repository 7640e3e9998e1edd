"""Launches of the simulated physics instead of processes, for a runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fakes.physics import Run, Simulation
from fakes.simulated_trial import measurement_of, outcome_of
from quality.simulated_answers import NO_CHANGES, AnsweredLaunching, AnsweringClient

from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots, find_refused_slots
from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.measurement import Measurement, MemoryReading
from autofit.trial.outcome import Outcome


@dataclass(slots=True)
class PhysicalLaunching(AnsweredLaunching):
    """Launches on a simulated machine; `made` are those that took place, in order."""

    simulation: Simulation
    context: int
    expected_slots: Callable[[Candidate], ExpectedSlots | None] = lambda _: None
    client_of: Callable[[Candidate], AnsweringClient] = NO_CHANGES
    made: list[tuple[Candidate, Run]] = field(default_factory=list)

    def result(self, plan: LaunchPlan, request_plan: RequestPlan) -> LaunchResult:
        """The simulated result, judged as that of a launch."""
        asked = request_plan.within(self.context).requests
        run = self.simulation.launch(
            dict(plan.candidate.params),
            [(request.prompt_tokens, request.predicted_tokens) for request in asked],
            fit=plan.env["VERBATIM"] == "1",
        )
        self.made.append((plan.candidate, run))
        measured = measurement_of(run)
        samples = tuple(
            replace(sample, request=request.request, is_warmup=request.is_warmup)
            for sample, request in zip(measured.samples, asked, strict=False)
        )
        measured = replace(measured, samples=samples, readings=_readings(run, self.simulation))
        outcome = outcome_of(run)
        if outcome.kind == "completed":
            outcome = self._refused(plan.candidate, run, measured) or outcome
        return LaunchResult(outcome, measured)

    def _refused(self, candidate: Candidate, run: Run, measured: Measurement) -> Outcome | None:
        expected = self.expected_slots(candidate)
        if expected is None or not run.refused_slot_mib:
            return None
        return find_refused_slots(
            measured.readings,
            expected,
            buffers_mib=measured.reported[expected.device].buffers_mib,
            refused_mib=(run.refused_slot_mib,),
        )


def _readings(run: Run, simulation: Simulation) -> tuple[MemoryReading, ...]:
    """The devices before, at the peak of a launch, and after."""
    others = {d.name: d.other_mib + d.reserve_mib for d in simulation.machine.devices}
    totals = {d.name: d.total_mib for d in simulation.machine.devices}
    peak = {device.name: others[device.name] + device.used_mib for device in run.devices}
    return tuple(
        MemoryReading(at_s, used, {name: totals[name] - mib for name, mib in used.items()})
        for at_s, used in enumerate((others, {**others, **peak}, others))
    )
