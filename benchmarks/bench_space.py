"""Speed of the best point of a search space, with and without the values for special hardware.

    python benchmarks/bench_space.py [--machines 24] [--first 0] [--jobs 2] [--output FILE]

The machines are those of `tests/fakes/effect_machine.py`, each with one effect. The narrow space
has the usual values only: the devices' own order, whole slices, threads on all cores or one
less, the usual ubatches, flash attention and op offload on, no numa. Points are compared without
noise and without launches, by descent along one axis at a time from every layout.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.effect_machine import effect_case

from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point, is_single_device
from benchmarks.search_machine import SearchMachine

_USUAL = {
    "ubatch": (512, 1024, 2048, 4096),
    "numa": ("off",),
    "op_offload": (True,),
    "flash_attn": ("on",),
}
# Host layers to try around the best one after each change of another setting, and the points
# at which each layout is looked at first.
_NEAR = (-2, -1, 0, 1, 2, 4)
_COARSE = 8


@dataclass(slots=True)
class Descent:
    """The best point of the allowed part of a machine's space."""

    machine: SearchMachine
    is_allowed: Callable[[Point], bool]
    best_s: float = math.inf
    best: Point = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self.machine.problem(self.machine.memory_model())
        self.candidate_of, self.most = problem.candidate_of, problem.most_host_layers
        self.axes = problem.space.axes
        first = {axis.name: axis.values[0] for axis in self.axes}
        for layout in problem.layouts:
            self.descend({LAYOUT_AXIS: layout, **first})

    candidate_of: Callable = field(init=False)
    most: int = field(init=False)
    axes: Sequence = field(init=False)

    def seconds(self, point: Point) -> float:
        """Return the seconds of a request, infinity if the point does not run."""
        layers = int(point[HOST_LAYERS_AXIS])
        if not 0 <= layers <= self.most or not self.is_allowed(point):
            return math.inf
        candidate = self.candidate_of(point)
        found = self.machine.truth(candidate) if candidate else None
        return math.inf if found is None else found

    def fastest(self, points: Sequence[Point]) -> tuple[float, Point]:
        """Return the fastest of some points, with its seconds."""
        return min(((self.seconds(one), one) for one in points), key=lambda one: one[0])

    def descend(self, start: Point) -> None:
        """Change one setting at a time, with the host layers around the best, while it helps."""
        counts = sorted({round(self.most * share / _COARSE) for share in range(_COARSE + 1)})
        seconds, point = self.fastest([{**start, HOST_LAYERS_AXIS: n} for n in counts])
        while math.isfinite(seconds):
            before = seconds
            layers = int(point[HOST_LAYERS_AXIS])
            for axis in self.axes:
                tried = [
                    {**point, axis.name: value, HOST_LAYERS_AXIS: layers + step}
                    for value in axis.values
                    for step in _NEAR
                ]
                seconds, point = min((seconds, point), self.fastest(tried), key=lambda one: one[0])
                layers = int(point[HOST_LAYERS_AXIS])
            if seconds >= before:
                break
        if seconds < self.best_s:
            self.best_s, self.best = seconds, point


def is_usual(machine: SearchMachine) -> Callable[[Point], bool]:
    """Return whether a point is in the narrow space."""
    threads = machine.task.space.axis("threads")
    usual = {**_USUAL, "threads": threads.values[:2] if threads else ()}

    def allows(point: Point) -> bool:
        layout = str(point[LAYOUT_AXIS])
        if layout == "tensor" or (":" in layout and not is_single_device(layout)):
            return False
        return all(point[name] in values for name, values in usual.items() if name in point)

    return allows


def measure(seed: int) -> tuple[int, str, int, float, float, Point]:
    """Return seed, effect, devices, seconds of both best points, and the better point."""
    with tempfile.TemporaryDirectory(prefix="bench-space-") as folder:
        machine = SearchMachine(effect_case(seed), Path(folder))
        narrow = Descent(machine, is_usual(machine))
        wide = Descent(machine, lambda _: True)
        effect = ", ".join(machine.case.effects).replace("_", " ") or "none"
        best = wide if wide.best_s <= narrow.best_s else narrow
        return (
            seed, effect, len(machine.task.devices), narrow.best_s, best.best_s, dict(best.best)
        )  # fmt: skip


def report(results: Sequence[tuple[int, str, int, float, float, Point]]) -> str:
    """The tables as Markdown."""
    lines = [
        "# The best point with and without the values for special hardware",
        "",
        f"Made by `benchmarks/bench_space.py`: {len(results)} simulated machines. A ratio above 1",
        "says how much faster the best point of `search_spaces/moe.yaml` is than the best one",
        "without layouts of other orders, layout `tensor`, `numa`, `op_offload`, flash attention",
        "off, other threads and other ubatches.",
        "",
        "| effect | machines | geometric mean | least | most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for effect in sorted({one[1] for one in results}):
        ratios = [one[3] / one[4] for one in results if one[1] == effect]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(
            f"| {effect} | {len(ratios)} | {mean:.2f} | {min(ratios):.2f} | {max(ratios):.2f} |"
        )
    lines += ["", "| machine | effect | devices | ratio | best point |", "| --- " * 5 + "|"]
    for seed, effect, devices, narrow_s, wide_s, point in sorted(results, key=lambda one: one[0]):
        settings = ", ".join(f"{name} {value}" for name, value in point.items())
        lines.append(f"| {seed} | {effect} | {devices} | {narrow_s / wide_s:.2f} | {settings} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="seed of the first machine")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for result in pool.map(measure, range(options.first, options.first + options.machines)):
            results.append(result)
            print(f"machine {result[0]}: {result[3] / result[4]:.2f}", file=sys.stderr, flush=True)
    text = report(results)
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
