"""JSON documents of a study folder: schema versions, upgrades, and a check of types.

| schema | since | change                                                                      |
| ------ | ----- | --------------------------------------------------------------------------- |
| 1      | 0.1.0 | first: study.json, trials/NNNN.json, skipped.jsonl                          |
| 2      | 0.2.0 | a trial's purpose in typed fields; `layout` names layouts only              |

Every file has its own `schema`, because a newer autofit can resume a study. Files are upgraded
when they are read, and are not rewritten.
"""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from autofit.errors import AutofitError
from autofit.input_files import read_json

SCHEMA = 2
# Reading a document of unknown origin can raise these, OSError and AutofitError.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)

Document = dict[str, Any]
Kind = Literal["study", "trial", "mark", "skipped"]


def dump_document(data: Mapping[str, Any]) -> str:
    """Return data as text of the current schema."""
    return json.dumps({"schema": SCHEMA, **data}, indent=1) + "\n"


def read_document(path: Path, kind: Kind) -> Document:
    """Return the data of a file in the current schema, without its version.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a JSON object, or has no schema.
        AutofitError: it is from a newer autofit, or too old to be upgraded.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        msg = "not a JSON object"
        raise ValueError(msg)  # noqa: TRY004 - the file is at fault, not the caller
    return upgrade(data, kind)


def describe_error(error: Exception) -> str:
    """Return an error as one short line."""
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]


def _unchanged(document: Document) -> Document:
    return document


@dataclass(frozen=True, slots=True)
class SchemaUpgrade:
    """The changes from one schema to the next, by kind of file."""

    study: Callable[[Document], Document] = _unchanged
    trial: Callable[[Document], Document] = _unchanged
    mark: Callable[[Document], Document] = _unchanged
    skipped: Callable[[Document], Document] = _unchanged


_ROUND = re.compile(r"(?:round|repeat) (\d+)(?: of (.+))?")
_KL = re.compile(r"answers of (\S+) against \S+ KV by .+: (kept|scored)")
_ANSWERS = re.compile(r"answers of (?:the|a) (baseline|finalist|winner)( with .+)?")


def _type_purpose(document: Document) -> Document:
    """Convert the sentence of a trial or mark of schema 1 to typed fields."""
    phase, text = document["phase"], document.pop("purpose", "")
    layout = document.get("layout", "")
    is_side = phase == "confirm" and layout in ("A", "B")
    return {
        **document,
        **_purpose_fields(phase, text),
        # The layout of a comparison was the name of its side, and both were verbatim.
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
        types_ = found[1].split("/")
        role = "kl_base" if found[2] == "kept" else "kl_score"
        return {"role": role, "kv_types": [types_[0], types_[-1]]}
    if found := _ANSWERS.fullmatch(text):
        is_reference = found[1] == "baseline" or found[2]
        role = "reference_answers" if is_reference else "answers"
        return {"role": role, "subject": found[1]}
    return {"role": "proof"}


def _mark_own_settings(document: Document) -> Document:
    """Mark a winner that is the baseline; schema 1 marked it with the name of its layout."""
    winner = (document.get("result") or {}).get("winner")
    if not isinstance(winner, dict):
        return document
    is_baseline = winner.get("layout") in ("frozen", "runtime_fit")
    winner = {**winner, "is_baseline": is_baseline}
    return {**document, "result": {**document["result"], "winner": winner}}


# By the schema that an upgrade starts from: schema 3 will add UPGRADES[2].
UPGRADES: Mapping[int, SchemaUpgrade] = {
    1: SchemaUpgrade(study=_mark_own_settings, trial=_type_purpose, mark=_type_purpose)
}


def upgrade(
    document: Mapping[str, Any],
    kind: Kind,
    *,
    upgrades: Mapping[int, SchemaUpgrade] = UPGRADES,
    current: int = SCHEMA,
) -> Document:
    """Return a copy of a document in the current schema, without its version.

    Raises:
        AutofitError: it is from a newer autofit, or too old to be upgraded.
        ValueError: it has no schema.
    """
    upgraded = dict(document)
    version = upgraded.pop("schema", None)
    if not isinstance(version, int) or isinstance(version, bool):
        msg = "no schema version"
        raise ValueError(msg)  # noqa: TRY004 - the file is at fault, not the caller
    if version > current:
        raise AutofitError(
            f"written by a newer autofit (schema {version}, this one knows {current})",
            "upgrade autofit to read this study",
        )
    for old in range(version, current):
        if old not in upgrades:
            raise AutofitError(
                f"schema {version} is no longer supported",
                "read this study with the autofit that wrote it",
            )
        change: Callable[[Document], Document] = getattr(upgrades[old], kind)
        upgraded = change(dict(upgraded))
    return upgraded


def require_types(value: Any, prefix: str = "") -> None:  # noqa: ANN401 - any dataclass
    """Check that every field of a dataclass, and of dataclasses in it, has its declared type.

    Python does not check them, and a damaged file would cause an error much later.

    Raises:
        TypeError: a field has another type; the message names it.
    """
    for name, hint in _field_types(type(value)).items():  # type: ignore[arg-type] # types are hashable
        field = getattr(value, name)
        if not _has_type(field, hint, f"{prefix}{name}"):
            raise TypeError(f"{prefix}{name} cannot be {field!r:.40}")


@cache
def _field_types(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _has_type(value: Any, hint: Any, name: str) -> bool:  # noqa: ANN401 - any annotation
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin is Literal:
        return isinstance(value, type(inner[0]))  # a newer autofit can have more words
    if origin in (Union, types.UnionType):
        return any(_has_type(value, one, name) for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_has_type(v, inner[0], name) for v in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _has_type(key, inner[0], name) and _has_type(one, inner[1], name)
            for key, one in value.items()
        )
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and not isinstance(value, hint):
        return False
    if is_dataclass(value):
        require_types(value, f"{name}.")
    return True
