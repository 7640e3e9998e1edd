"""The runtime's log: levels, prefix, timestamps and the JSON-lines form.

Time stamps run on a clock of their own, which simulated work pushes forward.
"""

from __future__ import annotations

import json
import os
import time

# What each level letter needs of `-lv`: library information is level 4, the server's own 3.
_NEEDED = {"E": 1, "W": 2, "I": 3, "T": 4, "D": 5}


class Log:
    """Writes log lines to stderr (or JSON lines to stdout), each in one write."""

    def __init__(self, verbosity: int = 3, *, prefix: bool = True, jsonl: bool = False) -> None:
        self.verbosity, self.prefix, self.jsonl = verbosity, prefix, jsonl
        self.began = time.monotonic()
        self.simulated_s = 0.0
        self.copy: int | None = None

    def advance(self, seconds: float) -> None:
        """Push the clock forward by simulated work."""
        self.simulated_s += seconds

    def _stamp(self) -> str:
        micros = int((time.monotonic() - self.began + self.simulated_s) * 1e6)
        minutes, micros = divmod(micros, 60_000_000)
        seconds, micros = divmod(micros, 1_000_000)
        return f"{minutes}.{seconds:02d}.{micros // 1000:03d}.{micros % 1000:03d}"

    def say(self, level: str, text: str) -> None:
        """One line; level T is information that needs -lv 4 and is marked I."""
        if _NEEDED[level] > self.verbosity:
            return
        letter = "I" if level == "T" else level
        if self.jsonl:
            number = {"E": 1, "W": 2, "I": 3, "T": 4, "D": 5}[level]
            line = {"level": letter, "verbosity": number, "time": self._stamp(), "msg": text}
            self.raw(json.dumps(line) + "\n", 1)
        elif self.prefix:
            self.raw(f"{self._stamp()} {letter} {text}\n")
        else:
            self.raw(text + "\n")

    def raw(self, text: str, descriptor: int = 2) -> None:
        """Text as it is, past levels and prefix."""
        data = text.encode()
        os.write(descriptor, data)
        if self.copy is not None:
            os.write(self.copy, data)

    def trace_line(self, text: str) -> None:
        """A library line that needs -lv 4."""
        self.say("T", text)

    def error_line(self, text: str) -> None:
        """An error line."""
        self.say("E", text)
