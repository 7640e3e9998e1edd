"""The parts that the last screens of several commands share.

Such a screen has at most 20 lines of 80 columns. `autofit show` and the report have the rest.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.output.text.console import print_facts, print_table
from autofit.study.study_header import StudyHeader
from autofit.text_format import UNKNOWN, mib, number, one_line, shown_path
from autofit.trial.device import HOST_NAME

MAX_NOTICES = 3
SCREEN_LINES = 20
FIGURES = (
    ("request", "request_s", "s"),
    ("prompt", "pp_per_s", "tokens/s"),
    ("generation", "tg_per_s", "tokens/s"),
    ("first token", "ttft_s", "s"),
)


def print_head(header: StudyHeader, headline: str, console: Console) -> None:
    """Print what was measured, and the result in one sentence."""
    console.print()
    console.print(Text(title(header), style="dim"), no_wrap=True, overflow="ellipsis")
    console.print(Text(headline, style="bold"))


def title(header: StudyHeader) -> str:
    """Return model, workload, context and devices of a run."""
    workload = header.workload
    limits = header.options.get("devices_mib") or {}
    devices = "; ".join(_short_name(one, limits) for one in header.environment.devices) or "CPU"
    return one_line(f"{header.model_name}, {workload.name}, context {workload.context}, {devices}")


def _short_name(device: str, limits_mib: Mapping[str, float | None]) -> str:
    """Return a device without the vendor, with the memory that the run may use."""
    short = device.replace("NVIDIA ", "").replace("GeForce ", "")
    limit_mib = limits_mib.get(device.partition(":")[0])
    return short if limit_mib is None else f"{short.rpartition(', ')[0]}, {mib(limit_mib)}"


def headroom_texts(free_mib: Mapping[str, float | None]) -> list[str]:
    """Return the memory that each device had left at the peak."""
    return [
        f"{mib(amount)} left on {one_line(name)}"
        for name, amount in free_mib.items()
        if name != HOST_NAME and amount is not None
    ]


def print_figures(sides: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print the measured speeds, with a column for the estimates of each side."""
    rows = [
        (name, *(figure_text(estimates.get(key), unit) for estimates in sides.values()))
        for name, key, unit in FIGURES
        if any(estimates.get(key) for estimates in sides.values())
    ]
    if rows:
        print_table(console, "", ("", *sides), rows)


def figure_text(estimate: Mapping[str, Any] | None, unit: str) -> str:
    """Return the median of an estimate with its unit."""
    return f"{number(estimate.get('median'))} {unit}" if estimate else UNKNOWN


def print_notices(
    warnings: Iterable[str], notes: Iterable[str], console: Console, *, most: int = MAX_NOTICES
) -> int:
    """Print warnings, then the latest notes, each on one line; return how many are left out."""
    texts = [(warning, "yellow") for warning in warnings]
    latest = [(f"notice: {note}", "") for note in notes]
    room = max(0, most - len(texts))
    shown = [*texts[:most], *latest[max(0, len(latest) - room) :]]
    for text, style in shown:
        console.print(Text(text, style=style), no_wrap=True, overflow="ellipsis")
    return len(texts) + len(latest) - len(shown)


def print_links(
    result: Mapping[str, Any], hidden: int, console: Console, *links: tuple[str, str]
) -> None:
    """Print where files are, and the command that shows the rest with `hidden` notices."""
    more = f" ({hidden} more notice{'s' * (hidden != 1)})" if hidden else ""
    show = f"autofit show {shlex.quote(shown_path(result['study']))}{more}"
    print_facts(console, [*links, ("more", show)])
