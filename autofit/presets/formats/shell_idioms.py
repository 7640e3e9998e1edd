"""Common texts of shell scripts that can be evaluated without a shell.

These are the script's own folder, arithmetic, here-documents, and paths of Windows.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Mapping
from pathlib import Path

# A script's own name, with links resolved or not.
_OWN_NAME = r"(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?\})"
_OWN_FILE = rf"(?:{_OWN_NAME}|\$\((?:readlink-e?f|realpath){_OWN_NAME}\))"
_OWN_FOLDER = rf"dirname{_OWN_FILE}"
# Without blanks, quotes and `--`: `dirname FILE`, or `cd $(dirname FILE)/more && pwd`.
_FOLDER_COMMAND = re.compile(
    rf"{_OWN_FOLDER}|cd\$\({_OWN_FOLDER}\)(?P<more>(?:/[\w.-]+)*)/?"
    r"(?:&?1?>/dev/null(?:2>&1)?)?&&pwd(?:-P)?"
)
_FOLDER_EXPANSION = re.compile(r"\$\{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}")
_ARITHMETIC = re.compile(r"\((.{1,80})\)", re.DOTALL)
_NAME = re.compile(r"\$?\{?\b([A-Za-z_]\w*)\b\}?")
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_HERE_DELIMITER = re.compile(r"-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.!-]+))")
# A word that begins as a path of Windows does, or that ends as a file does which has backslashes.
_WINDOWS_PATH = re.compile(
    r"(?:[A-Za-z]:|\.{1,2})\\\w|\\\\\w|[\w .:-]*(?:\\[\w .-]+)+\.(?:exe|gguf)\b"
)
_WORD_START = re.compile(r"[^\s'\"=]*\Z")


def own_folder(command: str, folder: Path | None) -> str | None:
    """Return the output of a command that prints the script's folder; None for any other one.

    `command` is the text of `$(...)`, or an expansion such as `${0%/*}`.
    """
    if folder is None:
        return None
    if _FOLDER_EXPANSION.fullmatch(command):
        return str(folder)
    found = _FOLDER_COMMAND.fullmatch(re.sub(r"[\"\s]|(?<=\s)--(?=\s)", "", command))
    if found is None:
        return None
    return str(Path(f"{folder}{found['more'] or ''}").resolve())


def arithmetic(command: str, values: Mapping[str, str]) -> str | None:
    """Return the value of `$((...))` with whole numbers; None for any other command.

    `command` is the text of `$(...)`. Variables have their `values`.
    """
    found = _ARITHMETIC.fullmatch(command)
    if found is None:
        return None
    text = _NAME.sub(lambda name: values.get(name[1], name[0]), found[1])
    try:
        return str(_number(ast.parse(text.strip(), mode="eval").body))
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            value = _OPERATIONS[type(op)](_number(left), _number(right))
            return int(value)
    raise TypeError(type(node).__name__)


def here_document_end(text: str, start: int) -> tuple[str, int] | None:
    """Return the delimiter of a here-document after `<<`, and where its word ends."""
    found = _HERE_DELIMITER.match(text, start)
    if found is None:
        return None
    return next(filter(None, found.groups())), found.end()


def skip_here_document(text: str, start: int, delimiter: str) -> int | None:
    """Return the end of a here-document's last line, or None if there is none."""
    last_line = re.compile(rf"^\t*{re.escape(delimiter)}$", re.MULTILINE)
    found = last_line.search(text, start)
    return found.end() if found else None


def is_windows_path(text: str, backslash: int) -> bool:
    """Return whether the word around a backslash is a path of Windows, without quotes."""
    before = _WORD_START.search(text, 0, backslash)
    start = before.start() if before else backslash
    return _WINDOWS_PATH.match(text, start) is not None
