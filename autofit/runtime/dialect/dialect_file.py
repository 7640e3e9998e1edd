"""Dialect files: reading, extending by one level, and checking."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import RootModel
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect

# In these lists the entries of the extending file are put before the others. Other lists are
# replaced.
_PREPENDED = ("refuse", "failures")
# Keys that come from the file's path.
_IMPLIED = ("name", "path")
# Keys of `log: facts` that have no effect any more; files of users may still contain them.
_UNUSED_FACTS = ("missing_device", "prompt_timing", "generate_timing")


class _DialectFile(RootModel[Dialect]):
    """A whole dialect file as a pydantic model."""


def load_dialect(name: str) -> Dialect:
    """Return the dialect with a name or at an explicit path.

    Raises:
        UsageError: there is none, or its file is faulty; faults have the form `file:line: text`.
    """
    path = yaml_files.find("dialect", name).resolve()
    return _load(path, path.stat().st_mtime_ns)


def load_all_dialects() -> dict[str, Dialect]:
    """Return every dialect that can be found by name.

    Raises:
        UsageError: a file is faulty.
    """
    return {name: load_dialect(str(path)) for name, path in find_dialect_files().items()}


def find_dialect_files() -> dict[str, Path]:
    """Return the file of every dialect that can be found by name."""
    return yaml_files.available("dialect")


def load_parameter_types() -> dict[str, str]:
    """Return the type of each parameter of any dialect; faulty dialects are left out."""
    types: dict[str, str] = {}
    for path in find_dialect_files().values():
        with suppress(UsageError):
            found = load_dialect(str(path)).parameters
            types |= {name: parameter.type for name, parameter in found.items()}
    return types


@lru_cache(maxsize=64)
def _load(path: Path, _modified_ns: int) -> Dialect:
    data = _read(path)
    if "extends" in data:
        _extend(data, path)
    for key, value in (("name", path.stem), ("path", str(path))):
        data.insert(0, key, value)
        data.lc.add_kv_line_col(key, [0, 0, 0, 0])
    return yaml_files.validate(data, _DialectFile, path).root


def _read(path: Path) -> CommentedMap:
    data = yaml_files.read_yaml(path)
    if not isinstance(data, CommentedMap):
        raise UsageError(f"{path}:1: a dialect must be a mapping of sections")
    for key in _IMPLIED:
        if key in data:
            line = yaml_files.line_of(data, (key,))
            raise UsageError(f"{path}:{line}: {key}: is taken from the file's name, leave it out")
    facts = data["log"].get("facts") if isinstance(data.get("log"), CommentedMap) else None
    if isinstance(facts, CommentedMap):
        for key in _UNUSED_FACTS:
            facts.pop(key, None)
    return data


@lru_cache(maxsize=64)
def _read_parent(path: Path, _modified_ns: int) -> CommentedMap:
    """Return the data of another dialect's file; they are shared and must not be changed."""
    return _read(path)


def _extend(data: CommentedMap, path: Path) -> None:
    line = yaml_files.line_of(data, ("extends",))
    parent = yaml_files.find("dialect", str(data["extends"])).resolve()
    modified_ns = parent.stat().st_mtime_ns
    parent_data = _read_parent(parent, modified_ns)
    if "extends" in parent_data:
        raise UsageError(
            f"{path}:{line}: extends: {parent.stem} extends another dialect itself",
            f"extend {parent_data['extends']} instead: one level is allowed",
        )
    _load(parent, modified_ns)  # reports the parent's faults with the parent's lines
    _merge(data, parent_data)


def _merge(ours: CommentedMap, theirs: CommentedMap) -> None:
    """Add the keys that only the other mapping has; a null in ours removes a key.

    Added keys get the line of our mapping, for messages about the whole.
    """
    line, column = ours.lc.line or 0, ours.lc.col or 0
    for key, value in theirs.items():
        if key not in ours:
            ours[key] = value
            ours.lc.add_kv_line_col(key, [line, column, line, column])
        elif ours[key] is None:
            del ours[key]
        elif isinstance(ours[key], CommentedMap) and isinstance(value, CommentedMap):
            _merge(ours[key], value)
        elif key in _PREPENDED and isinstance(ours[key], CommentedSeq):
            _append(ours[key], value)


def _append(ours: CommentedSeq, theirs: Any) -> None:  # noqa: ANN401 - YAML can be anything
    for item in theirs:
        ours.lc.add_idx_line_col(len(ours), [ours.lc.line, ours.lc.col])
        ours.append(item)
