"""The document that `sweep --json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autofit.sweep.verdict import EntryVerdict


def sweep_document(verdicts: Sequence[EntryVerdict]) -> dict[str, Any]:
    """The verdicts as JSON data; an entry can have both regressions and improvements.

    `regressions`, `improvements` and `skipped` are names of entries, in their order.
    """
    return {
        "entries": [one.to_dict() for one in verdicts],
        "regressions": [one.name for one in verdicts if one.verdict == "regression"],
        "improvements": [one.name for one in verdicts if one.improvements],
        "skipped": [one.name for one in verdicts if one.verdict == "skipped"],
    }
