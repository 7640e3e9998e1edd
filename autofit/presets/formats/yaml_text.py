"""YAML as autofit writes it: double-quoted scalars, which every reader takes for text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from autofit.errors import UsageError

# JSON leaves these as they are, YAML does not allow them.
_NOT_PRINTABLE = re.compile(r"[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


def quoted(text: str) -> str:
    """The text as a double-quoted scalar on one line.

    Raises:
        UsageError: it is no valid Unicode, so no YAML file can hold it.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"a YAML file cannot hold {text!r}: it is not valid Unicode",
            "rename the file, or use the formats `args` or `shell`",
        ) from error
    shown = json.dumps(text, ensure_ascii=False)
    for separator in "\x85\u2028\u2029":  # a line break to some readers
        shown = shown.replace(separator, f"\\u{ord(separator):04x}")
    return _NOT_PRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)


def indented(lines: Iterable[str], columns: int) -> list[str]:
    """The lines moved to the right."""
    return [" " * columns + line if line else line for line in lines]


def flow_list(key: str, groups: Sequence[Sequence[str]]) -> list[str]:
    """A list under a key, one line for each group of its words."""
    if not groups:
        return [f"{key}: []"]
    return [f"{key}: [", *(f"  {', '.join(map(quoted, group))}," for group in groups), "]"]
