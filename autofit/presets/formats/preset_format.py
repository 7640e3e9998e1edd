"""A file format of presets, and a file that is read in one of them."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.input_files import parse_json, read_input
from autofit.presets.formats.variable_expansion import without_private
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading_metadata
from autofit.presets.server_entry import ServerEntry

LARGEST_BYTES = 1 << 18
_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_YAML_SUFFIXES = (".yaml", ".yml")
_YAML_START = re.compile(r"^(?:models|services)\s*:", re.MULTILINE)
_HINT = "give a file that starts a server, or the launch command in quotes"


@dataclass(frozen=True)
class PresetFile:
    """The text of a file that a user gave, with its path."""

    path: Path
    text: str
    has_byte_order_mark: bool = False

    @cached_property
    def data(self) -> Mapping[str, Any] | None:
        """The data of a JSON or YAML file, None for any other file.

        Raises:
            ValueError, TypeError: the JSON is damaged, or not an object.
            UsageError: the YAML is damaged.
        """
        if self.is_json:
            data = parse_json(self.text)
        elif self.path.suffix.lower() in _YAML_SUFFIXES or _YAML_START.search(self.text):
            data = yaml_files.read_yaml(self.path)
        else:
            return None
        if not isinstance(data, dict):
            raise TypeError("it is a list or a single value, not an object")
        return data

    @property
    def is_json(self) -> bool:
        """True for a JSON document, by its suffix or its first character."""
        return self.path.suffix.lower() == ".json" or self.text.lstrip().startswith("{")

    def has(self, key: str) -> bool:
        """Return whether its data have a top-level key."""
        return self.data is not None and key in self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFormat:
    """One file format: how presets are written in it, and how servers are read from it.

    `write` takes several presets if `holds_several`, and exactly one otherwise. It raises a
    UsageError if the format cannot hold a value. `read` raises a ValueError or TypeError for a
    faulty file. It is None for a format that is read as shell text. `metadata` returns what
    autofit recorded in a file. `notices` are what a user must know of a written preset.
    `entry_name` is the model's name in the file. `names_servers` is true if servers have names in
    such files.
    """

    suffix: str
    write: Callable[[Sequence[Preset]], str]
    holds_several: bool = False
    recognizes: Callable[[PresetFile], bool] = lambda file: False  # noqa: ARG005
    read: Callable[[PresetFile], list[ServerEntry]] | None = None
    metadata: Callable[[PresetFile], Mapping[str, Any]] = lambda file: heading_metadata(file.text)
    notices: Callable[[Preset], list[str]] = lambda preset: []  # noqa: ARG005
    entry_name: Callable[[Preset], str] = lambda preset: preset.model_name
    names_servers: bool = False
    is_program: bool = False


def open_preset_file(path: Path) -> PresetFile:
    """Read a text file, with line ends as on Unix and without a byte order mark.

    Bytes that are not UTF-8 are kept as Python keeps them in file names.

    Raises:
        UsageError: it cannot be read, or is not a regular file, too large, binary or empty.
    """
    try:
        data = read_input(path, LARGEST_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", _HINT) from error
    if data.startswith(b"GGUF"):
        raise UsageError(f"{path} is a model, not a launch command", _HINT)
    text = _decoded(data, path)
    if not text.strip():
        raise UsageError(f"{path} is empty", _HINT)
    text = without_private(_with_unix_ends(text))
    return PresetFile(path, text, data.startswith(tuple(_BYTE_ORDER_MARKS)))


def _with_unix_ends(text: str) -> str:
    """Return a text with line ends as on Unix; a carriage return in a value stays."""
    if text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    return text if "\n" in text else text.replace("\r", "\n")


def _decoded(data: bytes, path: Path) -> str:
    marks = _BYTE_ORDER_MARKS.items()
    encoding = next((name for mark, name in marks if data.startswith(mark)), None)
    try:
        text = data.decode(encoding) if encoding else os.fsdecode(data)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid text: {error}", _HINT) from error
    if "\0" in text:
        raise UsageError(f"{path} is a binary file", _HINT)
    return text
