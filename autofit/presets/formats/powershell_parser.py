"""The part of PowerShell's language that launch scripts use: variables, arrays and commands.

What only PowerShell can evaluate becomes a mark of `variable_expansion`. A statement that decides
how a server starts is a command with a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autofit.presets.formats.variable_expansion import mark_unknown
from autofit.presets.server_entry import ServerEntry, is_program

# PowerShell takes each of these for a single quote.
QUOTES = "'\u2018\u2019\u201a\u201b"
_DOUBLE_QUOTES = '"\u201c\u201d\u201e'
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": ""}
_ASSIGNMENT = re.compile(
    r"(?:\[[\w.\[\]]+\]\s*)?\$(?:\{(?P<braced>[^{}]+)\}|(?P<name>[\w:]+))\s*(?P<sign>\+?=)(?!=)\s*"
)
_VARIABLE = re.compile(
    r"\$(?:\{(?P<braced>[^{}]+)\}|(?P<name>(?:env:|script:|global:)?\w+))", re.IGNORECASE
)
_KEYWORD = re.compile(
    r"(?:if|elseif|else|for|foreach|while|do|switch|function|try|catch|finally|param|trap)\b",
    re.IGNORECASE,
)
_BLOCK_NAME = re.compile(r"[^({\[\n;]*")  # of a function, or the type of an exception
_BLANKS = re.compile(r"(?:[ \t\r\ufeff]|`(?:\n|\Z)|#[^\n]*|<#.*?#>)*", re.DOTALL)
_BLANKS_AND_LINES = re.compile(r"(?:[ \t\r\ufeff\n]|`(?:\n|\Z)|#[^\n]*|<#.*?#>)*", re.DOTALL)
_IGNORED = re.compile(
    r"(?:write-\w+|clear-host|cls|pause|read-host|exit|return|set-strictmode|get-\w+|start-sleep"
    r"|set-executionpolicy|echo)(?![\w-])",
    re.IGNORECASE,
)
_LOCATION = ("cd", "set-location", "push-location", "pushd", "sl", "chdir")
_CLOSING = {"(": ")", "{": "}", "[": "]"}
_END_OF_WORD = " \t\r\n;|&,)}"
_REDIRECTION = re.compile(r"[*\d]?>>?(?:&\d)?")


# They take a program and a list of arguments, and separate arguments by commas.
START_PROCESS = ("start-process", "start", "saps")


def parse_powershell(text: str, script_folder: Path) -> list[ServerEntry]:
    """Return the commands of a script that may start servers.

    Raises:
        ValueError: a quote or bracket is not closed.
    """
    return list(_Parser(text, script_folder).statements())


@dataclass(slots=True)
class _Parser:
    """A parser of one script; `variables` have the elements of arrays, by lower-case names."""

    text: str
    script_folder: Path
    position: int = 0
    variables: dict[str, list[str]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def statements(self) -> Iterator[ServerEntry]:
        while self._skip_blanks(with_lines=True):
            start, line = self.position, self.text.count("\n", 0, self.position) + 1
            assignment = _ASSIGNMENT.match(self.text, self.position)
            if self._peek() in ";|&)}":
                self.position += 1
                if self.text[start] == "&":
                    yield from self._command(line)
            elif assignment:
                self.position = assignment.end()
                self._assign(assignment)
            elif _KEYWORD.match(self.text, self.position):
                yield from self._conditional(line)
            elif _IGNORED.match(self.text, self.position):
                self._skip_statement()
            else:
                yield from self._command(line)
            if self.position == start:
                self.position += 1

    def _peek(self, ahead: int = 0) -> str:
        return self.text[self.position + ahead : self.position + ahead + 1]

    def _skip_blanks(self, *, with_lines: bool) -> bool:
        """Skip spaces, comments and continued lines; return whether text is left."""
        self._skip(_BLANKS_AND_LINES if with_lines else _BLANKS)
        if self.text.startswith("<#", self.position):
            raise ValueError("a comment is not closed")
        return self.position < len(self.text)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position

    def _command(self, line: int) -> Iterator[ServerEntry]:
        words: list[str] = []
        has_comma = False
        env, folder = dict(self.env), self.folder
        while self._skip_blanks(with_lines=False) and self._peek() not in "\n;)}":
            redirection = _REDIRECTION.match(self.text, self.position)
            if self._peek() in "|&":
                self._skip_statement()  # what reads the output does not matter
                break
            if redirection:
                self.position = redirection.end()
                if not redirection[0][-1].isdigit():
                    self._skip_blanks(with_lines=False)
                    self._argument()
                continue
            if self._peek() == ",":
                has_comma = True
                self.position += 1
                self._skip_blanks(with_lines=True)
                continue
            words += self._argument()
        if not words:
            return
        if words[0].lower() in _LOCATION:
            places = [word for word in words[1:] if not word.startswith("-")]
            self.folder = Path(self.folder or "", *places)
            return
        faults = [f"line {line}: a comma outside of quotes makes two arguments of one"]
        is_list = has_comma and words[0].lower() not in START_PROCESS
        yield ServerEntry(
            f"line {line}", tuple(words), env, folder=folder, faults=tuple(faults * is_list)
        )

    def _argument(self) -> list[str]:
        """Return the words of one argument; an array has several."""
        variable = _VARIABLE.match(self.text, self.position)
        if self._peek() == "@" and (self._peek(1).isalpha() or self._peek(1) == "_"):
            found = re.compile(r"@(\w+)").match(self.text, self.position)
            if found:
                self.position = found.end()
                return self._elements(found[1])
        if variable and self.text[variable.end() : variable.end() + 1] in ("", *_END_OF_WORD):
            self.position = variable.end()
            return self._elements(variable["braced"] or variable["name"])
        if self.text.startswith("@(", self.position):
            self.position += 2
            return self._array(")")
        return [self._word()]

    def _word(self) -> str:
        word = ""
        start = self.position
        while (character := self._peek()) and character not in _END_OF_WORD:
            if character in _DOUBLE_QUOTES or character in QUOTES:
                word += self._quoted()
            elif character == "`":
                word += _ESCAPES.get(self._peek(1), self._peek(1))
                self.position += 2
            elif character in "({":
                word += self._unknown_group()
            elif character == "$":
                word += self._expansion()
            else:
                word += character
                self.position += 1
        if self.position == start:
            self.position += 1
        return word

    def _quoted(self) -> str:
        """Return the text in the quotes at the position."""
        quote, word = self._peek(), ""
        marks = QUOTES if quote in QUOTES else _DOUBLE_QUOTES
        self.position += 1
        while character := self._peek():
            self.position += 1
            if character in marks:
                if not self._peek() or self._peek() not in marks:
                    return word
                word += character
                self.position += 1
            elif marks == QUOTES:
                word += character
            elif character == "`":
                word += _ESCAPES.get(self._peek(), self._peek())
                self.position += 1
            elif character == "$":
                self.position -= 1
                word += self._expansion()
            else:
                word += character
        raise ValueError("a quotation mark is not closed")

    def _expansion(self) -> str:
        """Return the value of what begins with the dollar at the position."""
        if self._peek(1) == "(":
            self.position += 1
            return self._unknown_group(before="$")
        variable = _VARIABLE.match(self.text, self.position)
        if variable is None:
            self.position += 1
            return "$"
        self.position = variable.end()
        name = variable["braced"] or variable["name"]
        value = " ".join(self._elements(name))
        if name.lower() == "psscriptroot" and self._peek() in ("\\", "/"):
            self.position += 1
            return f"{value}/"
        return value

    def _elements(self, name: str) -> list[str]:
        """Return the elements of a variable, or a mark if it has no value in the script."""
        scope, _, plain = name.lower().rpartition(":")
        if scope == "env":
            found = {key.lower(): value for key, value in self.env.items()}.get(plain)
            values = None if found is None else [found]
        elif plain == "args":
            values = []  # nothing gives a script arguments here
        elif plain == "psscriptroot":
            values = [str(self.script_folder)]
        else:
            values = self.variables.get(plain)
        return [mark_unknown(f"${name} has no value in the script")] if values is None else values

    def _assign(self, found: re.Match[str]) -> None:
        name = found["braced"] or found["name"]
        scope, _, plain = name.lower().rpartition(":")
        start = self.position
        values = self._values()
        self._skip_blanks(with_lines=False)
        if self._peek() not in ("", "\n", ";", "}"):
            self._skip_statement()
            shown = " ".join(self.text[start : self.position].split())
            values = [mark_unknown(f"${name} is computed: {shown}")]
        if found["sign"] == "+=":
            values = [*self._elements(name), *values]
        if scope == "env":
            key = name.partition(":")[2]
            self.env = {k: v for k, v in self.env.items() if k.lower() != plain}
            if "".join(values):
                self.env[key] = " ".join(values)
        else:
            self.variables[plain] = values

    def _values(self) -> list[str]:
        """Return the elements of a list with commas."""
        values = self._argument()
        while self._skip_blanks(with_lines=False) and self._peek() == ",":
            self.position += 1
            self._skip_blanks(with_lines=True)
            values += self._argument()
        return values

    def _array(self, end: str) -> list[str]:
        values: list[str] = []
        while self._skip_blanks(with_lines=True):
            if self._peek() == end:
                self.position += 1
                return values
            if self._peek() in ",;":
                self.position += 1
            else:
                values += self._argument()
        raise ValueError(f"`{end}` is missing")

    def _unknown_group(self, before: str = "") -> str:
        start = self.position
        self._skip_group()
        shown = " ".join(self.text[start : self.position].split())
        return mark_unknown(f"{before}{shown} can only be evaluated by PowerShell")

    def _skip_group(self) -> None:
        """Skip a group in brackets, with the quotes and groups in it."""
        end = _CLOSING[self._peek()]
        self.position += 1
        while self._skip_blanks(with_lines=True):
            if self._peek() == end:
                self.position += 1
                return
            self._skip_piece()
        raise ValueError(f"`{end}` is missing")

    def _skip_statement(self) -> None:
        while self._peek() and self._peek() not in "\n;":
            self._skip_piece()

    def _skip_piece(self) -> None:
        """Skip a group, a text in quotes, or one character."""
        character = self._peek()
        if character in _CLOSING:
            self._skip_group()
        elif character in _DOUBLE_QUOTES or character in QUOTES:
            self._quoted()
        else:
            self.position += 2 if character == "`" else 1

    def _conditional(self, line: int) -> Iterator[ServerEntry]:
        """Yield a fault if a block starts a server; forget the variables that are set in it."""
        keyword, start = _KEYWORD.match(self.text, self.position), self.position
        self._skip(_KEYWORD)
        self._skip_blanks(with_lines=False)
        self._skip(_BLOCK_NAME)
        end = self.position
        while self._skip_blanks(with_lines=True) and self._peek() in "({[":
            self._skip_group()
            end = self.position
        self.position = end
        text = self.text[start : self.position]
        for found in _ASSIGNMENT.finditer(text):
            name = (found["braced"] or found["name"]).lower()
            mark = mark_unknown(f"line {line}: ${name} is conditional")
            if name.startswith("env:"):
                self.env[name.partition(":")[2].upper()] = mark
            else:
                self.variables[name] = [mark]
        if keyword and any(map(is_program, re.split(r"[\s'\"(){};,]+", text))):
            fault = f"line {line}: `{keyword[0]}` decides how the server starts"
            yield ServerEntry(f"line {line}", faults=(fault,))
