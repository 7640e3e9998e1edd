"""Memory counters from a program of the user's, or of a runtime dialect."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence

from autofit.errors import AutofitError
from autofit.machine.memory import Counter
from autofit.process import run

TIMEOUT_S = 5.0
DUTY = 0.1  # the share of time that may go into asking: a slow command is asked less often

_LINE = re.compile(r"^\s*(\S+)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s*$")


class CommandSource:
    """A `memory_command`: prints a line `NAME total free used`, in MiB, for each device."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)
        self._clock = clock
        self._last: dict[str, Counter] = {}
        self._next_s = clock()

    def read(self) -> dict[str, Counter]:
        """What the command printed; the last answer again when it was asked just before.

        Raises:
            AutofitError: the command fails, or prints no line of that form.
        """
        began_s = self._clock()
        if began_s < self._next_s:
            return self._last
        finished = run(self._argv, env=self._env, timeout_s=TIMEOUT_S)
        now_s = self._clock()
        self._next_s = now_s + (now_s - began_s) * (1 / DUTY - 1)
        self._last = parse_counters(finished.stdout)
        if finished.returncode != 0 or not self._last:
            why = (
                f"took longer than {TIMEOUT_S:.0f} s"
                if finished.timed_out
                else f"ended with {finished.returncode}: {finished.stderr.strip()[-200:]}"
            )
            raise AutofitError(
                f"the memory command {' '.join(self._argv)} {why}",
                "it must print lines `NAME total free used`, in MiB",
            )
        return self._last


def parse_counters(text: str) -> dict[str, Counter]:
    """Counters from lines `NAME total free used`; other lines are ignored."""
    return {
        match[1]: Counter(used_mib=float(match[4]), free_mib=float(match[3]))
        for line in text.splitlines()
        if (match := _LINE.match(line))
    }
