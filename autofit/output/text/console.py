"""The console: lines for a file or a log, wrapped lines for a terminal, facts and tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# The lines of a file or a log are not wrapped.
_LOG_COLUMNS = 10_000
# A cell of at most this width is not cut in favour of the last cell of its row.
_WHOLE_CELL = 24
# Rich has this many blanks between two columns.
_BETWEEN = 2
# Rich pads the last column of a table.
_TRAILING_BLANKS = re.compile(r"[ \t]+$", re.MULTILINE)


# Control characters, and those that reorder text. Each replacement has one column, so that tables
# stay aligned.
_NO_CONTROL = {
    code: "\ufffd"
    for code in (*range(0x2070), *range(0xD800, 0xE000))
    if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    and chr(code) not in "\n\t"
}


class _PipedConsole(Console):
    """A console that prints no blanks at the ends of lines unless it is a terminal.

    A closed pipe raises an error that the caller handles. Rich itself would exit.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render in the same way as rich, without the control characters of foreign text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.translate(_NO_CONTROL) == segment.text:
                yield segment
            else:
                yield Segment(segment.text.translate(_NO_CONTROL), segment.style)

    def print(self, *objects: Any, **options: Any) -> None:  # noqa: ANN401 - as rich has it
        """Print in the same way as rich."""
        if self.is_terminal:
            super().print(*objects, **options)
            return
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(_TRAILING_BLANKS.sub("", captured.get()))

    def on_broken_pipe(self) -> None:
        """Let the error pass."""
        raise  # noqa: PLE0704 - rich calls this where it has caught it


def make_console(stream: TextIO) -> Console:
    """Return a rich console that wraps lines only on a terminal."""
    is_terminal = stream.isatty()
    return _PipedConsole(
        file=stream,
        width=None if is_terminal else _LOG_COLUMNS,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not is_terminal,
    )


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(Text(name, style="dim"), Text(text))
    if grid.row_count:
        console.print(grid)


def print_table(
    console: Console,
    title: str,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    styles: Iterable[str] = (),
    cuts: bool = False,
) -> None:
    """Print a table under an optional title; the columns named in `right` are right-aligned.

    Long cells are wrapped. With `cuts` each row has one line, and the last cell is cut first.
    """
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    numeric, style, cells = set(right), iter(styles), [*rows]
    widths = _cut_widths(head, cells, console.width) if cuts else [None] * len(head)
    for name, width in zip(head, widths, strict=True):
        table.add_column(
            name,
            justify="right" if name in numeric else "left",
            overflow="ellipsis" if cuts else "fold",
            no_wrap=cuts,
            width=width,
        )
    for row in cells:
        table.add_row(*(Text(cell) for cell in row), style=next(style, None))
    console.print(table)


def _cut_widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], columns: int
) -> list[int | None]:
    """Return the width of each column; the last one gets what the others leave."""
    whole = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    *first, last = whole
    if sum(whole) + _BETWEEN * len(first) <= columns:
        return [*whole]
    widths = [min(width, _WHOLE_CELL) for width in first]
    left = columns - sum(widths) - _BETWEEN * len(widths)
    return [*widths, max(1, min(last, left))]
