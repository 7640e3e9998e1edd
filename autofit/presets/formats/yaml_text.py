"""YAML of llama-swap and compose: text as autofit writes it, and values as people write them.

Text is written as double-quoted scalars, which every reader takes for text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.errors import UsageError
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading

# JSON leaves these as they are, YAML does not allow them.
_NOT_PRINTABLE = re.compile(r"[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


def quoted(text: str) -> str:
    """Return the text as a double-quoted scalar on one line.

    Raises:
        UsageError: it is not valid Unicode, so that no YAML file can hold it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a YAML file cannot hold {text!r}: it is not valid Unicode",
            "rename the file, or use the formats `args` or `shell`",
        ) from error
    scalar = json.dumps(text, ensure_ascii=False)
    for separator in "\x85\u2028\u2029":  # a line break to some readers
        scalar = scalar.replace(separator, f"\\u{ord(separator):04x}")
    return _NOT_PRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", scalar)


def indented(lines: Iterable[str], columns: int) -> list[str]:
    """Return the lines moved to the right."""
    return [" " * columns + line if line else line for line in lines]


def flow_list(key: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """Return a list under a key, with one line for each group of its texts."""
    if not groups:
        return [f"{key}: []"]
    return [f"{key}: [", *(f"  {', '.join(map(quoted, group))}," for group in groups), "]"]


@dataclass(frozen=True, slots=True)
class EntryFormat:
    """A kind of YAML file with an entry for each preset below the key `top`.

    `name` is an entry's name, `key` the name as written in YAML. `parts` are the settings of an
    entry by key, each as lines of YAML. `notices` are what a user must know of an entry.
    """

    top: str
    name: Callable[[Preset], str]
    key: Callable[[Preset], str]
    parts: Callable[[Preset], Mapping[str, Sequence[str]]]
    notices: Callable[[Preset], Sequence[str]]

    def comments(self, preset: Preset) -> list[str]:
        """Return the heading of an entry as comments."""
        return [f"# {line}" for line in heading(preset, self.notices(preset))]

    def write(self, first_lines: Sequence[str], presets: Sequence[Preset]) -> str:
        """Return a file with an entry for each preset."""
        lines = [*first_lines, f"{self.top}:"]
        for preset in presets:
            lines += indented([*self.comments(preset), f"{self.key(preset)}:"], 2)
            for part in self.parts(preset).values():
                lines += indented(part, 4)
        return "\n".join(lines) + "\n"


def entries_below(data: Mapping[str, Any] | None, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names and settings of the entries below a top-level key.

    Raises:
        TypeError: it is not a mapping.
    """
    entries = (data or {})[key]
    if not isinstance(entries, Mapping):
        raise TypeError(f"`{key}` must be a mapping of names")
    return [(str(n), entry) for n, entry in entries.items() if isinstance(entry, Mapping)]


def scalar_text(value: object) -> str:
    """Return a scalar as text.

    Raises:
        TypeError: it is a list or a mapping, which might contain itself.
    """
    if not isinstance(value, str | bool | int | float):
        raise TypeError("found a list or a mapping, expected a text")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def as_list(value: object) -> list[Any]:
    """Return a list as it is, a single value as a list of one, and nothing for None."""
    if value is None:
        return []
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return list(value)
    return [value]


def variables_of(value: object) -> dict[str, str | None]:
    """Return variables given as a mapping or as a list of `NAME=TEXT`, or None without a value."""
    if isinstance(value, Mapping):
        texts = {str(name): text for name, text in value.items()}
        return {n: None if text is None else scalar_text(text) for n, text in texts.items()}
    pairs = (scalar_text(one).partition("=") for one in as_list(value))
    return {name: text if equals else None for name, equals, text in pairs}


def set_variables(value: object) -> dict[str, str]:
    """Return the variables that have a value."""
    return {name: text for name, text in variables_of(value).items() if text is not None}
