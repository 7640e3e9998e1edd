"""A place for one test's processes, which looks for what they left behind."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

FAKES = Path(__file__).parent / "fakes"
MARK = "AUTOFIT_TEST_MARK"
T = TypeVar("T")


class Stage:
    """A place for one test's processes, each known by a mark in its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report_path = folder / "report.txt"
        self.log_path = folder / "server.log"
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, MARK: self.mark}

    def server(self, *options: str) -> list[str]:
        """The command line of the misbehaving program."""
        script = str(FAKES / "process_server.py")
        return [sys.executable, script, "--report", str(self.report_path), *options]

    def owner(self, argv: list[str], *, stops: bool) -> list[str]:
        """The command line of a program that holds `argv` as autofit would."""
        script = str(FAKES / "process_owner.py")
        return [sys.executable, script, str(self.log_path), str(int(stops)), *argv]

    def reports(self) -> list[str]:
        """What the programs reported so far."""
        return self.report_path.read_text().splitlines() if self.report_path.exists() else []

    def wait_reports(self, count: int) -> list[str]:
        """The reports, as soon as there are that many."""
        return wait_for(lambda: found if len(found := self.reports()) >= count else [])

    def living(self) -> list[psutil.Process]:
        """Processes of this test that are not dead, guards included."""
        found = []
        for process in psutil.process_iter():
            try:
                is_dead = process.status() == psutil.STATUS_ZOMBIE
                if not is_dead and process.environ().get(MARK) == self.mark:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_empty(self) -> None:
        """Wait until all processes of this test are dead."""
        wait_for(lambda: not self.living())


def wait_for(look: Callable[[], T], limit_s: float = 20.0) -> T:
    """The first true answer."""
    deadline = time.monotonic() + limit_s
    while not (answer := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return answer
