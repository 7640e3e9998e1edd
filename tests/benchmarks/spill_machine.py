"""Spills on random simulated machines: how many are told, and how many falsely."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.probe_machine import ProbedMachine
from fakes.random_machine import random_case

from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Spilled

LARGE_MIB = 300.0
CACHE_TYPE = "f16"
_ROOMY_LAYERS = 3


@dataclass(slots=True)
class SpillCount:
    """Launches of machines of one kind."""

    fitting: int = 0
    false: int = 0
    large: int = 0
    large_told: int = 0
    small: int = 0
    small_told: int = 0


def count_spills(seeds: Iterable[int], folder: Path, **fields: Any) -> SpillCount:
    """Launch on each machine what fits well, just so, and no more."""
    count = SpillCount()
    for seed in seeds:
        place = folder / str(seed)
        place.mkdir(parents=True)
        machine = ProbedMachine.of(random_case(seed, devices=1, **fields), place)
        candidates = _around_the_edge(machine)
        for candidate, trial in zip(
            candidates, machine.launch(place / "study", candidates), strict=True
        ):
            is_told = isinstance(trial.outcome, Spilled)
            spilled_mib = machine.run(candidate).spilled_mib
            if trial.outcome.kind == "out_of_memory":
                continue  # a machine that does not spill has refused it
            if spilled_mib == 0:
                count.fitting += 1
                count.false += is_told
            elif spilled_mib >= LARGE_MIB:
                count.large += 1
                count.large_told += is_told
            else:
                count.small += 1
                count.small_told += is_told
    return count


def _around_the_edge(machine: ProbedMachine) -> list[Candidate]:
    """With room to spare, with the least that fits, one layer less, and 300 MiB too much."""
    layout = machine.maker.layout_names()[0]
    truth = machine.truth(layout, CACHE_TYPE)
    edge = max(truth.fitting) if truth.fits is None else truth.fits
    roomy = min(edge + _ROOMY_LAYERS, max(truth.fitting))
    wanted = [roomy, edge, edge - 1]
    made = [machine.candidate(layout, CACHE_TYPE, n) for n in dict.fromkeys(wanted) if n >= 0]
    for host_layers in range(edge - 1, -1, -1):
        candidate = machine.candidate(layout, CACHE_TYPE, host_layers)
        if candidate and machine.run(candidate).spilled_mib >= LARGE_MIB:
            made.append(candidate)
            break
    return list(dict.fromkeys(candidate for candidate in made if candidate))
