"""The time and launches that a run may use, and those that it has used."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from autofit.errors import UsageError
from autofit.runtime.planner.planner import PlannerUsage
from autofit.trial.purpose import PHASES, Phase
from autofit.trial.trial import FIDELITIES, Overhead, Trial

# The least time that a stage of a launch may exceed the budget.
_STAGE_GRACE_S = 60.0
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([smh]?)\s*$")

# A launch repeats its requests for at most this share of the budget, and this many seconds.
_REPEAT_SHARE = 1 / 40
_REPEAT_LIMIT_S = 120.0
# At least this many candidates are tried while time is left, even if the baseline was slow.
_FEWEST_CANDIDATES = 3
_SHARE_FOR_THE_FEWEST = 0.75
# Four rounds of two contenders take eight launches; the proof takes three.
_LAUNCHES_AFTER_SEARCH = 11
_LEAST_SEARCH_SHARE = 0.35

# A phase ends once this share of the budget is spent. So the search leaves time to confirm and
# prove its result.
_SHARE_AT_PHASE_END = {"baseline": 1.0, "boundary": 0.45, "search": 0.6, "confirm": 0.9}


def parse_duration_s(text: str) -> float:
    """Convert a duration such as `90`, `90s`, `30m` or `1.5h` to seconds.

    Raises:
        UsageError: the text has another form, or the duration is zero.
    """
    found = _DURATION.match(text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"'{text}' is not a duration", "use for example 90s, 30m or 1.5h")
    return seconds


@dataclass(slots=True)
class OverheadTimer:
    """A timer for the time between two launches. `usage` counts the calls of the planner."""

    clock: Callable[[], float]
    usage: PlannerUsage
    _since_s: float = field(init=False)
    _usage_before: PlannerUsage = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start again from zero, at the end of a launch."""
        self._since_s, self._usage_before = self.clock(), replace(self.usage)

    @property
    def overhead(self) -> Overhead:
        """The time since the last launch ended."""
        questions_s = self.usage.seconds - self._usage_before.seconds
        own_s = self.clock() - self._since_s - questions_s
        return Overhead(
            self.usage.runs - self._usage_before.runs,
            round(questions_s, 3),
            round(max(0.0, own_s), 3),
        )


@dataclass(slots=True)
class Budget:
    """The budget of a run: its limits, and what this run and those that it resumes have spent.

    `max_launches` limits baseline, boundary and search together. Other rules end the phases
    confirm and prove. `planner_usage` counts the calls of the planner.
    """

    clock: Callable[[], float]
    total_s: float | None = None
    max_launches: int | None = None
    launches: int = 0
    planner_usage: PlannerUsage = field(default_factory=PlannerUsage)
    timer: OverheadTimer = field(init=False)
    _launch_seconds: list[float] = field(default_factory=list)
    _proving_s: float = 0.0
    _earlier_s: float = 0.0
    _began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self.timer = OverheadTimer(self.clock, self.planner_usage)

    @property
    def spent_s(self) -> float:
        """Seconds since the run began, plus the seconds that earlier runs spent on their launches.

        Without the latter a resumed run would plan rounds for time that is already spent.
        """
        return self.clock() - self._began_s + self._earlier_s

    @property
    def repeat_limit_s(self) -> float:
        """Seconds after which a launch does not repeat its requests again."""
        if self.total_s is None:
            return _REPEAT_LIMIT_S
        return min(_REPEAT_LIMIT_S, self.total_s * _REPEAT_SHARE)

    def left_for_s(self, phase: Phase) -> float | None:
        """Return the seconds until a phase must end, or None if time is not limited."""
        if self.total_s is None:
            return None
        # A finalist that was proven early needs no proof later.
        until_s = self.total_s * _SHARE_AT_PHASE_END.get(phase, 1.0) + self._proving_s
        if phase in ("boundary", "search"):
            # Where launches are slow, the result must still be confirmed and proven.
            kept_s = median(self._launch_seconds or [0.0]) * _LAUNCHES_AFTER_SEARCH
            least_s = _LEAST_SEARCH_SHARE * self.total_s
            until_s = max(least_s, min(until_s, self.total_s - kept_s))
            if self.launches <= _FEWEST_CANDIDATES:
                until_s = self.total_s * _SHARE_FOR_THE_FEWEST
        return max(0.0, min(until_s, self.total_s) - self.spent_s)

    def stage_limit_s(self, phase: Phase) -> float:
        """Return the most seconds that a stage of a launch may take; infinite without a limit.

        A server that hangs would otherwise exceed the budget by its whole time limit. Nothing is
        measured without a baseline, and nothing recommended without a proof: they may exceed the
        budget by as much again.
        """
        if self.total_s is None:
            return math.inf
        needs_result = phase in ("baseline", "prove")
        grace_s = max(_STAGE_GRACE_S, self.total_s if needs_result else 0.0)
        return max(0.0, self.total_s - self.spent_s) + grace_s

    @property
    def share_used(self) -> float:
        """The share of the search's launches or time that is used, whichever is larger."""
        shares = [0.0]
        if self.max_launches is not None:
            shares.append(self.launches / self.max_launches)
        left_s = self.left_for_s("search")
        if left_s is not None:
            shares.append(self.spent_s / max(self.spent_s + left_s, 1e-9))
        return max(shares)

    def record_launch(self, phase: Phase, seconds: float = 0.0, *, earlier_s: float = 0.0) -> None:
        """Count a launch. `earlier_s` is the time that an earlier run of the study spent on it."""
        self._launch_seconds.append(seconds)
        self._earlier_s += earlier_s
        if phase == "prove":
            self._proving_s += seconds
        if phase in ("baseline", "boundary", "search"):
            self.launches += 1

    def allows(self, phase: Phase, expected_s: float = 0.0) -> bool:
        """Return whether a phase may begin a launch that is expected to take this long.

        A proof always may, because there is no result without it.
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


def spending(trials: Sequence[Trial], rest: Overhead) -> dict[str, Any]:
    """Return how a run spent its time, as JSON data. `rest` is the time after the last launch.

    Launches in studies of older versions have no overhead and no fidelity, which is null here.
    """
    overheads = [*(trial.overhead for trial in trials if trial.overhead), rest]
    by_phase = [
        {"phase": phase, "fidelity": fidelity, **_count_launches(made)}
        for phase in PHASES
        for fidelity in (*FIDELITIES, None)
        if (made := [t for t in trials if (t.phase, t.fidelity) == (phase, fidelity)])
    ]
    by_fidelity: dict[str, Any] = {
        fidelity: _count_launches(trial for trial in trials if trial.fidelity == fidelity)
        for fidelity in FIDELITIES
    }
    by_fidelity["estimate"] = {
        "questions": sum(one.questions for one in overheads),
        "seconds": round(sum(one.questions_s for one in overheads), 1),
    }
    return {
        "by_phase": by_phase,
        "by_fidelity": by_fidelity,
        "own_seconds": round(sum(one.own_s for one in overheads), 1),
    }


def _count_launches(trials: Iterable[Trial]) -> dict[str, Any]:
    seconds = [trial.seconds for trial in trials]
    return {"launches": len(seconds), "seconds": round(sum(seconds), 1)}
