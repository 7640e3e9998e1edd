"""One JSON document of a study folder as text, with its schema version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.study.schema import SCHEMA, Kind, upgrade

# What reading a document of unknown origin can raise besides OSError and AutofitError.
DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


def dump(data: Mapping[str, Any]) -> str:
    """The data as text of the current schema."""
    return json.dumps({"schema": SCHEMA, **data}, indent=1) + "\n"


def read(path: Path, kind: Kind) -> dict[str, Any]:
    """The data of a file as the current schema has it, without its version.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a JSON object, or carries no schema.
        AutofitError: it is from a newer autofit, or too old to be upgraded.
    """
    data = json.loads(path.read_bytes().decode("utf-8"))
    if not isinstance(data, dict):
        msg = "not a JSON object"
        raise ValueError(msg)  # noqa: TRY004 - the file is at fault, not the caller
    return current(data, kind)


def current(data: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """The data as the current schema has it, without its version.

    Raises:
        ValueError: it carries no schema.
        AutofitError: it is from a newer autofit, or too old to be upgraded.
    """
    upgraded = upgrade(dict(data), kind)
    del upgraded["schema"]
    return upgraded


def brief(error: Exception) -> str:
    """An error in one short line."""
    return (f"{type(error).__name__}: {error}".splitlines() or [""])[0][:200]
