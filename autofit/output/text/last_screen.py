"""The last screen of a tune, a probe and a comparison: at most 20 lines of 80 columns."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from autofit.output.text.conclusion import (
    Conclusion,
    conditions_text,
    describe_speedup,
    has_own_settings,
    make_conclusion,
)
from autofit.output.text.console import print_facts, print_table
from autofit.output.text.result_table import BOUNDARY_TITLE, FRONT_HEAD, boundary_row, front_rows
from autofit.study.study_header import StudyHeader
from autofit.text_format import UNKNOWN, mib, number, one_line, shown_path, times_text
from autofit.trial.device import HOST_NAME

MAX_NOTICES = 3
SCREEN_LINES = 20
_COLUMNS = 80
# A longer command, such as one with an override for each layer, is left to its file.
_MAX_COMMAND = 5 * _COLUMNS
_MAX_FRONT = 5
# Title, result, proof, and where the files are, with the blank lines.
_FIXED_LINES = 7
_BOUNDARY_HEAD = ("layout", "KV type", "ubatch", "fits", "fails", "proven", "left where it fits")
_MAX_BOUNDARIES = 8
_MAX_MESSAGES = 3
_MAX_DEVICES = 4
_SIDES = ("a", "b")
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


def print_tune_result(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a tune; `autofit show` and the report have the rest."""
    found = make_conclusion(result)
    winner = result.get("winner") or {}
    front = _front_rows(result) if winner else []
    command = _winner_command(found, result)
    print_head(header, describe_speedup(result) if winner else found.headline, console)
    if winner:
        console.print(Text(_proof(winner)))
        for message in _answer_messages(result):
            console.print(Text(message), no_wrap=True, overflow="ellipsis")
        if front:
            print_table(console, "", FRONT_HEAD, front, cuts=True)
        else:
            _print_sides(result, winner, console)
        print_facts(console, found.expert_facts)
    taken = _FIXED_LINES + len(_answer_messages(result)) + len(found.expert_facts)
    taken += 1 + len(front or FIGURES) + math.ceil(len(command) / _COLUMNS)
    most = max(0, min(MAX_NOTICES, SCREEN_LINES - taken))
    hidden = print_notices(found.warnings, found.notes, console, most=most)
    if command:
        console.print()
        # Only the terminal may break it: a line that rich breaks cannot be pasted.
        console.print(Text(command), soft_wrap=True)
    print_links(result, hidden, console, *_preset_link(result))


def _proof(winner: Mapping[str, Any]) -> str:
    proof = "proven at full context" if winner.get("proven") else "NOT proven at full context"
    return ", ".join((proof, *headroom_texts(winner.get("free_mib") or {})))


def _answer_messages(result: Mapping[str, Any]) -> list[str]:
    """Return what the winner's settings do to the answers, if these were compared."""
    return [one_line(message) for message in (result.get("answers") or {}).get("words", ())][:1]


def _front_rows(result: Mapping[str, Any]) -> Sequence[tuple[str, ...]]:
    """Return the best trade-offs, the preset's first, without the settings that all share."""
    front = sorted(result.get("pareto") or (), key=lambda row: not row.get("is_preset"))
    rows = front_rows(front)
    more = len(rows) - _MAX_FRONT
    if more <= 0:
        return rows
    return [*rows[:_MAX_FRONT], ("", "", "", "", f"{more} more: see autofit show")]


def _winner_command(found: Conclusion, result: Mapping[str, Any]) -> str:
    """Return the command to run. A very long one is replaced by a command that runs its file."""
    preset = result.get("preset")
    if len(found.command) <= _MAX_COMMAND or not preset:
        return found.command
    file = Path(preset).with_suffix(".args")
    return f"sh {shlex.quote(shown_path(file))}"


def _print_sides(result: Mapping[str, Any], winner: Mapping[str, Any], console: Console) -> None:
    baseline_name = "own settings" if has_own_settings(result) else "baseline"
    baseline = (result.get("baseline") or {}).get("estimates") or {}
    sides = {baseline_name: baseline, "tuned": winner.get("estimates") or {}}
    if winner.get("is_baseline"):
        del sides["tuned"]
    print_figures(sides, console)


def _preset_link(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if result.get("preset"):
        front = " (fewest seconds per request)" if result.get("pareto") else ""
        yield "preset", shown_path(result["preset"]) + front


def print_probe_result(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a probe; `autofit show` and the report have the rest."""
    found = make_conclusion(result)
    print_head(header, found.headline, console)
    boundaries = result["boundary"]
    rows = [_boundary_cells(row) for row in boundaries[:_MAX_BOUNDARIES]]
    if len(boundaries) > _MAX_BOUNDARIES:
        rows.append(
            (f"{len(boundaries) - _MAX_BOUNDARIES} more", *("",) * (len(_BOUNDARY_HEAD) - 1))
        )
    print_table(console, BOUNDARY_TITLE, _BOUNDARY_HEAD, rows, cuts=True)
    hidden = print_notices(found.warnings, found.notes, console, most=2)
    console.print()
    model = shlex.quote(shown_path(header.model_path))
    print_links(result, hidden, console, ("next", f"autofit tune {model}"))


def _boundary_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    layout, cache_type, ubatch, fits, fails, _, proven = boundary_row(row)
    left = ", ".join(text.replace(" left", "") for text in headroom_texts(row["free_mib"] or {}))
    return (layout, cache_type, ubatch, fits, fails, proven, left or UNKNOWN)


def print_comparison(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a comparison; `autofit show` and the report have the rest."""
    headline, *others = (one_line(message) for message in result["words"])
    print_head(header, headline, console)
    for message in others[:_MAX_MESSAGES]:
        console.print(Text(message), no_wrap=True, overflow="ellipsis")
    print_table(console, "", ("", "A", "B", "speed of B"), _screen_rows(result), cuts=True)
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
