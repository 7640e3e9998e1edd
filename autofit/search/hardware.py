"""The facts about a machine from which the search knows which settings can matter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine as the search sees it.

    Attributes:
        cores: physical cores of the fastest kind; 0 if unknown.
        upload_gb_s: speed of the link over which each layout uploads host experts, if known.
    """

    cores: int = 0
    upload_gb_s: Mapping[str, float] = field(default_factory=dict)
