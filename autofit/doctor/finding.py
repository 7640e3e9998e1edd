"""Something about a machine that keeps a tune from working, or from its best result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

# fatal: a tune would not work; warning: its result suffers; note: good to know.
Level = Literal["fatal", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found, in a stable word and in a sentence, and what mends it."""

    level: Level
    kind: str
    message: str
    mend: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON data."""
        return asdict(self)
