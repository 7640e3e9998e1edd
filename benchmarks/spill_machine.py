"""Spills on random simulated machines: detected ones, and false alarms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from operator import add
from pathlib import Path
from typing import Any

from fakes.random_machine import random_case

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Spilled
from benchmarks.probe_machine import ProbedMachine

LARGE_MIB = 300.0
CACHE_TYPE, OTHER_CACHE_TYPE = "f16", "q8_0"
_ROOMY_LAYERS = 3


@dataclass(slots=True)
class SpillCount:
    """Launches of machines of one kind."""

    fitting: int = 0
    false: int = 0
    large: int = 0
    large_detected: int = 0
    small: int = 0
    small_detected: int = 0

    def __add__(self, other: SpillCount) -> SpillCount:
        """Both together."""
        return SpillCount(*map(add, astuple(self), astuple(other)))


def count_spills(
    seeds: Iterable[int], folder: Path, *, is_similar: bool = True, **fields: Any
) -> SpillCount:
    """Launch on each machine what fits well, just so, and no more."""
    count = SpillCount()
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir(parents=True)
        machine = ProbedMachine.of(random_case(seed, devices=1, **fields), place)
        candidates = _around_the_edge(machine) if is_similar else _far_over_the_edge(machine)
        for candidate, trial in zip(
            candidates, machine.launch(place / "study", candidates), strict=True
        ):
            is_detected = isinstance(trial.outcome, Spilled)
            spilled_mib = machine.run(candidate).spilled_mib
            if trial.outcome.kind == "out_of_memory":
                continue  # a machine that does not spill has refused it
            if spilled_mib == 0:
                count.fitting += 1
                count.false += is_detected
            elif spilled_mib >= LARGE_MIB:
                count.large += 1
                count.large_detected += is_detected
            else:
                count.small += 1
                count.small_detected += is_detected
    return count


def _around_the_edge(machine: ProbedMachine) -> list[Candidate]:
    """With room to spare, with the least that fits, one layer less, and 300 MiB too much."""
    layout = machine.factory.layout_names()[0]
    edge, roomy = _edge(machine, CACHE_TYPE)
    made = [machine.candidate(layout, CACHE_TYPE, n) for n in (roomy, edge, edge - 1) if n >= 0]
    return _distinct([*made, _spilling(machine, CACHE_TYPE)])


def _far_over_the_edge(machine: ProbedMachine) -> list[Candidate]:
    """With room to spare in other settings, as a baseline has, and then 300 MiB too much."""
    layout = machine.factory.layout_names()[0]
    _, roomy = _edge(machine, CACHE_TYPE)
    baseline = machine.candidate(layout, CACHE_TYPE, roomy)
    small = baseline.with_params(ubatch=512) if baseline else None
    return _distinct([small, _spilling(machine, OTHER_CACHE_TYPE)])


def _edge(machine: ProbedMachine, cache_type: str) -> tuple[int, int]:
    """The fewest host layers that fit, and some more."""
    truth = machine.truth(machine.factory.layout_names()[0], cache_type)
    edge = max(truth.fitting) if truth.fits is None else truth.fits
    return edge, min(edge + _ROOMY_LAYERS, max(truth.fitting))


def _spilling(machine: ProbedMachine, cache_type: str) -> Candidate | None:
    """The most host layers with which enough spills to count."""
    edge, _ = _edge(machine, cache_type)
    for host_layers in range(edge - 1, -1, -1):
        candidate = machine.candidate(machine.factory.layout_names()[0], cache_type, host_layers)
        if candidate and machine.run(candidate).spilled_mib >= LARGE_MIB:
            return candidate
    return None


def _distinct(candidates: Iterable[Candidate | None]) -> list[Candidate]:
    return list(dict.fromkeys(candidate for candidate in candidates if candidate))
