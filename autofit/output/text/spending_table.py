"""What a run spent where, as a small table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autofit.text_format import duration, one_line

Row = tuple[str, ...]
SPENT_TITLE = "what was spent where"
SPENT_HEAD: Row = ("spent on", "how closely", "launches", "time", "share")
_FIDELITIES = {
    "load": "loads, takes first ubatches",
    "short": "short requests",
    "full": "full requests",
}


def spent_rows(result: Mapping[str, Any]) -> tuple[Row, ...]:
    """A row for each phase and fidelity, then what no launch took; empty where nobody tells."""
    spent = result.get("spent")
    return tuple(_rows(spent)) if spent else ()


def _rows(spent: Mapping[str, Any]) -> Iterator[Row]:
    launches, asked = spent["by_phase"], spent["by_fidelity"]["estimate"]
    own_s = spent["own_seconds"]
    total_s = sum(row["seconds"] for row in launches) + asked["seconds"] + own_s

    def cells(on: str, how: str, count: str, seconds: float) -> Row:
        share = f"{seconds / total_s:.0%}" if total_s else ""
        return (one_line(on), how, count, duration(seconds), share)

    for row in launches:
        how = _FIDELITIES.get(row["fidelity"], "not recorded")
        yield cells(row["phase"], how, str(row["launches"]), row["seconds"])
    if asked["questions"]:
        count = f"{asked['questions']} asked"
        yield cells("estimator", "questions, no launch", count, asked["seconds"])
    yield cells("autofit itself", "computing, writing", "", own_s)
