"""Command lines of Windows: programs split them into arguments themselves, by these rules."""

from __future__ import annotations

import re

from autofit.errors import UsageError
from autofit.presets.preset import Preset
from autofit.text_format import one_line

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PIECE = re.compile(r'(?P<slashes>\\*)"|(?P<text>\\+|[ \t\n]+|[^\\" \t\n]+)')
_HINT = "use the format `json`, which holds any text"


def split_words(line: str) -> list[str]:
    """Return the arguments that a program gets from a command line.

    White space separates them outside of double quotes. Backslashes are special only before a
    quote: each pair becomes one backslash, and a single one makes the quote a plain character.
    Within quotes, two quotes are one plain quote.
    """
    words: list[str | None] = [None]
    is_quoted = False
    position = 0
    while piece := _PIECE.match(line, position):
        position = piece.end()
        slashes, text = piece["slashes"], piece["text"]
        if text is not None and text.isspace() and not is_quoted:
            words.append(None)
            continue
        word = words[-1] or ""
        if text is not None:
            word += text
        elif len(slashes) % 2:
            word += slashes[: len(slashes) // 2] + '"'
        else:
            word += slashes[: len(slashes) // 2]
            if is_quoted and line.startswith('"', position):
                word += '"'
                position += 1
            else:
                is_quoted = not is_quoted
        words[-1] = word
    return [word for word in words if word is not None]


def quote_word(word: str) -> str:
    """Return an argument in double quotes, as `split_words` reads it."""
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', word)
    return '"' + re.sub(r"(\\+)$", r"\1\1", escaped) + '"'


def refuse_unwritable(preset: Preset, format_name: str, allowed_controls: str) -> None:
    """Refuse a preset with text that a script of Windows cannot hold.

    Raises:
        UsageError: a text has a control character that is not allowed, or is not valid Unicode. Or
            a variable is empty, has an unusual name, or differs from another one only in case.
    """
    if len({name.upper() for name in preset.env}) < len(preset.env):
        names = ", ".join(preset.env)
        raise UsageError(
            f"the format '{format_name}' cannot hold variables that differ only in case: {names}",
            _HINT,
        )
    for name, value in preset.env.items():
        if not _NAME.fullmatch(name) or not value:
            fault = "without a value" if _NAME.fullmatch(name) else "of this name"
            raise UsageError(
                f"the format '{format_name}' cannot hold a variable {fault}: {one_line(name)}",
                _HINT,
            )
    for text in (*preset.argv, *preset.env.values()):
        controls = (c for c in text if (c < " " or c == "\x7f") and c not in allowed_controls)
        if any(controls):
            fault = "a line break or another control character"
        elif any("\ud800" <= character <= "\udfff" for character in text):
            fault = "bytes that are not UTF-8"
        else:
            continue
        raise UsageError(
            f"the format '{format_name}' cannot hold {fault}: {one_line(text)}", _HINT
        )
