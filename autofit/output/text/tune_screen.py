"""The last screen of a tune: at most 20 lines of 80 columns, with the command to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.output.text.conclusion import (
    Conclusion,
    describe_speedup,
    has_own_settings,
    make_conclusion,
)
from autofit.output.text.console import print_facts, print_table
from autofit.study.study_header import StudyHeader
from autofit.text_format import UNKNOWN, mib, number, one_line
from autofit.trial.device import HOST_NAME

_MAX_WARNINGS = 3
_FIGURES = (
    ("request", "request_s", "s"),
    ("prompt", "pp_per_s", "tokens/s"),
    ("generation", "tg_per_s", "tokens/s"),
    ("first token", "ttft_s", "s"),
)


def print_tune_result(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a tune; `autofit show` and the report have the rest."""
    found = make_conclusion(result)
    winner = result.get("winner") or {}
    console.print()
    console.print(Text(title(header), style="dim"))
    console.print(Text(describe_speedup(result) if winner else found.headline, style="bold"))
    if winner:
        console.print(Text(_proof(winner)))
        _print_sides(result, winner, console)
        print_facts(console, found.expert_facts)
    notices = _notices(found)
    for text, style in notices:
        console.print(Text(text, style=style), no_wrap=True, overflow="ellipsis")
    if found.command:
        console.print()
        # Only the terminal may break it: a line that rich breaks cannot be pasted.
        console.print(Text(found.command), soft_wrap=True)
    hidden = len(found.warnings) + len(found.notes) - len(notices)
    print_facts(console, _links(result, hidden))


def title(header: StudyHeader) -> str:
    """Return model, workload, context and devices of a run."""
    workload = header.workload
    devices = "; ".join(map(_short_name, header.environment.devices)) or "CPU"
    return one_line(f"{header.model_name}, {workload.name}, context {workload.context}, {devices}")


def _short_name(device: str) -> str:
    """Return a device without the vendor, so that a title with one device fits its line."""
    return device.replace("NVIDIA ", "").replace("GeForce ", "")


def _proof(winner: Mapping[str, Any]) -> str:
    proof = "proven at full context" if winner.get("proven") else "NOT proven at full context"
    return ", ".join((proof, *headroom_texts(winner.get("free_mib") or {})))


def headroom_texts(free_mib: Mapping[str, float | None]) -> list[str]:
    """Return the memory that each device had left at the peak."""
    return [
        f"{mib(amount)} left on {one_line(name)}"
        for name, amount in free_mib.items()
        if name != HOST_NAME and amount is not None
    ]


def _print_sides(result: Mapping[str, Any], winner: Mapping[str, Any], console: Console) -> None:
    baseline_name = "own settings" if has_own_settings(result) else "baseline"
    baseline = (result.get("baseline") or {}).get("estimates") or {}
    sides = {baseline_name: baseline, "tuned": winner.get("estimates") or {}}
    if winner.get("is_baseline"):
        del sides["tuned"]
    print_figures(sides, console)


def print_figures(sides: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print the measured speeds, with a column for the estimates of each side."""
    rows = [
        (name, *(_figure(estimates.get(key), unit) for estimates in sides.values()))
        for name, key, unit in _FIGURES
        if any(estimates.get(key) for estimates in sides.values())
    ]
    if rows:
        print_table(console, "", ("", *sides), rows)


def _figure(estimate: Mapping[str, Any] | None, unit: str) -> str:
    return f"{number(estimate.get('median'))} {unit}" if estimate else UNKNOWN


def _notices(found: Conclusion) -> list[tuple[str, str]]:
    """Return warnings, then the latest notes, as texts with styles; three at most."""
    shown = [(warning, "yellow") for warning in found.warnings[:_MAX_WARNINGS]]
    room = _MAX_WARNINGS - len(shown)
    notes = found.notes[max(0, len(found.notes) - room) :] if room else ()
    return [*shown, *((f"notice: {note}", "") for note in notes)]


def _links(result: Mapping[str, Any], hidden: int) -> Iterator[tuple[str, str]]:
    if result.get("preset"):
        front = " (fewest seconds per request)" if result.get("pareto") else ""
        yield "preset", one_line(result["preset"]) + front
    more = f" ({hidden} more notice{'s' * (hidden != 1)})" if hidden else ""
    yield "more", one_line(f"autofit show {shlex.quote(str(result['study']))}") + more
