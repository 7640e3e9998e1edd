"""The share of right builds that `bisect` finds, and its launches, on simulated series.

    python benchmarks/bench_bisect.py [--runs 200] [--builds 64] [--output FILE]

Plain bisection compares the middle build with the good one by the same stopping rule, until it
is decided, and never returns to a build.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1])]

from autofit.bisect.change_search import ChangeSearch
from autofit.statistics.stopping_rule import StoppingRule, decide

STEP = math.log(0.95)
FLOOR = 0.002


@dataclass(frozen=True)
class Case:
    """A kind of series: `steps` are logarithms, at random builds."""

    title: str
    steps: Sequence[float] = (STEP,)
    noise: float = 0.02
    broken: float = 0.0
    drift: float = 0.0


CASES = (
    Case("one step of 5%"),
    Case("one step of 5%, noise 1%", noise=0.01),
    Case("one step of 5%, noise 3%", noise=0.03),
    Case("one step of 5%, 10% of the builds broken", broken=0.1),
    Case("one step of 5%, drift of 0.3% a launch", drift=0.003),
    Case("one step of 5%, drift of 1% a launch", drift=0.01),
    Case("two steps of 5%", steps=(STEP, STEP)),
    Case("two steps of 8% and 4%", steps=(math.log(0.92), math.log(0.96))),
    Case("two steps of 5%, noise 1%", steps=(STEP, STEP), noise=0.01),
)


@dataclass
class SimulatedSeries:
    """A series of builds, each of whose launches has noise."""

    case: Case
    count: int
    seed: int
    launches: int = 0
    changes: dict[int, float] = field(init=False)
    broken: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        places = self._rng.sample(range(1, self.count), len(self.case.steps))
        self.changes = dict(zip(places, self.case.steps, strict=True))
        inner = range(1, self.count - 1)
        self.broken = {item for item in inner if self._rng.random() < self.case.broken}
        self._level = 0.0

    def measure(self, items: Sequence[int]) -> dict[int, float | None]:
        """Return the values of one round."""
        values: dict[int, float | None] = {}
        for item in self._rng.sample(list(items), len(items)):
            self.launches += 1
            self._level += self._rng.gauss(0, self.case.drift)
            steps = sum(size for at, size in self.changes.items() if item >= at)
            value = steps + self._level + self._rng.gauss(0, self.case.noise)
            values[item] = None if item in self.broken else value
        return values


def search(series: SimulatedSeries) -> bool:
    """Search a series, and return whether all changes and no others were found."""
    found = list(ChangeSearch(series, StoppingRule(), FLOOR).find(0, series.count - 1))
    if len(found) != len(series.changes):
        return False
    return all(any(c.first <= at <= c.last for c in found) for at in series.changes)


def plain_bisection(series: SimulatedSeries) -> bool:
    """Search a series by comparing the middle build with the good one."""
    low, high = 0, series.count - 1
    if not _differs(series, 0, high):
        return False
    while high - low > 1:
        inner = [item for item in range(low + 1, high) if item not in series.broken]
        if not inner:
            break
        middle = min(inner, key=lambda item: abs(item - (low + high) / 2))
        low, high = (low, middle) if _differs(series, 0, middle) else (middle, high)
    return len(series.changes) == 1 and low < next(iter(series.changes)) <= high


def _differs(series: SimulatedSeries, first: int, second: int) -> bool:
    rule = StoppingRule()
    differences: list[float] = []
    while len(differences) < rule.last_round:
        values = series.measure((first, second))
        differences.append(float(values[second] or 0.0) - float(values[first] or 0.0))
        verdict = decide(differences, rule).verdict
        if verdict != "undecided":
            return verdict != "tie"
    return False


def row(case: Case, runs: int, count: int) -> str:
    """One case as a row of a Markdown table."""
    cells = [case.title]
    for method in (search, plain_bisection):
        right, launches = 0, []
        for seed in range(runs):
            series = SimulatedSeries(case, count, seed)
            right += method(series)
            launches.append(series.launches)
        tenths = quantiles(launches, n=10)
        cells += [f"{right / runs:.1%}", f"{median(launches):.0f}", f"{tenths[-1]:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--builds", type=int, default=64)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines = [
        "# The right build, and launches until it is found",
        "",
        f"Made by `benchmarks/bench_bisect.py`: {options.runs} simulated series of",
        f"{options.builds} builds, with noise of 2% between launches if nothing else is said.",
        "Launches are those of the first comparison, the search and the last comparison together.",
        "Plain bisection compares the middle build with the good one by the same stopping rule.",
        "",
        "| series | right | launches, median | 90% | plain: right | launches, median | 90% |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in CASES:
        lines.append(row(case, options.runs, options.builds))
        print(lines[-1], flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
