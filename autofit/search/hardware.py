"""The facts about a machine from which the search knows which settings can matter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine as the search sees it.

    Attributes:
        cores: physical cores of the fastest kind; 0 if unknown.
        has_old_cards: whether some device is known to have no matrix cores.
    """

    cores: int = 0
    has_old_cards: bool = False
