"""Whether what was read from a file has the types that its dataclass promises.

Python does not check them, and a damaged file would be noticed only by who uses the value.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_known_hints: dict[type, dict[str, Any]] = {}


def require_types(value: Any, name: str = "") -> None:  # noqa: ANN401 - any dataclass
    """See that every field of a dataclass, and of those in it, is of its type.

    Raises:
        TypeError: one is not; names it.
    """
    for field_name, hint in _hints(type(value)).items():
        _require(getattr(value, field_name), hint, f"{name}{field_name}")


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _known_hints:
        hints = get_type_hints(kind)
        _known_hints[kind] = {field.name: hints[field.name] for field in fields(kind)}
    return _known_hints[kind]


def _require(value: object, hint: Any, name: str) -> None:  # noqa: ANN401 - any annotation
    if not _is(value, hint, name):
        raise TypeError(f"{name} cannot be {value!r:.40}")


def _is(value: Any, hint: Any, name: str) -> bool:  # noqa: ANN401 - any annotation
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any or hint is object:
        return True
    if origin is Literal:
        return isinstance(value, type(inner[0]))  # a newer autofit may know more words
    if origin in (Union, types.UnionType):
        return any(_fits(value, one, name) for one in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(v, inner[0], name) for v in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _is(key, inner[0], name) and _is(one, inner[1], name) for key, one in value.items()
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


def _fits(value: object, hint: Any, name: str) -> bool:  # noqa: ANN401 - any annotation
    """Whether it is one kind of several; of a dataclass its fields are looked at, too."""
    if hint is type(None):
        return value is None
    return _is(value, hint, name)
