"""Breaks runs of tune, probe, compare and sweep in every way, resumes them, and prints a table.

Every attempt of a run has one fault: signals at a random moment or in a chosen phase, a server
that misbehaves, a full disk, or a damaged study. The last attempt has none and must succeed.
After each attempt nothing may be left running, no finished trial may be lost or launched again,
no internal error may be reported, autofit may have taken at most 500 MB, and it may have run for
its budget plus two minutes.

Run it as `PYTHONPATH=.:tests python benchmarks/fault_campaign.py [--faults N] [--seed N]
[--workers N] [--minutes M] [--output FILE]`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit_program import AUTOFIT, AutofitProgram
from process_stage import wait_for
from sweep_machine import SERVED, Nights
from tune_machine import TuneMachine

from autofit.errors import AutofitError
from autofit.study.study_folder import Study

_BUDGET_S = 60.0
_GRACE_S = 120.0
_MOST_MIB = 500.0
_EXIT_CODES = {0, 1, 2, 3, 5, 130, -signal.SIGKILL}
_MODES = ("tune", "tune", "probe", "compare", "sweep")
_SIGNALS = {
    "SIGINT": (signal.SIGINT,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT),
    "SIGTERM": (signal.SIGTERM,),
    "SIGTERM twice": (signal.SIGTERM, signal.SIGTERM),
    "SIGKILL": (signal.SIGKILL,),
}
# Lines on stderr after which a run is stopped in a chosen phase.
_MOMENTS = {
    "tune": (
        *(f"phase {phase}" for phase in ("baseline", "boundary", "search", "confirm", "prove")),
        "best so far",
        "Round 1",
        "Round 2",
        ": runs at full context",
    ),
    "probe": ("phase boundary", "#1 ", "#2 "),
    "compare": ("phase confirm", "#2 ", "Round 1", "Round 2"),
    "sweep": (": remeasure", "#1 ", "#2 ", "one: "),
}
_SERVER_FAULTS: tuple[tuple[str, Any], ...] = (
    *(
        (name, None)
        for name in (
            "oom-weights",
            "oom-kv",
            "oom-compute",
            "oom-prompt",
            "oom-generate",
            "oom-decode",
            "host-oom",
            "device-lost",
            "http-500",
            "content-500",
            "bad-json",
            "drop",
            "event-500",
            "no-slot",
            "slot-shrunk",
            "garbage",
            "wrong-text",
            "empty-text",
            "impossible-speed",
            "zero-timings",
            "port-in-use",
            "retry-pipeline",
            "no-table",
            "grandchild",
            "slow-stop",
            "ignore-term",
        )
    ),
    *(
        (name, stage)
        for name in ("silent", "killed", "segfault", "abort")
        for stage in (
            "load",
            "context",
            "warmup",
            "prompt",
            "generate",
        )
    ),
    *(("endless", path) for path in ("/health", "/props", "/completion", "/tokenize")),
    *(
        ("wrong-timings", {name: value})
        for name in ("prompt_ms", "predicted_ms", "prompt_n")
        for value in (
            float("nan"),
            float("inf"),
            10**400,
            "x",
            None,
            -1,
            [],
        )
    ),
    *(
        ("wrong-event", value)
        for value in (None, 1, "x", [1], {}, {"content": 5}, {"tokens": "x"})
    ),
)
_DAMAGES = (
    "cut",
    "garbage",
    "empty",
    "pipe",
    "device",
    "folder",
    "nested",
    "types",
    "NaN",
    "bytes",
)


@dataclass
class Tally:
    """The faults so far by kind, and what they broke."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    most_mib: float = 0.0
    most_over_budget_s: float = 0.0
    runs: int = 0
    launches: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, mode: str, kind: str, count: int = 1) -> None:
        """Count a fault."""
        with self.lock:
            self.counts[mode, kind] += count

    def report(self, text: str) -> None:
        """Add and print what was broken."""
        with self.lock:
            self.broken.append(text)
            print(f"BROKEN {text}", flush=True)


class Subject:
    """One run that is broken again and again, in a folder of its own."""

    def __init__(self, mode: str, folder: Path, tally: Tally, choose: random.Random) -> None:
        self.mode, self.tally, self.choose = mode, tally, choose
        self.folder = folder
        self.program = AutofitProgram(folder)
        self.study = folder / "study"
        if mode == "sweep":
            self.nights = Nights(folder)
            self.machine = self.nights.add("one", rounds=3)
            self.nights.write()
            self.words = ["sweep", str(self.nights.suite), "--folder", str(folder / "night")]
            self.study = folder / "night" / "entries" / "one" / "remeasure"
        else:
            self.machine = TuneMachine(folder, 2600.0)
            self.words = self._words()
        self.damaged: set[str] = set()
        self.has_failures = False

    def _words(self) -> list[str]:
        machine = self.machine
        if self.mode == "tune":
            return machine.words(self.study, max_launches=4, budget=f"{_BUDGET_S:.0f}s")
        common = ["--dialect", "llama_server", "--workload", str(machine.workload),
                  "--study", str(self.study), "--budget", f"{_BUDGET_S:.0f}s"]  # fmt: skip
        if self.mode == "probe":
            return ["probe", str(machine.model), "--runtime", str(machine.server), "--kv", "q8_0",
                    "--ubatch", "512", "--yes", *common]  # fmt: skip
        served = SERVED.replace("llama-server", f"{machine.server} -m {machine.model}")
        return [
            "compare",
            served,
            served.replace("-ncmoe 4", "-ncmoe 6"),
            "--rounds",
            "3",
            *common,
        ]

    def trial_files(self) -> dict[str, bytes]:
        """The bytes of each finished trial that is not damaged."""
        return {
            path.name: path.read_bytes()
            for path in self.study.glob("trials/[0-9]*.json")
            if path.name not in self.damaged and path.is_file()
        }

    def attempt(  # noqa: C901 - one check after another
        self, kind: str, act: Callable[[Any], None] | None, wrapper: list[str]
    ) -> int:
        """Run once with a fault, check, and return the exit code."""
        before = self.trial_files()
        began_s = time.monotonic()
        head = (
            self.folder / "night" / "sweep.json"
            if self.mode == "sweep"
            else self.study / "study.json"
        )
        resumed = ["--resume"] * head.exists()
        peak_mib = 0.0
        with self.program.start(*self.words, *resumed, wrapper=wrapper) as run:
            if act is not None:
                threading.Thread(target=act, args=(run,), daemon=True).start()
            limit_s = _BUDGET_S + _GRACE_S + 60 * (self.mode == "sweep")
            while run.process.poll() is None and time.monotonic() - began_s < limit_s:
                peak_mib = max(peak_mib, _peak_mib(run.process.pid))
                time.sleep(0.05)
            seconds = time.monotonic() - began_s
            if run.process.poll() is None:
                self._broken(kind, f"still runs after {seconds:.0f} s", run.err)
                run.process.kill()
            code = run.process.wait(20)
            err = run.err
        try:
            wait_for(lambda: not self.program.stage.living(), 20)
        except AssertionError:
            left = [" ".join(process.cmdline())[:80] for process in self.program.stage.living()]
            self._broken(kind, f"left running: {left}", err)
            for process in self.program.stage.living():
                process.kill()
        with self.tally.lock:
            self.tally.most_mib = max(self.tally.most_mib, peak_mib)
            over_s = seconds - _BUDGET_S
            self.tally.most_over_budget_s = max(self.tally.most_over_budget_s, over_s)
        if peak_mib > _MOST_MIB:
            self._broken(kind, f"took {peak_mib:.0f} MiB", err)
        if (
            "Traceback" in err
            or "fault in autofit" in err
            or list(self.folder.rglob("autofit-fault-*"))
        ):
            self._broken(kind, "an internal error", err)
            for path in self.folder.rglob("autofit-fault-*"):
                print(path.read_text(), flush=True)
                path.unlink()
        if code not in _EXIT_CODES:
            self._broken(kind, f"exit code {code}", err)
        after = self.trial_files()
        lost = [name for name, data in before.items() if after.get(name) != data]
        if lost:
            self._broken(kind, f"lost or changed {lost}", err)
        self._check_repeats(kind)
        return code

    def _check_repeats(self, kind: str) -> None:
        if self.damaged:
            return  # a launch whose trial was damaged may be launched again
        with contextlib.suppress(AutofitError):
            trials = Study.open(self.study).trials()
            # A winner that steps back at its proof has rounds of its own, with the baseline again.
            has_raced_twice = any(
                "stepped back" in path.read_text(errors="replace")
                for path in self.folder.glob("run-*.err")
            )
            made = Counter(
                (trial.candidate.key, trial.purpose.identity)
                for trial in trials
                if trial.purpose.round is None or not has_raced_twice
            )
            repeated = [key for key, count in made.items() if count > 1]
            if repeated:
                self._broken(kind, f"launched again: {repeated}", "")

    def _broken(self, kind: str, what: str, err: str) -> None:
        last = " | ".join(err.splitlines()[-4:])
        self.tally.report(f"{self.mode}, {kind}: {what} ({self.folder.name}) {last}")

    def fault(self) -> None:
        """Break one attempt."""
        kinds = ("kill", "kill", "phase", "phase", "server", "server", "damage", "disk")
        kind = self.choose.choice(kinds)
        getattr(self, f"_{kind}")()

    def _kill(self) -> None:
        name, numbers = self.choose.choice(list(_SIGNALS.items()))
        delay_s = self.choose.uniform(0.3, 6.0)
        self.machine.heal()

        def act(run: Any) -> None:
            time.sleep(delay_s)
            with contextlib.suppress(ProcessLookupError):
                run.send(*numbers)

        self.tally.add(self.mode, "kill")
        self.attempt(f"{name} after {delay_s:.1f} s", act, [])

    def _phase(self) -> None:
        name, numbers = self.choose.choice(list(_SIGNALS.items()))
        text, delay_s = self.choose.choice(_MOMENTS[self.mode]), self.choose.uniform(0.0, 0.8)
        self.machine.heal()

        def act(run: Any) -> None:
            while text not in run.err:
                if run.process.poll() is not None:
                    return  # a resumed run does not print what it has from the study
                time.sleep(0.02)
            time.sleep(delay_s)
            with contextlib.suppress(ProcessLookupError):
                run.send(*numbers)
                self.tally.add(self.mode, "phase")

        self.attempt(f"{name} {delay_s:.1f} s after '{text}'", act, [])

    def _server(self) -> None:
        launched = self.machine.launches
        self.has_failures = True
        faults = [self.choose.choice(_SERVER_FAULTS) for _ in range(4)]
        for number, (name, value) in enumerate(faults, start=launched + 1):
            self.machine.fail(name, value, launches=[number])
        self.attempt(f"servers {faults}", None, [])
        self.machine.heal()
        self.tally.add(self.mode, "server", max(1, min(4, self.machine.launches - launched)))

    def _disk(self) -> None:
        if not self.study.exists() or shutil.which("unshare") is None:
            self._kill()
            return
        size = sum(path.stat().st_size for path in self.study.rglob("*") if path.is_file())
        room_kib = self.choose.choice((60, 150, 400))
        # The study is copied to a small disk and back; nothing else sees that disk.
        script = (
            'cp -r "$1" "$1.copy" && mount -t tmpfs -o size="$2"k none "$1" && '
            'cp -r "$1.copy"/. "$1" && rm -r "$1.copy"; s=$1; shift 2; "$@"; code=$?; '
            'mkdir "$s.out"; cp -r "$s"/. "$s.out"; exit $code'
        )
        kib = size // 1024 + 16 * len(list(self.study.rglob("*"))) + room_kib
        wrapper = ["unshare", "-Urm", "sh", "-c", script, "sh", str(self.study), str(kib)]
        self.tally.add(self.mode, "disk")
        self.attempt(f"disk with {room_kib} KiB left", None, wrapper)
        out = self.study.with_name(f"{self.study.name}.out")
        if (out / "trials").is_dir():
            shutil.rmtree(self.study)
            out.rename(self.study)
        shutil.rmtree(out, ignore_errors=True)

    def _damage(self) -> None:
        files = [path for path in self.study.rglob("*") if path.is_file() and path.suffix != ".log"
                 and path.name not in ("study.json", "study.lock") and "reserve" not in path.name
                 and not path.name.startswith(".")]  # fmt: skip
        if not files:
            self._kill()
            return
        path, how = self.choose.choice(files), self.choose.choice(_DAMAGES)
        self.damaged.add(path.name)
        data = path.read_bytes()
        path.unlink()
        _damage(path, data, how, self.choose)
        self.tally.add(self.mode, "damage")
        for words in (("show",), ("report",), ("show", "--json")):
            done = subprocess.run(
                [*AUTOFIT, words[0], str(self.study), *words[1:]],
                env=self.program.env, capture_output=True, text=True, timeout=120, check=False,
                cwd=self.folder, errors="replace",
            )  # fmt: skip
            if "fault in autofit" in done.stderr or done.returncode not in _EXIT_CODES:
                self._broken(
                    f"{how} {path.name}", f"{words[0]}: exit {done.returncode}", done.stderr
                )
        self._kill()

    def finish(self) -> None:
        """Resume without a fault: the run must succeed."""
        self.machine.heal()
        for _ in range(3):
            code = self.attempt("the last resume", None, [])
            # The time of earlier attempts counts, so the budget may be used up.
            if code in (0, 5):
                break
        else:
            newest = max(self.folder.glob("run-*.err"), key=lambda path: path.stat().st_mtime)
            err = newest.read_text(errors="replace")
            # After failures of all servers there may be nothing to recommend.
            is_expected = code in (1, 3) and self.has_failures
            if not self.damaged and not is_expected and "budget" not in err:
                self._broken("the last resume", f"exit code {code}", err)
        with self.tally.lock:
            self.tally.runs += 1
            self.tally.launches += self.machine.launches


def _damage(path: Path, data: bytes, how: str, choose: random.Random) -> None:
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "folder":
        path.mkdir()
    else:
        contents = {
            "cut": data[: choose.randrange(len(data) + 1)],
            "garbage": choose.randbytes(2000),
            "empty": b"",
            "nested": b"[" * 100_000,
            "types": json.dumps({"schema": 2, "number": [], "params": 5, "outcome": "x"}).encode(),
            "NaN": data.replace(b": 0", b": NaN").replace(b"null", b"1e999"),
            "bytes": data.replace(b"a", b"\xff"),
        }
        path.write_bytes(contents[how])


def _peak_mib(pid: int) -> float:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def run_campaign(*, faults: int, seed: int, workers: int, seconds: float) -> Tally:
    """Break runs until that many faults have struck, or the time is over."""
    tally, numbers = Tally(), iter(range(1_000_000))
    deadline = time.monotonic() + seconds

    def is_over() -> bool:
        return tally.counts.total() >= faults or time.monotonic() > deadline

    def work() -> None:
        while not is_over():
            with tally.lock:
                number = next(numbers)
            choose = random.Random(f"{seed} {number}")
            with tempfile.TemporaryDirectory(prefix=f"autofit-campaign-{number}-") as name:
                subject = Subject(_MODES[number % len(_MODES)], Path(name), tally, choose)
                try:
                    for _ in range(choose.choice((3, 5, 7))):
                        if not is_over():
                            subject.fault()
                    subject.finish()
                except Exception:  # noqa: BLE001 - the others go on
                    tally.report(f"{subject.mode} {number}: {traceback.format_exc()}")

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work) for _ in range(workers)]:
            future.result()
    return tally


def table(tally: Tally, seconds: float) -> str:
    """Return the numbers as a Markdown table."""
    kinds = ("kill", "phase", "server", "disk", "damage")
    rows = [
        f"| {mode} | {' | '.join(str(tally.counts[mode, kind]) for kind in kinds)} |"
        for mode in dict.fromkeys(_MODES)
    ]
    lines = [
        "| run | kills | kills in a phase | launches of hostile servers | full disks | damages |",
        "| --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        f"- {tally.counts.total()} faults in {tally.runs} runs with {tally.launches} launches",
        f"- {seconds / 60:.0f} minutes",
        f"- broken: {len(tally.broken)}",
        f"- most memory of autofit: {tally.most_mib:.0f} MiB",
        f"- longest attempt: its budget plus {max(0.0, tally.most_over_budget_s):.0f} s",
    ]
    return "\n".join([*lines, *(f"  - {text[:300]}" for text in tally.broken)]) + "\n"


def main() -> int:
    """Parse the options, run the campaign, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    began_s = time.monotonic()
    tally = run_campaign(
        faults=options.faults,
        seed=options.seed,
        workers=options.workers,
        seconds=options.minutes * 60,
    )
    text = table(tally, time.monotonic() - began_s)
    print(text)
    if options.output:
        options.output.write_text(text)
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
