"""Memory counters from a program of the user's, or of a runtime dialect."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autofit.errors import AutofitError
from autofit.machine.memory_watcher import Counter
from autofit.process import run

TIMEOUT_S = 5.0

_LINE = re.compile(r"^\s*(\S+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s*$")


class CommandSource:
    """A `memory_command`: prints a line `NAME total free used`, in MiB, for each device."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)

    def read(self) -> dict[str, Counter]:
        """What the command prints now.

        Raises:
            AutofitError: the command fails, or prints no line of that form.
        """
        finished = run(self._argv, env=self._env, timeout_s=TIMEOUT_S)
        counters = parse_counters(finished.stdout)
        if finished.returncode != 0 or not counters:
            why = (
                f"took longer than {TIMEOUT_S:.0f} s"
                if finished.timed_out
                else f"ended with {finished.returncode}: {finished.stderr.strip()[-200:]}"
            )
            raise AutofitError(
                f"the memory command {' '.join(self._argv)} {why}",
                "it must print lines `NAME total free used`, in MiB",
            )
        return counters


def parse_counters(text: str) -> dict[str, Counter]:
    """Counters from lines `NAME total free used`; other lines are ignored."""
    return {
        match[1]: Counter(used_mib=float(match[4]), free_mib=float(match[3]))
        for line in text.splitlines()
        if (match := _LINE.match(line))
    }
