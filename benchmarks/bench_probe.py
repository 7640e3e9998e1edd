"""Accuracy and cost of probes: fit boundaries found, launches needed, spills detected.

    python benchmarks/bench_probe.py [--machines 30] [--cache FOLDER] [--output FILE]

With a cache, machines that are done are not probed again: delete what code has changed for.
Every launch is a real process on a simulated machine; the truth is the simulation's own, over
every number of host layers of every layout and KV type.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.random_machine import random_case

from benchmarks.probe_machine import ProbedMachine, Truth
from benchmarks.spill_machine import SpillCount, count_spills


@dataclass(frozen=True, slots=True)
class Found:
    """One machine's probe next to the truth."""

    devices: int
    policy: str
    boundaries: int
    right: int
    proven: int
    launches: int
    failed: int
    most_failed: int
    dominated: int
    skipped: int
    not_monotone: int
    seconds: float
    wrong: tuple[str, ...]


def probed(seed: int, folder: Path) -> Found:
    """Probe one random machine, all layouts, and compare."""
    machine = ProbedMachine.of(random_case(seed), folder)
    result = machine.probe(folder / "study")
    wrong = []
    odd = 0
    for row in result["boundary"]:
        device_layers = row["params"]["n_gpu_layers"] if row["params"] else None
        truth = machine.truth(row["layout"], row["cache_type"], device_layers=device_layers)
        odd += not truth.is_monotone
        if not is_right(row, truth, machine):
            wrong.append(
                f"machine {seed}, {row['layout']}, {row['cache_type']}: found "
                f"{row['fits']}/{row['fails']}, true {truth.fits}/{truth.fails}"
            )
    assert machine.fake.owners == []
    return Found(
        devices=len(machine.case.machine.devices),
        policy=machine.case.machine.policy,
        boundaries=len(result["boundary"]),
        right=len(result["boundary"]) - len(wrong),
        proven=sum(row["proven"] for row in result["boundary"]),
        launches=machine.fake.launches,
        failed=sum(n for kind, n in result["outcomes"].items() if kind != "completed"),
        most_failed=max(row["failed_launches"] for row in result["boundary"]),
        dominated=len(machine.dominated()),
        skipped=result["skipped"],
        not_monotone=odd,
        seconds=machine.seconds,
        wrong=tuple(wrong),
    )


def kept(cache: Path | None, name: str, find: Callable[[], Any], kind: Callable[..., Any]) -> Any:
    """Return the cached value of a name, or compute it and keep it for the next run."""
    path = cache / f"{name}.json" if cache else None
    if path is not None and path.exists():
        return kind(**json.loads(path.read_text(encoding="utf-8")))
    found = find()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)), encoding="utf-8")
    return found


def is_right(row: dict, truth: Truth, machine: ProbedMachine) -> bool:
    """Return whether both sides of a boundary are true, in the units of its report."""

    def reported(host_layers: int | None) -> int | None:
        if host_layers is None or not row["layout"].startswith("single"):
            return host_layers
        candidate = machine.candidate(row["layout"], row["cache_type"], host_layers)
        return candidate.get_int("n_cpu_moe", 0)

    return (row["fits"], row["fails"]) == (reported(truth.fits), reported(truth.fails))


INTRODUCTION = """\
# Boundaries and spills

Made on {today} by `PYTHONPATH=.:tests python benchmarks/bench_probe.py --output
results/benchmarks/probe.md`; with `--cache FOLDER` it goes on where it was interrupted. Every
launch is a real process on a simulated machine (`tests/fakes`), the truth the simulation's own
over every number of host expert layers of every layout and KV type (q8_0, f16). Seconds are
those of a machine of two cores that was busy with other things.

## Boundaries

- right: boundaries of which both sides are the true ones: no fewer host expert layers fit
  with as many layers on devices; proven: both sides launched, or the failing one ruled out by
  a launch that failed with less.
- failed, most: launches that failed in all, and the most for one layout and KV type.
- dominated: launches that an earlier failure had ruled out.
- skipped: candidates that were not launched for that reason.
- not monotone: layouts and KV types where more host layers than fit do not always fit.
"""

SPILLS = """
## Spills

On each machine a launch with room to spare, which shows the memory outside its buffers, then the
least that fits, one layer less, and what spills 300 MiB. In the last line the first launch has
another KV type and ubatch than the one that spills, as a tune's baseline has. No counter of lent
host memory is used.
"""


BOUNDARY_HEAD = (
    "machine", "devices", "out of memory", "boundaries", "right", "proven", "launches", "failed",
    "most", "dominated", "skipped", "not monotone", "seconds",
)  # fmt: skip
SPILL_HEAD = (
    "machines", "launches that fit", "falsely said to spill", "spills of 300 MiB or more",
    "missed", "smaller spills", "detected",
)  # fmt: skip


def cells(values: Iterable[object]) -> str:
    """One line of a table."""
    return f"| {' | '.join(str(value) for value in values)} |"


def head(names: Sequence[str]) -> str:
    """The first two lines of a table."""
    return f"\n{cells(names)}\n{cells('---' for _ in names)}"


def row(name: str, found: Found) -> str:
    """One line of the table."""
    values = (
        name, found.devices, found.policy, found.boundaries, found.right, found.proven,
        found.launches, found.failed, found.most_failed, found.dominated, found.skipped,
        found.not_monotone, f"{found.seconds:.0f}",
    )  # fmt: skip
    return cells(values)


def total(found: list[Found]) -> Found:
    """All machines together."""
    kinds = Counter(one.policy for one in found)
    return Found(
        devices=sum(one.devices for one in found),
        policy=", ".join(f"{kind} {count}" for kind, count in kinds.items()),
        boundaries=sum(one.boundaries for one in found),
        right=sum(one.right for one in found),
        proven=sum(one.proven for one in found),
        launches=sum(one.launches for one in found),
        failed=sum(one.failed for one in found),
        most_failed=max(one.most_failed for one in found),
        dominated=sum(one.dominated for one in found),
        skipped=sum(one.skipped for one in found),
        not_monotone=sum(one.not_monotone for one in found),
        seconds=sum(one.seconds for one in found),
        wrong=tuple(text for one in found for text in one.wrong),
    )


def spill_row(name: str, count: SpillCount) -> str:
    """One line of the table of spills."""
    values = (
        name, count.fitting, count.false, count.large, count.large - count.large_detected,
        count.small, count.small_detected,
    )  # fmt: skip
    return cells(values)


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, default=30)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", choices=["boundaries", "spills"])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    with tempfile.TemporaryDirectory(prefix="probe-") as name:
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        seeds = range(options.first, options.first + options.machines)
        if options.only != "spills":
            say(INTRODUCTION.format(today=date.today()) + head(BOUNDARY_HEAD))  # noqa: DTZ011
            found = []
            for seed in seeds:
                folder = Path(name) / f"boundary-{seed}"
                folder.mkdir()
                probe = partial(probed, seed, folder)
                found.append(kept(options.cache, folder.name, probe, Found))
                say(row(f"{seed}", found[-1]))
            say(row("**all**", total(found)))
            for text in total(found).wrong:
                say(f"\nWrong: {text}.")
        if options.only != "boundaries":
            began = time.monotonic()
            say(SPILLS + head(SPILL_HEAD))
            for kind, fields in (
                ("that spill", {"spill": True, "unified": False}),
                ("that do not", {"spill": False, "unified": False}),
                ("with unified memory", {"spill": False, "unified": True}),
                ("that spill, unlike", {"spill": True, "unified": False, "is_similar": False}),
            ):
                folder = Path(name) / kind.replace(" ", "-")
                count = SpillCount()
                for seed in seeds:
                    launch = partial(count_spills, [seed], folder, **fields)
                    count += kept(options.cache, f"{folder.name}-{seed}", launch, SpillCount)
                say(spill_row(f"{len(seeds)} {kind}", count))
            print(f"spills: {time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
