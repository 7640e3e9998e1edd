"""A bar of memory for each device: what the server has taken of what it may."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from rich.text import Text

from autofit.text_format import mib, one_line
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import MemoryReading

_FULL = 0.97
_NEARLY = 0.9
_WORDS_COLUMNS = 30


@dataclass(frozen=True, slots=True)
class MemoryBars:
    """Memory of the launch under way; `limits_mib` are what devices may hold, by name.

    What was used before the server started is others', so the first reading of a launch is
    its zero.
    """

    limits_mib: Mapping[str, float] = field(default_factory=dict)
    first: MemoryReading | None = None
    last: MemoryReading | None = None

    def begun(self) -> MemoryBars:
        """The bars of a new launch."""
        return replace(self, first=None, last=None)

    def read(self, reading: MemoryReading) -> MemoryBars:
        """The bars after another reading."""
        return replace(self, first=self.first or reading, last=reading)

    def draw(self, columns: int) -> Iterator[Text]:
        """A line for each device that has a counter, and one for the host."""
        rows = list(self._rows())
        width = max((len(name) for name, _, _ in rows), default=0)
        for name, taken_mib, limit_mib in rows:
            yield _line(name.ljust(width), taken_mib, limit_mib, columns)

    def _rows(self) -> Iterator[tuple[str, float, float]]:
        first, last = self.first, self.last
        if first is None or last is None:
            return
        for name, used_mib in last.device_used_mib.items():
            before = first.device_used_mib.get(name)
            free = first.device_free_mib.get(name)
            limit = self.limits_mib.get(name, free)
            if used_mib is not None and before is not None and limit:
                yield one_line(name), max(0.0, used_mib - before), limit
        if (
            last.process_mib is not None
            and first.host_available_mib
            and HOST_NAME not in self._names()
        ):
            yield HOST_NAME, last.process_mib, first.host_available_mib

    def _names(self) -> Mapping[str, float | None]:
        return self.last.device_used_mib if self.last is not None else {}


def _line(name: str, taken_mib: float, limit_mib: float, columns: int) -> Text:
    share = min(1.0, taken_mib / limit_mib)
    cells = max(10, columns - len(name) - _WORDS_COLUMNS)
    filled = round(share * cells)
    style = "red" if share > _FULL else "yellow" if share > _NEARLY else "cyan"
    text = Text(f"{name} [")
    text.append("#" * filled, style=style)
    text.append("-" * (cells - filled), style="dim")
    return text.append(f"] {mib(taken_mib)} of {mib(limit_mib)}")
