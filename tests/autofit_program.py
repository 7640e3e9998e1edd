"""Runs autofit as a user does: a program of its own, with its own folders and lock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_stage import Stage, wait_for

AUTOFIT = [sys.executable, "-m", "autofit"]


@dataclass(frozen=True)
class Done:
    """How a run ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def launches(self) -> list[str]:
        """The lines that tell of launches, in order."""
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
            "AUTOFIT_LOCK_DIR": str(folder / "lock"),
            "TMPDIR": str(folder),
        }

    def run(self, *words: object, timeout_s: float = 100, **env: str) -> Done:
        """Run autofit to its end; no traceback, and no process left."""
        with self.start(*words, **env) as process:
            return self.finish(process, timeout_s)

    def start(self, *words: object, **env: str) -> subprocess.Popen[str]:
        """Start autofit; it ends with `finish`, or killed when the block is left."""
        return _Run(
            [*AUTOFIT, *(str(word) for word in words)],
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, process: subprocess.Popen[str], timeout_s: float = 60) -> Done:
        """Wait for a run that was started; nothing of it may be left."""
        out, err = process.communicate(timeout=timeout_s)
        done = Done(process.returncode, out, err)
        assert "Traceback" not in err, err
        assert "fault in autofit itself" not in err, err
        self.stage.wait_empty()
        return done


class _Run(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is killed, should it still run when its block is left."""

    def __exit__(self, *details: object) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        super().__exit__(*details)


def wait_for_trials(study: Path, count: int) -> None:
    """Wait until a study holds so many trials."""
    wait_for(lambda: len([*study.glob("trials/*.json")]) >= count, limit_s=60)
