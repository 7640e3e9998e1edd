"""Breaks shared tunes in every way while several workers make them, and prints a table.

Each tune has workers in processes of their own, fake servers, and a real PostgreSQL. Until its end
workers are killed at random moments and started again, two start in the same moment, the database
restarts, and its connections are cut. After it every trial in a worker's folder must be in the
storage once, and nothing else; no server may be left; the winner must be proven.

Run it as `PYTHONPATH=.:tests python benchmarks/fleet_faults.py [--faults N] [--workers N]
[--seed N] [--minutes M] [--output FILE]`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from autofit_program import AutofitProgram, Run
from postgres_server import PostgresServer, find_programs
from tune_machine import TuneMachine

from autofit.fleet.shared_trials import DeviceNames, finished_trials
from autofit.fleet.storage import open_storage

_FAULTS = ("worker killed", "worker interrupted", "two started at once", "database restarted",
           "database crashed", "connections cut")  # fmt: skip
_PAUSE_S = (0.5, 8.0)
_TUNE_LIMIT_S = 600.0
_FEWEST_FAULTS = 3


@dataclass
class Tally:
    """Counts of faults, tunes and trials, and the checks that failed."""

    faults: Counter[str] = field(default_factory=Counter)
    tunes: int = 0
    trials: int = 0
    broken: list[str] = field(default_factory=list)

    def check(self, is_right: object, what: str) -> None:
        """Report a check that failed."""
        if not is_right:
            self.broken.append(what)
            print(f"BROKEN: {what}", file=sys.stderr, flush=True)


class FaultyTune:
    """One shared tune with some workers, of which some are started again."""

    def __init__(self, folder: Path, server: PostgresServer, count: int, choose: random.Random):
        self.folder, self.server, self.choose = folder, server, choose
        self.machine = TuneMachine(folder, 2600.0)
        self.url = server.new_url()
        self.programs = []
        for index in range(count):
            own = folder / f"worker-{index}"
            own.mkdir()
            self.programs.append(AutofitProgram(own))
        self.runs: dict[int, Run] = {}

    def start(self, index: int) -> None:
        """Start a worker, or start it again in its folder."""
        program = self.programs[index]
        words = [*self.machine.words(storage=self.url, max_launches=10), "--yes", "--no-answers",
                 "--json"]  # fmt: skip
        if (program.folder / "study/study.json").exists():
            words.append("--resume")
        state = str(program.folder / "state")
        self.runs[index] = program.start(*words, FAKE_STATE=state, AUTOFIT_HEARTBEAT_S="1")

    def fault(self, kind: str) -> None:
        """Break something."""
        index = self.choose.choice(list(self.runs))
        if kind == "two started at once":
            for one in self.choose.sample(list(self.runs), min(2, len(self.runs))):
                self.runs[one].process.kill()
                self.runs[one].process.wait()
                self.start(one)
        elif kind in ("worker killed", "worker interrupted"):
            number = signal.SIGKILL if kind == "worker killed" else signal.SIGINT
            self.runs[index].process.send_signal(number)
            self.runs[index].process.wait(60)
            self.start(index)
        elif kind == "connections cut":
            self.server.cut_connections()
        else:
            crashes = kind == "database crashed"
            self.server.stop(signal.SIGQUIT if crashes else signal.SIGINT)
            time.sleep(self.choose.uniform(0.0, 3.0))
            self.server.start()

    def run(self, tally: Tally) -> None:
        """Make the tune to its end, with faults on the way."""
        for index in range(len(self.programs)):
            self.start(index)
        deadline, done = time.monotonic() + _TUNE_LIMIT_S, 0
        while time.monotonic() < deadline:
            time.sleep(self.choose.uniform(*_PAUSE_S))
            if all(run.process.poll() is not None for run in self.runs.values()):
                break
            kind = self.choose.choice(_FAULTS)
            self.fault(kind)
            tally.faults[kind] += 1
            done += 1
            if done >= _FEWEST_FAULTS * len(self.programs):
                break
        self.finish(tally, deadline)

    def finish(self, tally: Tally, deadline: float) -> None:
        """Wait for the end, and check workers, trials and processes."""
        results = []
        for index, run in self.runs.items():
            try:
                ended = run.finish(max(1.0, deadline - time.monotonic()))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                tally.check(False, f"worker {index} in {self.folder}: {error!r:.2000}")
                run.process.kill()
                continue
            tally.check(ended.code == 0, f"worker {index} ended with {ended.code}: {ended.err}")
            results += [ended.json] if ended.code == 0 else []
        tally.tunes += 1
        tally.check(all((r["winner"] or {}).get("proven") for r in results), "no proven winner")
        storage = open_storage(self.url, report=print)
        study = storage.get_study_id_from_name("model-brief")
        shared = finished_trials(storage.get_all_trials(study), DeviceNames())
        stored = Counter((one.worker, one.trial.started_at) for one in shared)
        local: Counter[tuple[str, float]] = Counter()
        for program in self.programs:
            name = program.folder / "study/worker"
            for path in (program.folder / "study/trials").glob("*.json"):
                data = json.loads(path.read_text())
                local[name.read_text(), data["started_at"]] += 1
        tally.trials += len(stored)
        tally.check(not local - stored, f"lost: {local - stored} of {self.folder}")
        tally.check(not stored - local, f"counted twice: {stored - local} of {self.folder}")
        left = [p for program in self.programs for p in program.stage.living()]
        tally.check(not left, f"left running: {[p.cmdline() for p in left]}")


def table(tally: Tally, seconds: float, workers: int) -> str:
    """Return the table as Markdown."""
    made = f"{tally.tunes} tunes by {workers} workers each on PostgreSQL, {tally.trials} trials"
    lines = [
        f"{made}, {sum(tally.faults.values())} faults in {seconds / 60:.0f} minutes.",
        "",
        "| fault | times |",
        "| --- | --- |",
        *(f"| {kind} | {tally.faults[kind]} |" for kind in _FAULTS),
        "",
        f"Lost or doubled trials, servers left, or no proven winner: {len(tally.broken)}.",
        *(f"- {text}" for text in tally.broken),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    programs = find_programs()
    if programs is None:
        raise SystemExit("no PostgreSQL: `apt-get install postgresql` installs it")
    tally, choose, began = Tally(), random.Random(given.seed), time.monotonic()
    with PostgresServer(programs) as server, tempfile.TemporaryDirectory() as folder:
        while sum(tally.faults.values()) < given.faults:
            if time.monotonic() - began > given.minutes * 60:
                break
            place = Path(folder) / f"tune-{tally.tunes}"
            place.mkdir()
            FaultyTune(place, server, given.workers, choose).run(tally)
            text = table(tally, time.monotonic() - began, given.workers)
            print(text, flush=True)
            if given.output:
                given.output.write_text(text, "utf-8")
    children = psutil.Process(os.getpid()).children(recursive=True)
    tally.check(not children, f"processes are left: {children}")
    return int(bool(tally.broken))


if __name__ == "__main__":
    sys.exit(main())
