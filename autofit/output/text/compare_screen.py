"""A comparison on the terminal: its last screen, and the table of all its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.output.text.conclusion import conditions_text
from autofit.output.text.console import print_table
from autofit.output.text.result_table import METRIC_NAMES
from autofit.output.text.screen_parts import (
    FIGURES,
    figure_text,
    print_head,
    print_links,
    print_notices,
)
from autofit.study.study_header import StudyHeader
from autofit.text_format import UNKNOWN, as_fast, estimate, mib, one_line, times_text
from autofit.trial.device import HOST_NAME

COMPARISON_HEAD = ("", "A", "B", "speed of B")
_REQUESTS = (("first_request", "first request"), ("second_request", "second request"))
_MAX_MESSAGES = 3
_MAX_DEVICES = 4
_SIDES = ("a", "b")


def print_comparison(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a comparison; `autofit show` and the report have the rest."""
    headline, *others = (one_line(message) for message in result["words"])
    print_head(header, headline, console)
    for message in others[:_MAX_MESSAGES]:
        console.print(Text(message), no_wrap=True, overflow="ellipsis")
    print_table(console, "", COMPARISON_HEAD, _screen_rows(result), cuts=True)
    conditions = result.get("conditions")
    warnings = [conditions_text(conditions)] if conditions and conditions["words"] else []
    hidden = print_notices(warnings, (), console, most=1)
    console.print()
    for side in _SIDES:
        name = result[side]["name"]
        shown = Text(f"{side.upper()}  {one_line(name)}")
        console.print(shown, no_wrap=True, overflow="ellipsis")
    hidden += len(others[_MAX_MESSAGES:]) + len(result.get("notes") or ())
    print_links(result, hidden, console)


def _screen_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the figures that decide, and the memory that each device had left."""
    a, b = (result[side] for side in _SIDES)
    for name, key, unit in FIGURES:
        texts = (figure_text(side["estimates"].get(key), unit) for side in (a, b))
        ratio = result["ratios"].get(key)
        speed = times_text(ratio["median"], ratio["low"], ratio["high"]) if ratio else UNKNOWN
        yield (name, *texts, speed)
    yield "load", *(figure_text(side["load_s"], "s") for side in (a, b)), ""
    devices = dict.fromkeys((*a["free_mib"], *b["free_mib"]))
    for device in [name for name in devices if name != HOST_NAME][:_MAX_DEVICES]:
        free = (mib(side["free_mib"].get(device)) for side in (a, b))
        yield f"left on {one_line(device)}", *free, ""


def print_all_figures(result: Mapping[str, Any], console: Console) -> None:
    """Print the table of all figures of both sides."""
    rows = ([one_line(cell) for cell in row] for row in comparison_rows(result))
    print_table(console, "", COMPARISON_HEAD, rows)


def comparison_rows(result: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield each figure of both sides as cells under `COMPARISON_HEAD`."""
    a, b, ratios = result["a"], result["b"], result["ratios"]
    yield "preset", a["name"], b["name"], ""
    yield "runtime", a["runtime"], b["runtime"], ""
    for key, name in METRIC_NAMES:
        sides = (estimate(side["estimates"].get(key)) for side in (a, b))
        yield (name, *sides, _speed(ratios.get(key)))
    for request, request_name in _REQUESTS:
        for key, unit in (("pp_per_s", "prompt tokens/s"), ("ttft_s", "s to first token")):
            sides = (estimate(side[request].get(key)) for side in (a, b))
            yield (f"{request_name}, {unit}", *sides, _speed(ratios.get(f"{request}_{key}")))
    yield "seconds to load", estimate(a["load_s"]), estimate(b["load_s"]), ""
    for device in dict.fromkeys((*a["peak_mib"], *b["peak_mib"])):
        used = (mib(side["peak_mib"].get(device)) for side in (a, b))
        yield (f"{device} at the peak", *used, "")
        free = (mib(side["free_mib"].get(device)) for side in (a, b))
        yield (f"{device} left free", *free, "")


def _speed(ratio: Mapping[str, Any] | None) -> str:
    return as_fast(ratio["median"], ratio["low"], ratio["high"]) if ratio else UNKNOWN
