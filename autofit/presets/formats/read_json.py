"""Documents of autofit itself that hold a launch command: presets, results, plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.presets.entry import Entry

_PROGRAM = "llama-server"


def entries_of_document(data: Mapping[str, Any]) -> list[Entry]:
    """The command of a preset, of a tune's winner, or of a plan's recommended layout.

    Raises:
        ValueError, TypeError: there is none, or it is no list of words.
    """
    part = _part(data)
    argv = part.get("argv")
    if argv is None:
        argv = [_PROGRAM, *part["args"]] if isinstance(part.get("args"), list) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(w, str) for w in argv):
        raise ValueError("its `argv` is no list of words")
    env = part.get("env") or {}
    if not isinstance(env, Mapping):
        raise TypeError("its `env` is no mapping of names to texts")
    return [Entry("command", tuple(argv), {str(name): str(text) for name, text in env.items()})]


def _part(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a document that holds the command."""
    for keys in (("winner",), ("result", "winner")):
        part: Any = data
        for key in keys:
            part = part.get(key) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping):
            return part
    if "layouts" in data and "argv" not in data:
        named = [one for one in data["layouts"] if one.get("name") == data.get("recommended")]
        return named[0] if named else data
    return data
