"""Shell text split into simple commands, as far as possible without running anything.

The parser understands quotes, continued lines, comments, variables, arrays, `source`, `cd`, the
script's own folder, redirections, here-documents and lists of commands. Loops, conditions, the
output of commands and variables that are set elsewhere can only be evaluated by a shell. Such text
is marked, and only a command that uses a mark is refused. `shlex` splits the words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.formats.preset_format import open_preset_file
from autofit.presets.formats.shell_idioms import (
    arithmetic,
    here_document_end,
    is_windows_path,
    own_folder,
    skip_here_document,
)
from autofit.presets.formats.shell_state import BLOCK_WORDS, ShellState
from autofit.presets.formats.variable_expansion import mark_unknown, without_marks
from autofit.presets.server_entry import ServerEntry

_PIECE = re.compile(
    r"""
      (?P<continued>\\\n)
    | (?P<escape>\\.)
    | (?P<single>'[^']*')
    | (?P<array>(?<![^\s;&|])[A-Za-z_]\w*\+?=\()
    | (?P<computed>\$\(|`|[<>]\()
    | (?P<double>")
    | (?P<variable>\$(?:\{[^{}\n]*\}|[A-Za-z_]\w*|[@*\#?!$0-9-]))
    | (?P<here><<)
    | (?P<joined>(?:(?<!\S)\d)?[<>]&(?:\d|-))
    | (?P<redirect>&>>?|(?:(?<!\S)\d)?(?:>>|>\||>|<))
    | (?P<operator>\n|;;|;|&&|\|\||\||&|\(|\))
    | (?P<comment>(?<![^\s;&|])\#[^\n]*)
    | (?P<plain>[\w./=:,+%@-]+|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE = re.compile(
    r'(?P<end>")|(?P<computed>\$\(|`)|(?P<continued>\\\n)|(?P<escape>\\[\\"$`])'
    r"|(?P<variable>\$(?:\{[^{}\n]*\}|[A-Za-z_]\w*|[@*#?!$0-9-]))|(?P<plain>[^\"$`\\]+|.)",
    re.DOTALL,
)
_PARENTHESIS = re.compile(r"\\.|'[^']*'|[()]", re.DOTALL)
# Programs that run the text of a here-document, perhaps on another machine.
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ssh", "sudo", "su", "docker", "podman"})
_MOST_PIECES = 20_000
_REDIRECTION = "\ue000"  # a private character before a redirection's file
_DEEPEST = 4  # files that read each other


def parse_shell(
    text: str, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> tuple[list[ServerEntry], dict[str, str]]:
    """Return the commands of a text, and the variables that it sets or `env` has.

    `folder` is that of the script, or None for a text without a file.

    Raises:
        ValueError: quotes or brackets are not closed, or a shell gets a here-document.
    """
    state = ShellState(dict(env or {}), dict(env or {}))
    _ShellParser(text, state, folder).parse()
    return state.commands, state.values


class _ShellParser:
    """A reader of a text from its start, which splits it into commands."""

    def __init__(
        self, text: str, state: ShellState, own_folder: Path | None, depth: int = 0
    ) -> None:
        self.text = text
        self.state = state
        self.own_folder = own_folder
        self.depth = depth
        self.here_delimiters: list[str] = []
        self.position = 0
        self._counted = 0, 1  # a position, and the line that it is in
        self.raw: list[str] = []  # the current command, as `shlex` is to read it
        self.start_line = 1

    @property
    def line(self) -> int:
        """The number of the current line."""
        position, line = self._counted
        line += self.text.count("\n", position, self.position)
        self._counted = self.position, line
        return line

    def parse(self) -> None:
        """Read the whole text."""
        pieces = 0
        while self.position < len(self.text):
            pieces += 1
            if pieces > _MOST_PIECES:
                raise ValueError("it is too long for a script that starts a server")
            piece = _PIECE.match(self.text, self.position)
            if piece is None or piece.lastgroup is None:  # every character is a piece
                break
            kind, text = piece.lastgroup, piece[0]
            if kind == "plain" and text in "'\"\\":
                raise ValueError(f"line {self.line}: a quote is not closed")
            if kind == "operator":
                self._end_command(text)
            if not self.raw and not text.isspace():
                self.start_line = self.line
            self.position = piece.end()
            if kind not in ("operator", "comment"):
                self.raw.append(self._shlex_text(kind, text))
            if text == "\n" and kind == "operator":
                self._skip_here_documents()
        self._end_command("\n")

    def _shlex_text(self, kind: str, text: str) -> str:
        """Convert a piece to the text that `shlex` gets."""
        match kind:
            case "escape":
                return self._escaped(text)
            case "array":
                return self._array(text)
            case "computed":
                return self._computed(text)
            case "double":
                return self._double_quoted()
            case "variable":
                return self._unquoted(text)
            case "here":
                return self._here_document()
            case "redirect":
                return f" {_REDIRECTION} "
        return {"continued": "", "joined": " "}.get(kind, text)

    def _escaped(self, text: str) -> str:
        if not is_windows_path(self.text, self.position - 2):
            return text
        fault = "a Windows path loses its backslashes unless it is quoted"
        return mark_unknown(f"line {self.line}: {fault}")

    def _here_document(self) -> str:
        """Note a here-document, which is skipped after the line; or skip a here-string."""
        if self.text.startswith("<", self.position):
            self.position += 1
            return f" {_REDIRECTION} "
        found = here_document_end(self.text, self.position)
        words = {Path(word).name for word in "".join(self.raw).split()}
        if found is None or words & _SHELLS:
            raise ValueError(f"line {self.line}: a here-document is not understood")
        delimiter, self.position = found
        self.here_delimiters.append(delimiter)
        return " "

    def _skip_here_documents(self) -> None:
        for delimiter in self.here_delimiters:
            end = skip_here_document(self.text, self.position, delimiter)
            if end is None:
                raise ValueError(f"line {self.line}: a here-document has no end")
            self.position = end
        self.here_delimiters = []

    def _array(self, start: str) -> str:
        """Keep the words of the array `NAME=( ... )`; return an empty assignment in its place."""
        name = start.rstrip("=(").rstrip("+")
        outer, self.raw = self.raw, []
        while True:
            piece = _PIECE.match(self.text, self.position)
            if piece is None or piece.lastgroup is None:
                raise ValueError(f"line {self.line}: a bracket is not closed")
            self.position = piece.end()
            if piece[0] == ")" and piece.lastgroup == "operator":
                break
            if piece.lastgroup == "operator":
                self.raw.append(" ")
            elif piece.lastgroup != "comment":
                self.raw.append(self._shlex_text(piece.lastgroup, piece[0]))
        before = self.state.arrays.get(name, []) if "+=" in start else []
        self.state.arrays[name] = [*before, *shlex.split("".join(self.raw))]
        self.raw = outer
        return f"{name}="

    def _computed(self, start: str) -> str:
        """Skip the output of a command, and mark its place."""
        line = self.line
        is_backquote = start == "`"
        end = self.text.find("`", self.position) if is_backquote else self._closing_parenthesis()
        if end < 0:
            raise ValueError(f"line {line}: a command substitution has no end")
        command = self.text[self.position : end]
        shown = " ".join(self.text[self.position - len(start) : end + 1].split())
        self.position = end + 1
        output = own_folder(command, self.own_folder) or arithmetic(command, self.state.values)
        if output is not None:
            return output
        return mark_unknown(f"line {line}: only a shell can evaluate {shown[:40]}")

    def _closing_parenthesis(self) -> int:
        depth = 1
        for found in _PARENTHESIS.finditer(self.text, self.position):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if depth == 0:
                return found.start()
        return -1

    def _double_quoted(self) -> str:
        """Return the text up to the closing quote, quoted for `shlex`."""
        line, parts = self.line, list[str]()
        while piece := _IN_DOUBLE.match(self.text, self.position):
            kind, text = piece.lastgroup, piece[0]
            self.position = piece.end()
            if kind == "end":
                return shlex.quote("".join(parts))
            if kind == "computed":
                parts.append(self._computed(text))
            elif kind == "variable":
                array = re.fullmatch(r"\$\{(\w+)\[@\]\}", text)
                if text in ("$@", "$*", "${@}") or (array and array[1] in self.state.arrays):
                    # Alone in its quotes it becomes several words.
                    self.position += self.text.startswith('"', self.position)
                    return shlex.join(self.state.arrays[array[1]]) if array else " "
                parts.append(self._value(text))
            elif kind != "continued":
                parts.append(text[1:] if kind == "escape" else text)
        raise ValueError(f"line {line}: a quote is not closed")

    def _unquoted(self, expansion: str) -> str:
        """Return the value of a variable outside quotes, split into words."""
        if expansion in ("$@", "$*"):
            return " "
        array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", expansion)
        if array and array[1] in self.state.arrays:
            return shlex.join(self.state.arrays[array[1]])
        return " ".join(map(shlex.quote, self._value(expansion).split()))

    def _value(self, expansion: str) -> str:
        folder = own_folder(expansion, self.own_folder)
        return self.state.value(expansion, self.line) if folder is None else folder

    def _end_command(self, operator: str) -> None:
        raw, self.raw = "".join(self.raw), []
        words = _without_redirections(shlex.split(raw))
        while words and words[0] in BLOCK_WORDS:
            self.state.enter_or_leave(words.pop(0), self.start_line)
        if words and words[-1] == "{" and words[0].endswith("()"):
            words = []
        if len(words) > 1 and words[0] in ("source", "."):
            self._source(words[1])
        elif words:
            self.state.run(words, self.start_line)
        if operator in "()":
            self.state.enter_or_leave(operator, self.start_line)

    def _source(self, name: str) -> None:
        """Take the variables of a file that the script reads."""
        path = Path(self.state.folder or self.own_folder or "", Path(name).expanduser())
        text = _read_sourced(path) if self.state.reads_file(name) else None
        if text is not None and self.depth < _DEEPEST:
            with suppress(ValueError):
                state = self.state.for_file()
                _ShellParser(text, state, path.absolute().parent, self.depth + 1).parse()
                return
        self.state.unread.append(without_marks(name))


def _read_sourced(path: Path) -> str | None:
    """Return the text of a file that a script reads, or None if it cannot be read."""
    try:
        return open_preset_file(path).text
    except UsageError:
        return None


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == _REDIRECTION:
            next(rest, None)
        else:
            kept.append(word)
    return kept
