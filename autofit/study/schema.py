"""Versions of the files in a study folder, and the steps from each to the next.

| schema | since | change                                                                      |
| ------ | ----- | --------------------------------------------------------------------------- |
| 1      | 0.1.0 | first: study.json, trials/NNNN.json, skipped.jsonl                          |

Every file carries its own `schema`, because a study may be resumed by a newer autofit.
Files are upgraded when read and keep what was written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autofit.errors import AutofitError

SCHEMA = 1

Document = dict[str, Any]
Kind = Literal["study", "trial", "mark", "skipped"]


def _unchanged(document: Document) -> Document:
    return document


@dataclass(frozen=True, slots=True)
class Step:
    """How files of one schema become files of the next."""

    study: Callable[[Document], Document] = _unchanged
    trial: Callable[[Document], Document] = _unchanged
    mark: Callable[[Document], Document] = _unchanged
    skipped: Callable[[Document], Document] = _unchanged


# Keyed by the schema a step starts from: adding schema 2 adds STEPS[1].
STEPS: Mapping[int, Step] = {}


def upgrade(
    document: Document,
    kind: Kind,
    *,
    steps: Mapping[int, Step] = STEPS,
    current: int = SCHEMA,
) -> Document:
    """The document as the current schema has it; the one given is not changed.

    Raises:
        AutofitError: it is from a newer autofit, or too old to be upgraded.
        ValueError: it carries no schema.
    """
    version = document.get("schema")
    if not isinstance(version, int) or isinstance(version, bool):
        msg = "no schema version"
        raise ValueError(msg)  # noqa: TRY004 - the file is at fault, not the caller
    if version > current:
        raise AutofitError(
            f"written by a newer autofit (schema {version}, this one knows {current})",
            "upgrade autofit to read this study",
        )
    upgraded = dict(document)
    for old in range(version, current):
        if old not in steps:
            raise AutofitError(
                f"schema {version} is no longer supported",
                "read this study with the autofit that wrote it",
            )
        change: Callable[[Document], Document] = getattr(steps[old], kind)
        upgraded = change(dict(upgraded))
        upgraded["schema"] = old + 1
    return upgraded
