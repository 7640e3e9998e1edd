"""The time between two launches: what the planner was asked in it, and what else it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from autofit.runtime.planner.planner import PlannerUsage
from autofit.trial.trial import Preparation


@dataclass(slots=True)
class Pause:
    """Begins with the run and after every launch; `asked` is what the planner counts."""

    clock: Callable[[], float]
    asked: PlannerUsage
    _since_s: float = field(init=False)
    _told: PlannerUsage = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A launch is over."""
        self._since_s, self._told = self.clock(), replace(self.asked)

    @property
    def spent(self) -> Preparation:
        """What was spent since it began."""
        questions_s = self.asked.seconds - self._told.seconds
        own_s = self.clock() - self._since_s - questions_s
        return Preparation(
            self.asked.questions - self._told.questions,
            round(questions_s, 3),
            round(max(0.0, own_s), 3),
        )
