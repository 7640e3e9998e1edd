"""The processes of one test, and a check that none of them is left."""

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
    """The processes of one test, identified by a mark in their environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report_path = folder / "report.txt"
        self.log_path = folder / "server.log"
        self.mark = uuid.uuid4().hex
        self.env = {**os.environ, MARK: self.mark}

    def server(self, *options: str) -> list[str]:
        """Return the command line of the misbehaving program."""
        script = str(FAKES / "process_server.py")
        return [sys.executable, script, "--report", str(self.report_path), *options]

    def owner(self, argv: list[str], *, stops: bool) -> list[str]:
        """Return the command line of a program that runs `argv` like autofit does."""
        script = str(FAKES / "process_owner.py")
        return [sys.executable, script, str(self.log_path), str(int(stops)), *argv]

    def reports(self) -> list[str]:
        """Return the reports of the programs so far."""
        return self.report_path.read_text().splitlines() if self.report_path.exists() else []

    def wait_reports(self, count: int) -> list[str]:
        """Wait for a number of reports and return them."""
        return wait_for(lambda: found if len(found := self.reports()) >= count else [])

    def living(self) -> list[psutil.Process]:
        """Return the living processes of this test, including guards."""
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
    """Return the first true answer."""
    deadline = time.monotonic() + limit_s
    while not (answer := look()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return answer
