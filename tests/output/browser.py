"""A page in headless Chromium: its console, and the value that a script returns in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome")
_LIMIT_S = 120
# The window of a headless browser is never narrower than 500 pixels; a frame can be.
_FRAME = """<!DOCTYPE html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<script id="found" type="application/json">null</script>
<script>
addEventListener("message", (event) => {{
  document.getElementById("found").textContent = event.data.replaceAll("<", "\\\\u003c");
}});
</script>
<iframe src="page.html" width="{width}" height="{height}"></iframe>
"""
_PROBE = """<script>
const alarms = [];
addEventListener("error", (event) => alarms.push(event.message));
addEventListener("unhandledrejection", (event) => alarms.push(String(event.reason)));
window.alert = (text) => alarms.push(`alert ${text}`);
addEventListener("load", async () => {
  while (document.querySelector(".plot") && !document.documentElement.dataset.plots)
    await new Promise((resume) => setTimeout(resume, 50));  // wording: quote
  let found;
  try { found = await (async () => { %s })(); } catch (error) { alarms.push(String(error)); }
  parent.postMessage(JSON.stringify({ alarms, found }), "*");
});
</script>
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """The value that a script returned in a page, its alarms, and the browser's console."""

    found: Any
    alarms: list[str]
    console: list[str]


class _Done(NamedTuple):
    out: str
    log: str


class Browser:
    """Headless Chromium with a profile of its own in a folder.

    Raises:
        FileNotFoundError: no Chromium is installed.
    """

    def __init__(self, folder: Path) -> None:
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if program is None:
            raise FileNotFoundError(
                f"none of {', '.join(NAMES)} is on PATH: the tests of the report's page need "
                "one of them; on Debian `apt-get install chromium`"
            )
        self._program = program
        self._folder = folder

    def see(
        self, page: str, script: str, *, width: int = 1100, height: int = 900, dark: bool = False
    ) -> Seen:
        """Open a page in a frame of that size, wait for its plots and run a script in it.

        The script is the body of an async function; what it returns must be JSON.
        """
        self._write(page.replace("<style>", _PROBE % script + "<style>", 1))
        frame = self._folder / "frame.html"
        frame.write_text(_FRAME.format(width=width, height=height), encoding="utf-8")
        done = self._run(frame, "--dump-dom", width, height, dark=dark)
        answered = re.search(r'<script id="found"[^>]*>(.*?)</script>', done.out, re.DOTALL)
        data = json.loads(answered[1]) if answered else None
        assert data is not None, f"the page never answered:\n{done.log[-2000:]}"
        return Seen(data.get("found"), data["alarms"], _console(done.log))

    def shoot(self, page: str, image: Path, *, width: int, height: int, dark: bool) -> None:
        """Save a picture of a page."""
        self._write(page)
        frame = self._folder / "frame.html"
        frame.write_text(_FRAME.format(width=width, height=height), encoding="utf-8")
        self._run(frame, f"--screenshot={image}", width, height, dark=dark)

    def print(self, page: str, paper: Path) -> None:
        """Print a page as PDF."""
        path = self._write(page)
        self._run(path, f"--print-to-pdf={paper}", 1100, 900, dark=False)

    def _write(self, page: str) -> Path:
        path = self._folder / "page.html"
        path.write_text(page, encoding="utf-8")
        return path

    def _run(self, page: Path, action: str, width: int, height: int, *, dark: bool) -> _Done:
        process = subprocess.Popen(
            [
                self._program,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--enable-logging=stderr",
                "--virtual-time-budget=30000",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                f"--user-data-dir={self._folder / 'profile'}",
                f"--window-size={max(500, width)},{height}",
                action,
                page.as_uri(),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=_LIMIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its many children with it
        assert process.returncode == 0, err
        return _Done(out, err)


def _console(log: str) -> list[str]:
    """Return the lines of pages on the console."""
    return [line for line in log.splitlines() if ":CONSOLE" in line]
