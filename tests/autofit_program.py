"""Runs of autofit as a user starts it: a process of its own, with its own folders and lock."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from process_stage import Stage, wait_for

AUTOFIT = [sys.executable, "-m", "autofit"]


@dataclass(frozen=True)
class Done:
    """A run that ended: its exit code and output."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)

    @property
    def launches(self) -> list[str]:
        """The lines on stderr about launches, in order."""
        return [line for line in self.err.splitlines() if line.startswith("#")]


class AutofitProgram:
    """Runs of autofit in one folder; `stage` knows every process that they started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage = Stage(folder)
        self.env = {
            **self.stage.env,
            "XDG_CACHE_HOME": str(folder / "cache"),
            "XDG_DATA_HOME": str(folder / "data"),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "AUTOFIT_KNOWLEDGE": "",  # the one of the user is not read
            "AUTOFIT_LOCK_DIR": str(folder / "lock"),
            "TMPDIR": str(folder),
        }
        self._count = 0

    def run(self, *words: object, timeout_s: float = 100, **env: str) -> Done:
        """Run autofit to its end; fail on a traceback or a process that is left."""
        with self.start(*words, **env) as run:
            return run.finish(timeout_s)

    def start(
        self, *words: object, wrapper: Sequence[str] = (), cwd: Path | None = None, **env: str
    ) -> Run:
        """Start autofit in the test's folder; it is killed at the end of the block."""
        self._count += 1
        argv = [*wrapper, *AUTOFIT, *(str(word) for word in words)]
        return Run(self, argv, cwd or self.folder, self.folder / f"run-{self._count}", env)


class Run:
    """One autofit that runs."""

    def __init__(
        self, program: AutofitProgram, argv: list[str], cwd: Path, path: Path, env: dict[str, str]
    ) -> None:
        self.program = program
        self._out, self._err = path.with_suffix(".out"), path.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                argv, cwd=cwd, env={**program.env, **env}, stdin=subprocess.DEVNULL, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)

    @property
    def err(self) -> str:
        """The text that it wrote to stderr so far."""
        return self._err.read_text(encoding="utf-8", errors="surrogateescape")

    def wait_for_text(self, text: str, limit_s: float = 60) -> None:
        """Wait until stderr has a text; fail if the run ends before."""

        def is_printed() -> bool:
            has_ended = self.process.poll() is not None
            is_there = text in self.err
            assert is_there or not has_ended, self.err
            return is_there

        wait_for(is_printed, limit_s)

    def send(self, *numbers: int) -> None:
        """Send signals, with a short pause after each."""
        for number in numbers:
            self.process.send_signal(number)
            time.sleep(0.05)

    def finish(self, timeout_s: float = 60) -> Done:
        """Wait for its end; fail if a process of it is left."""
        code = self.process.wait(timeout_s)
        out = self._out.read_text(encoding="utf-8", errors="surrogateescape")
        assert "Traceback" not in self.err, self.err
        assert "fault in autofit itself" not in self.err, self.err
        self.program.stage.wait_empty()
        return Done(code, out, self.err)
