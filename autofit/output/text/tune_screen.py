"""The last screen of a tune: at most 20 lines of 80 columns, with the command to run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
from autofit.output.text.result_table import FRONT_HEAD, front_rows
from autofit.output.text.screen_parts import (
    FIGURES,
    MAX_NOTICES,
    SCREEN_LINES,
    headroom_texts,
    print_figures,
    print_head,
    print_links,
    print_notices,
)
from autofit.study.study_header import StudyHeader
from autofit.text_format import one_line, shown_path

_COLUMNS = 80
# A longer command, such as one with an override for each layer, is left to its file.
_MAX_COMMAND = 5 * _COLUMNS
_MAX_FRONT = 5
# Title, result, proof, and where the files are, with the blank lines.
_FIXED_LINES = 7


def print_tune_result(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a tune; `autofit show` and the report have the rest."""
    found = make_conclusion(result)
    winner = result.get("winner") or {}
    front = _front_rows(result) if winner else []
    command = _command(found, result)
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
    print_links(result, hidden, console, *_preset(result))


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


def _command(found: Conclusion, result: Mapping[str, Any]) -> str:
    """Return the command to run, or one that runs its file if the command is very long."""
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


def _preset(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if result.get("preset"):
        front = " (fewest seconds per request)" if result.get("pareto") else ""
        yield "preset", shown_path(result["preset"]) + front
