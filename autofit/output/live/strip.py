"""Host expert layers as a strip of characters, in which the fit boundary closes in.

    0 ---------x..o*oo===o==== 40

`x` did not fit, `!` failed otherwise, `o` ran, `*` is the best so far; `-` and `=` are ruled
out and in by these, `.` is open. It can be read without colour.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rich.text import Text

LEGEND = "x no fit  ! failed  o ran  * best  -/= implied  . open"
_STYLES = {
    "x": "bold red",
    "!": "bold magenta",
    "o": "bold green",
    "*": "bold reverse green",
    "-": "dim red",
    "=": "dim green",
    ".": "",
}
# Where one number of layers came out in several ways, the better one is shown.
_RANK = {"!": 0, "x": 1, "o": 2, "*": 3}


@dataclass(frozen=True, slots=True)
class Strip:
    """What is known of a layout and KV type; `marks` by number of host expert layers."""

    name: str
    marks: Mapping[int, str] = field(default_factory=dict)
    fits: int | None = None
    fails: int | None = None

    def marked(self, layers: int, mark: str) -> Strip:
        """The strip with the outcome of a launch."""
        before = self.marks.get(layers)
        better = mark if before is None or _RANK[mark] > _RANK[before] else before
        return replace(self, marks={**self.marks, layers: better})

    def without_best(self) -> Strip:
        """The strip with its best as one that merely ran."""
        return replace(self, marks={n: "o" if m == "*" else m for n, m in self.marks.items()})

    def closed_in(self, fits: int | None, fails: int | None) -> Strip:
        """The strip with what is known of its boundary."""
        return replace(self, fits=fits, fails=fails)

    def character(self, layers: int) -> str:
        """What is known of a number of host expert layers."""
        if layers in self.marks:
            return self.marks[layers]
        ran = [n for n, mark in self.marks.items() if mark in "o*"]
        short = [n for n, mark in self.marks.items() if mark == "x"]
        fits = min([*ran, *([] if self.fits is None else [self.fits])], default=None)
        fails = max([*short, *([] if self.fails is None else [self.fails])], default=None)
        if fits is not None and layers >= fits:
            return "="
        return "-" if fails is not None and layers <= fails else "."

    def draw(self, last: int, columns: int) -> Text:
        """The strip from 0 to the last, or as much around its boundary as has room."""
        known = [*self.marks, *(n for n in (self.fits, self.fails) if n is not None)]
        first, end = 0, max([last, *known])
        room = max(8, columns - 2 * len(str(end)) - 2)
        if end + 1 > room:
            middle = self._edge(known)
            first = max(0, min(middle - room // 2, end + 1 - room))
            end = first + room - 1
        text = Text(f"{first} ", style="dim")
        for layers in range(first, end + 1):
            character = self.character(layers)
            text.append(character, style=_STYLES[character])
        return text.append(f" {end}", style="dim")

    def _edge(self, known: list[int]) -> int:
        sure = [n for n in (self.fits, self.fails) if n is not None]
        return sum(sure or known) // max(1, len(sure or known))
