"""How much time and how many launches a run may still spend."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from autofit.errors import UsageError
from autofit.runtime.planner.planner import PlannerUsage
from autofit.session.overhead import Pause
from autofit.trial.purpose import Phase

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*$")

# A launch repeats its requests for at most this share of the whole time, or so many seconds.
_REPEAT_SHARE = 1 / 40
_REPEAT_LIMIT_S = 120.0
# However slow the baseline was, so many candidates are tried while some time is left.
_LEAST_CANDIDATES = 3
_SHARE_FOR_THE_LEAST = 0.75
# Four rounds of two contenders, and three launches of the proof.
_LAUNCHES_AFTER_SEARCH = 11
_LEAST_SHARE = 0.35

# Shares of the time budget after which a phase gives way to the next: the search may not
# eat what confirming and proving its result need.
_SHARE_SPENT_BEFORE = {"baseline": 1.0, "boundary": 0.45, "search": 0.6, "confirm": 0.9}


def parse_duration_s(text: str) -> float:
    """Seconds of `90`, `90s`, `30m` or `1.5h`.

    Raises:
        UsageError: it is none of these, or zero.
    """
    found = _DURATION.match(text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"'{text}' is not a duration", "for example 90s, 30m or 1.5h")
    return seconds


@dataclass(slots=True)
class Budget:
    """Time and launches of baseline, boundary and search, those before a resume included.

    Confirming and proving have launches of their own: they are bounded by their rules. `asked`
    counts what the runtime's planner is asked; `pause` is the time between two launches.
    """

    clock: Callable[[], float]
    total_s: float | None = None
    max_launches: int | None = None
    launches: int = 0
    asked: PlannerUsage = field(default_factory=PlannerUsage)
    pause: Pause = field(init=False)
    _seconds: list[float] = field(default_factory=list)
    _proving_s: float = 0.0
    _earlier_s: float = 0.0
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self.pause = Pause(self.clock, self.asked)

    @property
    def spent_s(self) -> float:
        """Seconds since the run began, and those that an earlier run spent on its launches.

        Else a resumed run would plan its rounds for time that has gone.
        """
        return self.clock() - self._began_s + self._earlier_s

    @property
    def repeat_limit_s(self) -> float:
        """Seconds after which a launch does not begin another repeat of its requests."""
        if self.total_s is None:
            return _REPEAT_LIMIT_S
        return min(_REPEAT_LIMIT_S, self.total_s * _REPEAT_SHARE)

    def left_for_s(self, phase: Phase) -> float | None:
        """Seconds until a phase must give way to the next, None without a limit."""
        if self.total_s is None:
            return None
        # What is proven early need not be proven later.
        until_s = self.total_s * _SHARE_SPENT_BEFORE.get(phase, 1.0) + self._proving_s
        if phase in ("boundary", "search"):
            # Where launches are slow, what was found must still be confirmed and proven.
            kept_s = median(self._seconds or [0.0]) * _LAUNCHES_AFTER_SEARCH
            until_s = max(_LEAST_SHARE * self.total_s, min(until_s, self.total_s - kept_s))
            if self.launches <= _LEAST_CANDIDATES:
                until_s = self.total_s * _SHARE_FOR_THE_LEAST
        return max(0.0, min(until_s, self.total_s) - self.spent_s)

    @property
    def share_used(self) -> float:
        """How much of what the search may take is used: of launches or time, the larger share."""
        shares = [0.0]
        if self.max_launches is not None:
            shares.append(self.launches / self.max_launches)
        left_s = self.left_for_s("search")
        if left_s is not None:
            shares.append(self.spent_s / max(self.spent_s + left_s, 1e-9))
        return max(shares)

    def count(self, phase: Phase, seconds: float = 0.0, *, earlier_s: float = 0.0) -> None:
        """Note a launch and how long it took.

        Of one that an earlier run made, `earlier_s` is all that was spent on it.
        """
        self._seconds.append(seconds)
        self._earlier_s += earlier_s
        if phase == "prove":
            self._proving_s += seconds
        if phase in ("baseline", "boundary", "search"):
            self.launches += 1

    def allows(self, phase: Phase, expected_s: float = 0.0) -> bool:
        """Whether a launch of that phase, expected to take so long, may still begin.

        A proof may always: without it there is no result.
        """
        if phase == "prove":
            return True
        if (
            phase in ("boundary", "search")
            and self.max_launches is not None
            and self.launches >= self.max_launches
        ):
            return False
        left_s = self.left_for_s(phase)
        return left_s is None or expected_s <= left_s
