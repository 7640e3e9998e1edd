"""Load of a PostgreSQL by many workers of one shared tune, without launches.

Each worker joins, and then reads, claims a point of its own and delivers a trial of usual size,
with a pause for the launch. Printed are the latencies of a worker, and what the server counts.

Run it as `PYTHONPATH=.:tests python benchmarks/bench_fleet_storage.py [--workers 200]
[--launches 5] [--processes 8] [--pause 10] [--output FILE]`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from fleet.shared_sample import EXPLORE, joined
from postgres_server import PostgresServer, find_programs
from study.study_sample import trial

from benchmarks.search_report import quantile

_STEPS = ("read", "claim", "deliver")


def _work(url: str, name: str, launches: int, pause_s: float, found: list[Any]) -> None:
    """Take part in the tune; the points of a worker are its own."""
    choose = random.Random(name)
    with joined(url, name) as shared:
        for number in range(launches):
            began = time.perf_counter()
            shared.read()
            for _ in shared.take():
                pass
            read = time.perf_counter()
            point = {"layout": "balanced", "host_layers": choose.randrange(10_000)}
            is_claimed = shared.claim(point, EXPLORE)
            claimed = time.perf_counter()
            time.sleep(choose.uniform(0.5, 1.5) * pause_s)
            if not is_claimed:
                continue
            made = replace(trial(shared.begin(EXPLORE)), seconds=60.0 + number)
            launched = time.perf_counter()
            shared.deliver(made)
            found.append((read - began, claimed - read, time.perf_counter() - launched))


def _process(arguments: tuple[str, list[str], int, float]) -> list[tuple[float, ...]]:
    url, names, launches, pause_s = arguments
    found: list[tuple[float, ...]] = []
    threads = [
        threading.Thread(target=_work, args=(url, name, launches, pause_s, found))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--pause", type=float, default=10.0, help="seconds of a launch")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    programs = find_programs()
    if programs is None:
        raise SystemExit("no PostgreSQL: `apt-get install postgresql` installs it")
    with PostgresServer(programs) as server:
        url = server.new_url()
        with joined(url, "first"):
            pass
        names = [f"worker-{index}" for index in range(given.workers)]
        parts = [
            (url, names[index :: given.processes], given.launches, given.pause)
            for index in range(given.processes)
        ]
        before, began = _transactions(server), time.monotonic()
        with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
            times = [one for part in pool.map(_process, parts) for one in part]
        seconds = time.monotonic() - began
        used = _transactions(server) - before
        (size,) = server.query("SELECT pg_database_size('fleet1')")[0]
    document = len(json.dumps(trial(1).to_dict()))
    made = f"{given.workers} workers, {len(times)} launches of {given.pause:g} s"
    counted = f"Transactions: {used}, {used / len(times):.0f} for each launch, "
    text = "\n".join(
        [
            f"{made} in {seconds:.0f} s; a document has {document / 1024:.1f} KiB.",
            "",
            "| step | median, s | 95th percentile, s |",
            "| --- | --- | --- |",
            *(
                f"| {step} | {median(column):.2f} | {quantile(column, 0.95):.2f} |"
                for step, column in zip(_STEPS, zip(*times, strict=True), strict=True)
            ),
            "",
            f"{counted}{used / seconds:.0f} a second. Database: {size / 2**20:.0f} MiB.",
        ]
    )
    print(text)
    if given.output:
        given.output.write_text(text + "\n", "utf-8")


def _transactions(server: PostgresServer) -> int:
    rows = server.query("SELECT xact_commit FROM pg_stat_database WHERE datname = 'fleet1'")
    return int(str(rows[0][0]))


if __name__ == "__main__":
    main()
