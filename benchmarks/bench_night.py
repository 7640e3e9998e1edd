"""The length of a night with one slow entry: runners that share it against fixed shards.

    PYTHONPATH=.:tests python benchmarks/bench_night.py [--runners 3] [--entries 9] [--slow 60]
        [--output FILE]

Both nights have the same suite of fake servers, and as many runners, which start together. The
model of one entry takes long to load. Printed are the seconds until the last runner ends, and
their ratio.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from sweep_machine import Nights


def make_suite(folder: Path, entries: int, slow_s: float) -> Nights:
    """Return a suite whose first entry is slow."""
    nights = Nights(folder)
    for number in range(entries):
        machine = nights.add(f"entry{number}", budget="1m" if number else "10m")
        machine.fail("slow-load", slow_s if number == 0 else 5)
    nights.write()
    return nights


def night_s(nights: Nights, runners: list[list[object]]) -> float:
    """Run one night, each runner as a machine of its own, and return its length."""
    began_s = time.monotonic()
    with ExitStack() as stack:
        runs = []
        for number, words in enumerate(runners):
            place = nights.folder / f"machine{number}"
            place.mkdir(exist_ok=True)
            run = nights.program.start(
                "sweep", nights.suite, *words, cwd=place, AUTOFIT_LOCK_DIR=str(place / "lock")
            )
            runs.append(stack.enter_context(run))
        for run in runs:
            assert run.process.wait(3600) == 0, run.err
    return time.monotonic() - began_s


def main() -> None:
    """Measure both kinds of nights, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runners", type=int, default=3)
    parser.add_argument("--entries", type=int, default=9)
    parser.add_argument("--slow", type=float, default=60.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nights = make_suite(Path(folder), given.entries, given.slow)
        count = given.runners
        shards = [["--shard", f"{number + 1}/{count}"] for number in range(count)]
        sharded_s = night_s(nights, shards)
        storage = ["--storage", f"sqlite:///{folder}/night.db"]
        shared_s = night_s(nights, [storage] * count)
    text = (
        f"{given.entries} entries of 5 s, the first loads {given.slow:g} s; {count} runners\n"
        f"shards   {sharded_s:6.1f} s\n"
        f"storage  {shared_s:6.1f} s\n"
        f"ratio    {sharded_s / shared_s:6.2f}\n"
    )
    sys.stdout.write(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
