"""The parts that plots share: figures, axes, colours, and text that cannot become markup."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autofit.text_format import one_line

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Distinct for colour-blind readers too: the palette of Okabe and Ito.
COLOURS = ("#2180BF", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#B8A800")
GREY = "#8A8A8A"
FAILED = "#D55E00"
GOOD = "#009E73"
BASELINE, WINNER = "#E69F00", "#2180BF"
# Colour and shape of each outcome, so that no two differ by colour alone.
ENDINGS: dict[str, tuple[str, str]] = {
    "completed": (GOOD, "circle"),
    "out_of_memory": (FAILED, "x"),
    "spilled": ("#CC79A7", "triangle-down"),
    "rejected": ("#56B4E9", "square"),
    "timed_out": ("#B8A800", "hourglass"),
    "incorrect": ("#7F3C8D", "diamond"),
    "crashed": ("#8C4A00", "cross"),
}
HEIGHT = 400
# More ticks than this cannot be read.
_TICKS = 16
_GRID = "rgba(128,128,128,.25)"


@dataclass(frozen=True, slots=True)
class Plot:
    """A plotly figure with a title, a caption that says the same, and a table of its numbers.

    `height` is in CSS pixels; `head` and `rows` are empty if the table of launches has the same
    numbers.
    """

    title: str
    alternative: str
    figure: go.Figure
    height: int = HEIGHT
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())

    def to_json(self) -> str:
        """Return data and layout as JSON that cannot end a script element."""
        text: str = self.figure.to_json(validate=False)
        for character in "<>&\u2028\u2029":
            text = text.replace(character, f"\\u{ord(character):04x}")
        return text


@dataclass(frozen=True, slots=True)
class NoPlot:
    """A plot that is left out, with the reason."""

    title: str
    reason: str


def safe(text: object) -> str:
    """Return text on one line that plotly does not read as markup."""
    return html.escape(one_line(text), quote=False)


def short_name(text: object) -> str:
    """Return a name short enough for a legend, safe from markup."""
    line = one_line(text)
    return safe(line if len(line) <= _NAME_COLUMNS else f"{line[: _NAME_COLUMNS - 3]}...")


def lines(*texts: str) -> str:
    """Join texts as lines of a hover label; break long ones and leave out empty ones."""
    broken = [piece for text in texts if text for piece in _pieces(one_line(text))]
    return "<br>".join(html.escape(piece, quote=False) for piece in broken)


_NAME_COLUMNS = 48
_HOVER_COLUMNS = 70
_HOVER_LINES = 4


def _pieces(text: str) -> list[str]:
    """Break a text at spaces into at most four lines of 70 characters."""
    found: list[str] = []
    while text and len(found) < _HOVER_LINES:
        cut = len(text) if len(text) <= _HOVER_COLUMNS else text.rfind(" ", 20, _HOVER_COLUMNS)
        cut = _HOVER_COLUMNS if cut < 0 else cut
        found.append(text[:cut])
        text = text[cut:].lstrip()
    return [*found[:-1], f"{found[-1]}..."] if text else found


def new_figure(x_title: str, y_title: str, **layout: Any) -> go.Figure:  # noqa: ANN401 - plotly's
    """Return an empty figure with named axes; text and grid take the page's colours."""
    import plotly.graph_objects as go  # noqa: PLC0415 - heavy, and an extra

    figure = go.Figure(
        layout={
            "template": "none",
            "autosize": True,
            "margin": {"l": 64, "r": 12, "t": 12, "b": 48},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": GREY},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 1.02,
                "yanchor": "bottom",
                "traceorder": "normal",
            },
            "hoverlabel": {"align": "left"},
            "hovermode": "closest",
            "dragmode": False,
            "xaxis": axis(x_title),
            "yaxis": axis(y_title),
        }
    )
    figure.update_layout(**layout)
    return figure


def axis(title: str, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - plotly's
    """Return an axis with its title and units."""
    return {
        "title": {"text": safe(title), "standoff": 8},
        "gridcolor": _GRID,
        "zeroline": False,
        "automargin": True,
        # A finger that scrolls the page must not zoom a plot.
        "fixedrange": True,
        **more,
    }


def count_axis(title: str, values: Sequence[int], **more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return an axis of whole numbers that covers all values."""
    span = max(values) - min(values)
    every = {"dtick": 1} if span <= _TICKS else {}
    return axis(title, range=[min(values) - 0.8, max(values) + 0.8], **every, **more)


def symbol_points(
    figure: go.Figure,
    *,
    name: str,
    x: Sequence[float],
    y: Sequence[Any],
    text: Sequence[str],
    colour: str,
    symbol: str = "circle",
    size: int = 10,
    **more: Any,  # noqa: ANN401 - plotly's
) -> None:
    """Add points, each with a hover text that is already safe from markup."""
    figure.add_scatter(
        x=list(x),
        y=list(y),
        mode="markers",
        name=short_name(name),
        text=list(text),
        hovertemplate="%{text}<extra></extra>",
        marker={
            "color": colour,
            "symbol": symbol,
            "size": size,
            "line": {"width": 1, "color": GREY},
        },
        **more,
    )


# At most this share of the launches, the slowest, is off the scale,
_MOST_OFF_SCALE = 0.2
# and only if the scale becomes shorter by at least this factor.
_LEAST_FACTOR = 3.0
_PADDING = 0.08


def readable_range(
    values: Sequence[float], *, is_higher_better: bool, kept: Sequence[float] = ()
) -> tuple[float, float] | None:
    """Return the ends of a scale without the slowest launches, or None if none is left out.

    The values `kept` are on the scale in any case.
    """
    best_first = sorted(values, reverse=is_higher_better)

    def span(count: int) -> tuple[float, float]:
        shown = [*best_first[: len(best_first) - count], *kept]
        return min(shown), max(shown)

    left_out = 0
    for count in range(1, int((len(values) + 1) * _MOST_OFF_SCALE) + 1):
        if _length(span(count)) * _LEAST_FACTOR < _length(span(left_out)):
            left_out = count
    if not left_out:
        return None
    low, high = span(left_out)
    padding = _PADDING * (high - low or abs(high))
    return low - padding, high + padding


def _length(ends: tuple[float, float]) -> float:
    return ends[1] - ends[0]
