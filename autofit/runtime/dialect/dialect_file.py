"""Dialect files: read, extended by one level, checked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import RootModel
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect

# Lists in which an extending file's entries come before the other's; others are replaced.
_PREPENDED = ("refuse", "failures")
# Taken from the file's path, so not to be written in it.
_IMPLIED = ("name", "path")


class _DialectFile(RootModel[Dialect]):
    """The whole file as a pydantic model."""


def load_dialect(name: str) -> Dialect:
    """The dialect of a name or of an explicit path.

    Raises:
        UsageError: there is none, or its file is faulty; faults come as `file:line: what`.
    """
    path = yaml_files.find("dialect", name).resolve()
    return _load(path, path.stat().st_mtime_ns)


def load_all_dialects() -> dict[str, Dialect]:
    """Every dialect that can be found by name.

    Raises:
        UsageError: a file is faulty.
    """
    return {name: load_dialect(str(path)) for name, path in find_dialect_files().items()}


def find_dialect_files() -> dict[str, Path]:
    """The file of every dialect that can be found by name."""
    return yaml_files.available("dialect")


@lru_cache(maxsize=64)
def _load(path: Path, _modified_ns: int) -> Dialect:
    data = _read(path)
    if "extends" in data:
        data = _extended(data, path)
    for key, value in (("name", path.stem), ("path", str(path))):
        data.insert(0, key, value)
        data.lc.add_kv_line_col(key, [0, 0, 0, 0])
    return yaml_files.validate(data, _DialectFile, path).root


@lru_cache(maxsize=64)
def _parent(path: Path, _modified_ns: int) -> CommentedMap:
    """What another dialect's file says; shared, so not to be changed."""
    return _read(path)


def _read(path: Path) -> CommentedMap:
    data = yaml_files.read_yaml(path)
    if not isinstance(data, CommentedMap):
        raise UsageError(f"{path}:1: a dialect is a mapping of sections")
    for key in _IMPLIED:
        if key in data:
            line = yaml_files.line_of(data, (key,))
            raise UsageError(f"{path}:{line}: {key}: is taken from the file's name, leave it out")
    return data


def _extended(data: CommentedMap, path: Path) -> CommentedMap:
    line = yaml_files.line_of(data, ("extends",))
    parent = yaml_files.find("dialect", str(data["extends"])).resolve()
    parent_data = _parent(parent, parent.stat().st_mtime_ns)
    if "extends" in parent_data:
        raise UsageError(
            f"{path}:{line}: extends: {parent.stem} extends another dialect itself",
            f"extend {parent_data['extends']} instead: one level is allowed",
        )
    _load(parent, parent.stat().st_mtime_ns)  # its faults are told as its own
    _merge(data, parent_data)
    return data


def _merge(ours: CommentedMap, theirs: CommentedMap) -> None:
    """Fill our mapping with what is only in theirs, key by key; our null takes a key away.

    What is taken over gets the line of our mapping, for messages about the whole.
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
