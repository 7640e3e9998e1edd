"""Launches of one simulated card as the runtime and the counters report them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fakes.machine import Device, Host, Machine
from fakes.random_machine import Case
from fakes.synthetic_model import ModelShape, build_model
from trial.purpose_sample import purpose_of

from autofit.memory.memory_model import MemoryModel
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import Completed, Outcome
from autofit.trial.trial import Trial
from benchmarks.probe_machine import ProbedMachine

TOTAL_MIB = 8000.0
OTHERS_MIB = 200.0
# A launch uses this much beyond its buffers.
UNREPORTED_MIB = 500.0
LAYOUT = "single:CUDA0"


@dataclass(frozen=True, slots=True)
class LaunchedCard:
    """A card of 8000 MiB, of which other programs use 200; no server is ever started on it."""

    machine: ProbedMachine

    @classmethod
    def of(cls, folder: Path) -> LaunchedCard:
        """Return the card with a model of 24 layers."""
        model = build_model(
            ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, vocab=512)
        )
        machine = Machine("one", (Device("CUDA0", total_mib=TOTAL_MIB),), Host())
        return cls(ProbedMachine.of(Case(0, machine, model, 8192, ((600, 32),)), folder))

    def candidate(self, host_layers: int, cache_type: str = "q8_0") -> Candidate:
        """Return a candidate with a number of host layers."""
        candidate = self.machine.candidate(LAYOUT, cache_type, host_layers)
        assert candidate is not None
        return candidate

    def trial(
        self,
        host_layers: int,
        buffers_mib: float,
        *,
        cache_type: str = "q8_0",
        others_after_mib: float = OTHERS_MIB,
        moved_mib: float = 0.0,
        pp_per_s: float = 1000.0,
        outcome: Outcome | None = None,
    ) -> Trial:
        """Return a launch with such buffers, of which some MiB were moved to the host."""
        peak = min(TOTAL_MIB, OTHERS_MIB + buffers_mib + UNREPORTED_MIB) - moved_mib
        readings = tuple(
            MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": TOTAL_MIB - mib})
            for mib in (OTHERS_MIB, peak, others_after_mib)
        )
        measured = Measurement(
            samples=(Sample(600, 600 / pp_per_s, 600 / pp_per_s, 9, 0.1),),
            reported={"CUDA0": ReportedMemory(buffers_mib - 300, 100.0, 200.0)},
            readings=readings,
            free_mib={"CUDA0": TOTAL_MIB - peak},
        )
        return Trial(
            number=host_layers,
            purpose=purpose_of("boundary"),
            candidate=self.candidate(host_layers, cache_type),
            outcome=outcome or Completed(),
            layout=LAYOUT,
            measurement=measured,
        )

    def memory(self, *trials: Trial) -> MemoryModel:
        """Return a memory model that has observed some launches."""
        memory = self.machine.factory.task.memory_model()
        for trial in trials:
            memory.observe(trial)
        return memory
