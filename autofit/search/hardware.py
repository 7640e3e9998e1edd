"""The facts about a machine from which the search knows which settings can matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine as the search sees it.

    Attributes:
        cores: physical cores of the fastest kind; 0 if unknown.
        has_old_cards: whether some device is known to have no matrix cores.
        upload_gb_s: speed of the link over which each layout uploads host experts, if known.
    """

    cores: int = 0
    has_old_cards: bool = False
    upload_gb_s: Mapping[str, float] = field(default_factory=dict)
