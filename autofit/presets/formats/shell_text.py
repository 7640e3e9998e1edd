"""Shell text cut into simple commands, as far as that can be done without running anything.

Understood are quotes, continued lines, comments, variables that the text itself gives a value,
arrays of words, `cd`, redirections and lists of commands. What takes a shell to know (loops,
conditions, the output of a command, a variable of somebody else) is marked, so that only who
needs it has to refuse it. The words themselves are split by `shlex`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autofit.presets.formats.variables import parameter_value

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
_BRACKET = re.compile(r"\\.|'[^']*'|[()]", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "{", "("})
_CLOSING = frozenset({"fi", "done", "esac", "}", ")"})
_BETWEEN = frozenset({"then", "else", "elif", "do", "in", "!"})
_WINDOWS_PATH = re.compile(r"(?<![\w./-])[A-Za-z]:\Z")
_LONGEST = 1 << 16  # of a variable's value
_MOST_FAULTS = 5
_MOST_PIECES = 20_000
# Stand inside a word for the n-th thing that is not known, and before a redirection's file.
_UNKNOWN = re.compile("\ue001(\\d+)\ue002")
_REDIRECTION = "\ue000"
_MARKS = re.compile("[\ue000-\ue002]")


@dataclass(frozen=True, slots=True)
class SimpleCommand:
    """One command with what is set for it; `faults` tell what of it is not known.

    `env` is what was exported before it. `folder` is where it runs as `cd` says, None where
    the text begins.
    """

    words: tuple[str, ...]
    line: int
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    faults: tuple[str, ...] = ()


def simple_commands(text: str, env: Mapping[str, str] | None = None) -> list[SimpleCommand]:
    """Every command of a text; those that only set something are not among them.

    Raises:
        ValueError: quotes or brackets are not closed, or there is a here-document.
    """
    return _Reader(_MARKS.sub("\ufffd", text), dict(env or {})).read()


def shell_variables(text: str) -> dict[str, str]:
    """What a text of settings alone sets; without what takes a shell to know.

    Raises:
        ValueError: as `simple_commands`.
    """
    reader = _Reader(_MARKS.sub("\ufffd", text), {})
    reader.read()
    return reader.values


def shown(word: str) -> str:
    """A word for messages: what is not known in it is a question mark."""
    return _UNKNOWN.sub("?", word)


class _Reader:
    def __init__(self, text: str, env: dict[str, str]) -> None:
        self.text = text
        self.place = 0
        self._counted = 0, 1
        self.exported = env
        self.values: dict[str, str] = dict(env)
        self.arrays: dict[str, list[str]] = {}
        self.unknown: dict[str, int] = {}
        self.told: list[str] = []
        self.reasons: dict[str, str] = {}
        self.folder: Path | None = None
        self.folder_faults: tuple[str, ...] = ()
        self.exports_all = False
        self.blocks: list[str] = []
        self.raw: list[str] = []
        self.start_line = 1
        self.commands: list[SimpleCommand] = []

    @property
    def line(self) -> int:
        place, line = self._counted
        self._counted = self.place, line + self.text.count("\n", place, self.place)
        return self._counted[1]

    def read(self) -> list[SimpleCommand]:
        pieces = 0
        while self.place < len(self.text):
            pieces += 1
            if pieces > _MOST_PIECES:
                raise ValueError("it is too long for what starts a server")
            piece = _PIECE.match(self.text, self.place)
            if piece is None or piece.lastgroup is None:  # every character is a piece
                break
            kind, word = piece.lastgroup, piece[0]
            if kind == "plain" and word in "'\"\\":
                raise ValueError(f"line {self.line}: a quote is not closed")
            if kind == "operator":
                self._end(word)
            if not self.raw and not word.isspace():
                self.start_line = self.line
            self.place = piece.end()
            if kind not in ("operator", "comment"):
                self.raw.append(self._shell_word(kind, word))
        self._end("\n")
        return self.commands

    def _shell_word(self, kind: str, word: str) -> str:
        """A piece as `shlex` is to read it."""
        if kind == "continued":
            return ""
        if kind == "escape":
            if _WINDOWS_PATH.search(self.text, 0, self.place - 2):
                told = "a Windows path loses its backslashes unless it is quoted"
                return self._mark(f"line {self.line}: {told}")
            return word
        if kind == "array":
            return self._array(word)
        if kind == "computed":
            return self._computed(word)
        if kind == "double":
            return self._double()
        if kind == "variable":
            return self._unquoted(word)
        if kind == "here":
            raise ValueError(f"line {self.line}: a here-document is not understood")
        if kind == "joined":
            return " "
        return f" {_REDIRECTION} " if kind == "redirect" else word

    def _array(self, word: str) -> str:
        """The words of `NAME=( ... )`, kept; stands as an assignment of nothing."""
        name = word.rstrip("=(").rstrip("+")
        outer, self.raw = self.raw, []
        while True:
            piece = _PIECE.match(self.text, self.place)
            if piece is None or piece.lastgroup is None:
                raise ValueError(f"line {self.line}: a bracket is not closed")
            self.place = piece.end()
            if piece[0] == ")" and piece.lastgroup == "operator":
                break
            if piece.lastgroup == "operator":
                self.raw.append(" ")
            elif piece.lastgroup != "comment":
                self.raw.append(self._shell_word(piece.lastgroup, piece[0]))
        words = shlex.split("".join(self.raw))
        before = self.arrays.get(name, []) if "+=" in word else []
        self.arrays[name] = [*before, *words]
        self.raw = outer
        return f"{name}="

    def _computed(self, word: str) -> str:
        line = self.line
        is_old = word == "`"
        end = self.text.find("`", self.place) if is_old else self._closing(self.place)
        if end < 0:
            raise ValueError(f"line {line}: the output of a command is not closed")
        shown = " ".join(self.text[self.place - len(word) : end + 1].split())
        self.place = end + 1
        return self._mark(f"line {line}: {shown[:40]} takes a shell to know")

    def _closing(self, start: int) -> int:
        depth = 1
        for found in _BRACKET.finditer(self.text, start):
            depth += {"(": 1, ")": -1}.get(found[0], 0)
            if depth == 0:
                return found.start()
        return -1

    def _double(self) -> str:
        """What stands in double quotes, quoted as `shlex` keeps it."""
        line, parts = self.line, list[str]()
        while piece := _IN_DOUBLE.match(self.text, self.place):
            kind, word = piece.lastgroup, piece[0]
            self.place = piece.end()
            if kind == "end":
                return shlex.quote("".join(parts))
            if kind == "computed":
                parts.append(self._computed(word))
            elif kind == "variable":
                array = re.fullmatch(r"\$\{(\w+)\[@\]\}", word)
                if word in ("$@", "$*", "${@}") or (array and array[1] in self.arrays):
                    # Alone in its quotes, as it should be, it stands for several words.
                    self.place += self.text.startswith('"', self.place)
                    return shlex.join(self.arrays[array[1]]) if array else " "
                parts.append(self._value(word))
            elif kind != "continued":
                parts.append(word[1:] if kind == "escape" else word)
        raise ValueError(f"line {line}: a quote is not closed")

    def _unquoted(self, word: str) -> str:
        """A variable outside of quotes: its value is split into words."""
        if word in ("$@", "$*"):
            return " "
        array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word)
        if array and array[1] in self.arrays:
            return shlex.join(self.arrays[array[1]])
        value = self._value(word)
        return " ".join(shlex.quote(part) for part in value.split())

    def _value(self, word: str) -> str:
        name = word.strip("${}")
        value = parameter_value(name, self.values)
        if value is not None:
            if len(value) > _LONGEST:
                raise ValueError(f"line {self.line}: {name} grows without bounds")
            return value
        plain = re.split(r"\W", name)[0]
        reason = self.reasons.get(plain) or f"line {self.line}: {word} has no value here"
        return self._mark(reason)

    def _mark(self, reason: str) -> str:
        number = self.unknown.setdefault(reason, len(self.unknown))
        if number == len(self.told):
            self.told.append(reason)
        return f"\ue001{number}\ue002"

    def _faults(self, words: list[str]) -> tuple[str, ...]:
        found = sorted({int(number) for word in words for number in _UNKNOWN.findall(word)})
        return tuple(self.told[number] for number in found[:_MOST_FAULTS])

    def _end(self, operator: str) -> None:
        """End a command at an operator, and see what it does."""
        raw, self.raw = "".join(self.raw), []
        words = _without_redirections(shlex.split(raw))
        while words and words[0] in _OPENING | _CLOSING | _BETWEEN:
            self._turn(words.pop(0))
        if words and words[-1] == "{" and words[0].endswith("()"):
            words = []
        if words:
            self._take(words)
        if operator in "()":
            self._turn(operator)

    def _turn(self, word: str) -> None:
        if word in _OPENING:
            self.blocks.append(f"line {self.start_line}: `{word}`")
        elif word in _CLOSING and self.blocks:
            self.blocks.pop()

    def _take(self, words: list[str]) -> None:
        settings = [_ASSIGNMENT.fullmatch(word) for word in words]
        verb = words[0]
        if verb in ("export", "declare", "readonly", "local", "typeset"):
            self._assign(words[1:], exports=verb == "export" or "-x" in words[1:2])
        elif all(settings):
            self._assign(words, exports=self.exports_all)
        elif verb == "cd" and len(words) > 1:
            self.folder_faults = self._faults(words[-1:])
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
            faults = self._faults([value])
            if self.blocks:
                faults = (f"{self.blocks[-1]} decides what {name} is",)
            if faults:
                self.reasons[name] = faults[0]
                self.values.pop(name, None)
            elif found:
                self.values[name] = value
            if exports or name in self.exported:
                self.exported[name] = self._mark(faults[0]) if faults else value

    def _keep(self, words: list[str]) -> None:
        faults = self._faults([*words, *self.exported.values()])
        if any(_is_relative(word) for word in words):
            faults = (*faults, *self.folder_faults)
        if self.blocks:
            told = "begins a loop, condition or group that the command stands in"
            faults = (*faults, f"{self.blocks[-1]} {told}")
        self.commands.append(
            SimpleCommand(
                words=tuple(words),
                line=self.start_line,
                env=dict(self.exported),
                folder=self.folder,
                faults=tuple(dict.fromkeys(faults)),
            )
        )


def _is_relative(word: str) -> bool:
    """Whether a word looks like a file's name that depends on the folder."""
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
