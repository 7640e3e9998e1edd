"""Prints how long each command takes to answer `--help`: the median of five.

Run it as `python benchmarks/bench_help.py [--output FILE]`. The target is 0.3 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from autofit.cli.main import COMMANDS

REPEATS = 5
LIMIT_S = 0.3

TABLE = """\
# How long `--help` takes

Made by `benchmarks/bench_help.py`: the median of {repeats} runs each, by the clock and in
processor time. The target is {limit_s} s.

| command | clock | processor |
| --- | --- | --- |
{rows}
"""


def measure(words: list[str]) -> tuple[float, float]:
    """The median clock and processor seconds of a run of autofit."""
    clock_s, processor_s = [], []
    for _ in range(REPEATS):
        before, began_s = os.times(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "autofit", *words], check=True, stdout=subprocess.DEVNULL
        )
        after = os.times()
        clock_s.append(time.perf_counter() - began_s)
        processor_s.append(
            after.children_user + after.children_system
            - before.children_user - before.children_system
        )  # fmt: skip
    return median(clock_s), median(processor_s)


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for words in (["--help"], *([name, "--help"] for name in COMMANDS)):
        clock_s, processor_s = measure(words)
        rows.append(f"| `autofit {' '.join(words)}` | {clock_s:.2f} s | {processor_s:.2f} s |")
        print(rows[-1], flush=True)
    if options.output:
        text = TABLE.format(repeats=REPEATS, limit_s=LIMIT_S, rows="\n".join(rows))
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
