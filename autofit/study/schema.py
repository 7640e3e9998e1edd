"""Versions of the files in a study folder, and the steps from each to the next.

| schema | since | change                                                                      |
| ------ | ----- | --------------------------------------------------------------------------- |
| 1      | 0.1.0 | first: study.json, trials/NNNN.json, skipped.jsonl                          |
| 2      | 0.2.0 | a trial's purpose in typed fields; `layout` names layouts only              |

Every file carries its own `schema`, because a study may be resumed by a newer autofit.
Files are upgraded when read and keep what was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autofit.errors import AutofitError

SCHEMA = 2

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


_ROUND = re.compile(r"(?:round|repeat) (\d+)(?: of (.+))?")
_KL = re.compile(r"answers of (\S+) against \S+ KV by .+: (kept|scored)")
_ANSWERS = re.compile(r"answers of (?:the|a) (baseline|finalist|winner)( with .+)?")


def _type_purpose(document: Document) -> Document:
    """Put into typed fields what a trial or mark of schema 1 says in a sentence."""
    phase, text = document["phase"], document.pop("purpose", "")
    layout = document.get("layout", "")
    is_side = phase == "confirm" and layout in ("A", "B")
    return {
        **document,
        **_purpose_fields(phase, text),
        # A comparison named its side in the layout, and launched both as they were given.
        "layout": "" if is_side else layout,
        "is_verbatim": is_side or layout == "runtime_fit",
    }


def _purpose_fields(phase: str, text: str) -> Document:
    if phase == "baseline":
        return {"role": "baseline"}
    if phase in ("boundary", "search"):
        is_check = text == "does it fit?"
        return {"role": "fit_check"} if is_check else {"role": "explore", "reason": text}
    if phase == "confirm":
        found = _ROUND.fullmatch(text)
        if found is None:
            return {"role": "round"}
        return {"role": "round", "round": int(found[1]), "side": found[2] or ""}
    if found := _KL.fullmatch(text):
        types = found[1].split("/")
        role = "kl_base" if found[2] == "kept" else "kl_score"
        return {"role": role, "kv_types": [types[0], types[-1]]}
    if found := _ANSWERS.fullmatch(text):
        is_reference = found[1] == "baseline" or found[2]
        role = "reference_answers" if is_reference else "answers"
        return {"role": role, "subject": found[1]}
    return {"role": "proof"}


def _mark_own_settings(document: Document) -> Document:
    """Mark a winner that is the baseline, which schema 1 says by the name of its layout."""
    winner = (document.get("result") or {}).get("winner")
    if not isinstance(winner, dict):
        return document
    is_baseline = winner.get("layout") in ("frozen", "runtime_fit")
    winner = {**winner, "is_baseline": is_baseline}
    return {**document, "result": {**document["result"], "winner": winner}}


# Keyed by the schema a step starts from: adding schema 3 adds STEPS[2].
STEPS: Mapping[int, Step] = {
    1: Step(study=_mark_own_settings, trial=_type_purpose, mark=_type_purpose)
}


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
