"""Breaks workers and the database of a shared queue at random, and counts what was lost.

    PYTHONPATH=.:tests python benchmarks/queue_faults.py [--faults N] [--seed N] [--output FILE]

Each round has a new queue of items and some workers. One fault after another strikes it: a worker
is killed or frozen, PostgreSQL restarts or crashes, all connections are cut, or two workers join
at the same moment. Afterwards every item must be done, or lost with two dead workers, and no item
may have been finished more often than its workers died.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from postgres_server import PostgresServer, find_programs
from process_stage import FAKES

from autofit.fleet.storage import HEARTBEAT_VARIABLE, open_storage
from autofit.fleet.work_queue import WorkQueue

_FAULTS = ("kill", "freeze", "restart", "crash", "cut", "join two")
_ITEMS = tuple(f"item{number}" for number in range(12))
_ITEM_S = 1.0
_WORKERS = 3
_FAULTS_PER_ROUND = 6
_ROUND_LIMIT_S = 300.0


class Round:
    """One queue with its workers, and what happened to them."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.url = server.new_url()
        self.log = folder / "work.log"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.dead: set[int] = set()
        self.frozen: set[int] = set()

    def start(self, count: int) -> None:
        """Start workers at the same moment."""
        argv = [sys.executable, str(FAKES / "queue_worker.py"), self.url, str(self.log)]
        with self.log.with_suffix(".err").open("ab") as errors:
            self.workers += [
                subprocess.Popen([*argv, str(_ITEM_S), *_ITEMS], stderr=errors)
                for _ in range(count)
            ]

    def strike(self, fault: str, rng: random.Random) -> None:
        """Let one fault happen."""
        alive = [one for one in self.workers if one.poll() is None]
        if fault == "join two":
            self.start(2)
        elif fault == "cut":
            self.server.cut_connections()
        elif fault in {"restart", "crash"}:
            self.server.stop(signal.SIGINT if fault == "restart" else signal.SIGQUIT)
            time.sleep(rng.uniform(0, 3))
            self.server.start()
        elif alive:
            worker = rng.choice(alive)
            if fault == "kill":
                worker.kill()
                worker.wait()
                self.dead.add(worker.pid)
                self.start(1)
            else:
                worker.send_signal(signal.SIGSTOP)
                self.frozen.add(worker.pid)
                time.sleep(rng.uniform(0, 6))
                worker.send_signal(signal.SIGCONT)

    def finish(self) -> list[str]:
        """Wait until no worker is left, and return what is wrong."""
        deadline = time.monotonic() + _ROUND_LIMIT_S
        for worker in self.workers:
            try:
                worker.wait(max(1.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                return [f"a worker did not end within {_ROUND_LIMIT_S:.0f} s"]
        errors = self.log.with_suffix(".err").read_text()
        wrong = [
            f"a worker ended with {worker.returncode}: {errors[-300:]}"
            for worker in self.workers
            if worker.returncode and worker.pid not in self.dead
        ]
        queue = WorkQueue.find(
            open_storage(self.url, report=lambda _: None), "night", {"version": "1"}, _ITEMS
        )
        lines = [line.split() for line in self.log.read_text().splitlines()]
        began = Counter(item for verb, item, _ in lines if verb == "begin")
        ended = Counter(item for verb, item, _ in lines if verb == "end")
        by_dead = Counter(
            item for verb, item, pid in lines if verb == "begin" and int(pid) in self.dead
        )
        for name, item in queue.items().items():
            if item.state == "lost" and by_dead[name] < 2:
                wrong.append(f"{name} is lost after {by_dead[name]} dead workers")
            elif item.state not in {"done", "lost"}:
                wrong.append(f"{name} is {item.state}")
            elif item.state == "done" and not ended[name]:
                wrong.append(f"{name} is done, but no worker has ended it")
            if began[name] > 2 + by_dead[name]:
                wrong.append(f"{name} was begun {began[name]} times")
        self.repeated = sum(count - 1 for count in ended.values())
        self.lost = sum(item.state == "lost" for item in queue.items().values())
        return wrong


def main() -> int:
    """Run rounds until there were enough faults, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    programs = find_programs()
    if programs is None:
        sys.exit("no PostgreSQL")
    os.environ[HEARTBEAT_VARIABLE] = "1"
    rng = random.Random(given.seed)
    faults: Counter[str] = Counter()
    wrong: list[str] = []
    rounds = repeated = lost = 0
    with PostgresServer(programs) as server:
        while faults.total() < given.faults:
            with tempfile.TemporaryDirectory() as folder:
                one = Round(server, Path(folder))
                one.start(_WORKERS)
                for _ in range(_FAULTS_PER_ROUND):
                    time.sleep(rng.uniform(0, 2.5))
                    fault = rng.choice(_FAULTS)
                    one.strike(fault, rng)
                    faults[fault] += 1
                found = one.finish()
            rounds += 1
            repeated += one.repeated
            lost += one.lost
            wrong += [f"round {rounds}: {text}" for text in found]
            print(rounds, dict(faults), found or "good", flush=True)
    rows = [f"{name:<10} {count:4}" for name, count in sorted(faults.items())]
    rows += [f"{'faults':<10} {faults.total():4}", f"{'rounds':<10} {rounds:4}"]
    rows += [
        f"{'items':<10} {rounds * len(_ITEMS):4}",
        f"{'lost':<10} {lost:4} (two dead workers)",
    ]
    rows += [f"{'repeated':<10} {repeated:4}", f"{'wrong':<10} {len(wrong):4}", *wrong]
    text = "\n".join(rows) + "\n"
    sys.stdout.write(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
