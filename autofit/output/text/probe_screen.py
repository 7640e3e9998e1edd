"""The last screen of a probe: at most 20 lines of 80 columns, with a row for each boundary."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from autofit.output.text.conclusion import make_conclusion
from autofit.output.text.console import print_table
from autofit.output.text.result_table import BOUNDARY_TITLE, boundary_row
from autofit.output.text.screen_parts import (
    headroom_texts,
    print_head,
    print_links,
    print_notices,
)
from autofit.study.study_header import StudyHeader
from autofit.text_format import UNKNOWN, shown_path

_HEAD = ("layout", "KV type", "ubatch", "fits", "fails", "proven", "left where it fits")
_MAX_ROWS = 8


def print_probe_result(result: Mapping[str, Any], header: StudyHeader, console: Console) -> None:
    """Print the result of a probe; `autofit show` and the report have the rest."""
    found = make_conclusion(result)
    print_head(header, found.headline, console)
    boundaries = result["boundary"]
    rows = [_row(row) for row in boundaries[:_MAX_ROWS]]
    if len(boundaries) > _MAX_ROWS:
        rows.append((f"{len(boundaries) - _MAX_ROWS} more", *("",) * (len(_HEAD) - 1)))
    print_table(console, BOUNDARY_TITLE, _HEAD, rows, cuts=True)
    hidden = print_notices(found.warnings, found.notes, console, most=2)
    console.print()
    model = shlex.quote(shown_path(header.model_path))
    print_links(result, hidden, console, ("next", f"autofit tune {model}"))


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    layout, cache_type, ubatch, fits, fails, _, proven = boundary_row(row)
    left = ", ".join(text.replace(" left", "") for text in headroom_texts(row["free_mib"] or {}))
    return (layout, cache_type, ubatch, fits, fails, proven, left or UNKNOWN)
