"""Shell text split into simple commands, as far as possible without running anything.

Understood are quotes, continued lines, comments, variables that the text itself sets, arrays,
`cd`, redirections and lists of commands. Text that only a shell can evaluate (loops, conditions,
the output of a command, variables set elsewhere) is marked, so that only a command that needs it
is refused. `shlex` splits the words.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autofit.presets.formats.variable_expansion import (
    mark_unknown,
    parameter_value,
    unknown_reasons,
)

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
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BLOCK_STARTS = frozenset({"if", "for", "while", "until", "case", "select", "{", "("})
_BLOCK_ENDS = frozenset({"fi", "done", "esac", "}", ")"})
_BLOCK_WORDS = frozenset({"then", "else", "elif", "do", "in", "!"})
_WINDOWS_PATH = re.compile(r"(?<![\w./-])[A-Za-z]:\Z")
_LONGEST_VALUE = 1 << 16
_MOST_PIECES = 20_000
_REDIRECTION = "\ue000"  # a private character before a redirection's file
# Extended by scripts, and known: autofit has them from the same shell.
_INHERITED = ("HOME", "USER", "PATH", "LD_LIBRARY_PATH")


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One command with the variables exported before it.

    `folder` is the folder of the `cd` before it, or None without one. Text that only a shell can
    evaluate is marked as unknown. `faults` are reasons why its folder is not known, or why it may
    not run at all.
    """

    words: tuple[str, ...]
    line: int
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    faults: tuple[str, ...] = ()


def parse_shell(
    text: str, env: Mapping[str, str] | None = None
) -> tuple[list[SimpleCommand], dict[str, str]]:
    """Return the commands of a text, and the variables that it sets or `env` has.

    Raises:
        ValueError: quotes or brackets are not closed, or the text has a here-document.
    """
    parser = _ShellParser(text, dict(env or {}))
    parser.parse()
    return parser.commands, parser.values


class _ShellParser:
    """The state of reading a text from its start: variables, arrays, folder, open blocks."""

    def __init__(self, text: str, env: dict[str, str]) -> None:
        self.text = text
        self.position = 0
        self._counted = 0, 1  # a position, and the line that it is in
        self.exported = env
        self.values = dict(env)
        self.arrays: dict[str, list[str]] = {}
        self.reasons: dict[str, str] = {}  # why a variable has no value, by name
        self.folder: Path | None = None
        self.folder_faults: tuple[str, ...] = ()
        self.exports_all = False
        self.blocks: list[str] = []
        self.raw: list[str] = []  # the current command, as `shlex` is to read it
        self.start_line = 1
        self.commands: list[SimpleCommand] = []

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
                raise ValueError(f"line {self.line}: a here-document is not understood")
            case "redirect":
                return f" {_REDIRECTION} "
        return {"continued": "", "joined": " "}.get(kind, text)

    def _escaped(self, text: str) -> str:
        if not _WINDOWS_PATH.search(self.text, 0, self.position - 2):
            return text
        fault = "a Windows path loses its backslashes unless it is quoted"
        return mark_unknown(f"line {self.line}: {fault}")

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
        before = self.arrays.get(name, []) if "+=" in start else []
        self.arrays[name] = [*before, *shlex.split("".join(self.raw))]
        self.raw = outer
        return f"{name}="

    def _computed(self, start: str) -> str:
        """Skip the output of a command, and mark its place."""
        line = self.line
        is_backquote = start == "`"
        end = self.text.find("`", self.position) if is_backquote else self._closing_parenthesis()
        if end < 0:
            raise ValueError(f"line {line}: a command substitution has no end")
        shown = " ".join(self.text[self.position - len(start) : end + 1].split())
        self.position = end + 1
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
                if text in ("$@", "$*", "${@}") or (array and array[1] in self.arrays):
                    # Alone in its quotes it becomes several words.
                    self.position += self.text.startswith('"', self.position)
                    return shlex.join(self.arrays[array[1]]) if array else " "
                parts.append(self._value(text))
            elif kind != "continued":
                parts.append(text[1:] if kind == "escape" else text)
        raise ValueError(f"line {line}: a quote is not closed")

    def _unquoted(self, expansion: str) -> str:
        """Return the value of a variable outside quotes, split into words."""
        if expansion in ("$@", "$*"):
            return " "
        array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", expansion)
        if array and array[1] in self.arrays:
            return shlex.join(self.arrays[array[1]])
        return " ".join(map(shlex.quote, self._value(expansion).split()))

    def _value(self, expansion: str) -> str:
        name = expansion.strip("${}")
        value = parameter_value(name, self.values)
        if value is None and name in _INHERITED and name not in self.reasons:
            value = os.environ.get(name, "")
        if value is None:
            reason = self.reasons.get(re.split(r"\W", name)[0])
            return mark_unknown(reason or f"line {self.line}: {expansion} has no value here")
        if len(value) > _LONGEST_VALUE:
            raise ValueError(f"line {self.line}: the value of {name} is too long")
        return value

    def _end_command(self, operator: str) -> None:
        raw, self.raw = "".join(self.raw), []
        words = _without_redirections(shlex.split(raw))
        while words and words[0] in _BLOCK_STARTS | _BLOCK_ENDS | _BLOCK_WORDS:
            self._enter_or_leave(words.pop(0))
        if words and words[-1] == "{" and words[0].endswith("()"):
            words = []
        if words:
            self._run(words)
        if operator in "()":
            self._enter_or_leave(operator)

    def _enter_or_leave(self, word: str) -> None:
        if word in _BLOCK_STARTS:
            self.blocks.append(f"line {self.start_line}: `{word}`")
        elif word in _BLOCK_ENDS and self.blocks:
            self.blocks.pop()

    def _run(self, words: list[str]) -> None:
        """Apply the effect of a shell builtin; keep any other command."""
        verb = words[0]
        if verb in ("export", "declare", "readonly", "local", "typeset"):
            self._assign(words[1:], exports=verb == "export" or "-x" in words[1:2])
        elif all(_ASSIGNMENT.fullmatch(word) for word in words):
            self._assign(words, exports=self.exports_all)
        elif verb == "cd" and len(words) > 1:
            self.folder_faults = unknown_reasons(words[-1:])
            self.folder = (self.folder or Path()) / Path(words[-1]).expanduser()
        elif verb == "set":
            if "allexport" in words or any(re.fullmatch(r"-\w*a\w*", word) for word in words):
                self.exports_all = True
        elif verb == "unset":
            for name in words[1:]:
                self.values.pop(name, None)
                self.exported.pop(name, None)
        else:
            self._keep(words)

    def _assign(self, words: list[str], *, exports: bool) -> None:
        for word in words:
            found = _ASSIGNMENT.fullmatch(word)
            name, value = (found[1], found[2]) if found else (word, self.values.get(word))
            if value is None:
                continue
            faults = unknown_reasons([value])
            if self.blocks:
                faults = (f"{self.blocks[-1]} decides the value of {name}",)
            if faults:
                self.reasons[name] = faults[0]
                self.values.pop(name, None)
            elif found:
                self.values[name] = value
            if exports or name in self.exported:
                self.exported[name] = mark_unknown(faults[0]) if faults else value

    def _keep(self, words: list[str]) -> None:
        faults: tuple[str, ...] = ()
        if any(_is_relative(word) for word in words):
            faults = self.folder_faults
        if self.blocks:
            faults = (*faults, f"{self.blocks[-1]} begins a block that contains the command")
        self.commands.append(
            SimpleCommand(
                words=tuple(words),
                line=self.start_line,
                env=dict(self.exported),
                folder=self.folder,
                faults=faults,
            )
        )


def _is_relative(word: str) -> bool:
    """Return whether a word looks like a file name that depends on the folder."""
    plain = word.rpartition("=")[2]
    return not plain.startswith(("/", "-", "~")) and ("/" in plain or plain.endswith(".gguf"))


def _without_redirections(words: list[str]) -> list[str]:
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == _REDIRECTION:
            next(rest, None)
        else:
            kept.append(word)
    return kept
