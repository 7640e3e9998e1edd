"""Batch files of Windows, which `cmd` runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.command_options import flag_groups
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.formats.shell import servers_among
from autofit.presets.formats.variable_expansion import mark_unknown
from autofit.presets.formats.windows_words import quote_word, refuse_unwritable, split_words
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading, heading_metadata
from autofit.presets.server_entry import ServerEntry, is_program

_SUFFIXES = (".bat", ".cmd")
_PLAIN = re.compile(r"[\w.:\\/+-]+", re.ASCII)
_SPECIAL = re.compile(r'([&|<>^()!"])')
# A caret makes the next character an ordinary one; alone it continues the line.
_PIECE = re.compile(
    r'"[^"]*"?|\^.?|(?P<separator>[&|])'
    r'|(?P<redirection>(?:(?<!\S)\d)?[<>]{1,2}\s*(?:&\d|(?:"[^"]*"?|\^.|[^\s&|<>^"])*))|.',
    re.DOTALL,
)
_LONGEST_LINE = 8191  # characters of a command
_UTF8 = "chcp 65001 >nul"
_COMMENT = re.compile(r"^[ \t@]*(?:rem\b|::)[ \t]?", re.IGNORECASE | re.MULTILINE)
# `%%`, `%*`, `%~dp0`, `%1`, `%NAME%` or `%NAME:...%`, and a lone `%`.
_EXPANSION = re.compile(
    r"%(?:(?P<percent>%)|(?P<all>\*)|(?P<folder>~dp0)\\?|~?\w*(?P<number>\d)"
    r"|(?P<name>[^%:\s=]+)(?P<change>:[^%]*)?%)?"
)
_DELAYED = re.compile(r"!(\w+)!")
_SET = re.compile(r"set\s+(?:/(?P<switch>\w)\s*)?(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_SET_INSIDE = re.compile(r'\bset\s+(?:/\w\s+)?"?(?P<name>\w+)=', re.IGNORECASE)
# They change nothing about a server.
_IGNORED = frozenset(
    {"echo", "echo.", "setlocal", "endlocal", "chcp", "title", "cls", "pause", "color", "timeout"}
)
_CONTROL = frozenset({"if", "for", "else", "(", ")"})
_START_OPTIONS_WITH_VALUE = frozenset({"/d", "/affinity", "/node"})


def _write(presets: Sequence[Preset]) -> str:
    """Return a batch file that starts the server and passes its arguments on.

    Raises:
        UsageError: cmd cannot hold a value, or the command is too long.
    """
    (preset,) = presets
    refuse_unwritable(preset, "bat", allowed_controls="\t")
    for name, value in preset.env.items():
        if '"' in value:
            raise UsageError(
                f"the format 'bat' cannot hold a quotation mark in the variable {name}",
                "use the format `powershell` or `json`",
            )
    settings = [f'set "{_doubled(f"{name}={value}")}"' for name, value in preset.env.items()]
    program = [*preset.wrapper, *preset.command]
    groups = [program, *flag_groups(preset.served_arguments)]
    command = " ^\n  ".join(" ".join(map(_word, group)) for group in groups) + " %*"
    if len(command) > _LONGEST_LINE:
        raise UsageError(
            f"the command has {len(command):,} characters, and cmd takes {_LONGEST_LINE:,}",
            "use the format `powershell`",
        )
    lines = [
        *("@echo off", "setlocal DisableDelayedExpansion"),
        *(f"rem {_doubled(line.rstrip('^'))}" for line in heading(preset)),
        *settings,
        command,
    ]
    text = "\n".join(lines)
    if not text.isascii():
        text = text.replace("\n", f"\n{_UTF8}\n", 1)
    return text.replace("\n", "\r\n") + "\r\n"


def _doubled(text: str) -> str:
    return text.replace("%", "%%")


def _word(word: str) -> str:
    """Return an argument as cmd passes it on unchanged."""
    if _PLAIN.fullmatch(word):
        return word
    quoted = quote_word(word)
    # For cmd each quote begins or ends a quoted part. Carets keep it from seeing any.
    return _doubled(_SPECIAL.sub(r"^\1", quoted) if '"' in word else quoted)


def _read(file: PresetFile) -> list[ServerEntry]:
    return servers_among(_Script(file.path.absolute().parent).commands(file.text))


@dataclass(slots=True)
class _Script:
    """The state of a batch file: its variables and its folder.

    `variables` have names and values, by the name in upper case. Those in `expanded` serve the
    script itself, and are not passed to the server.
    """

    path: Path
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)
    expanded: set[str] = field(default_factory=set)
    folder: Path | None = None
    is_delayed: bool = False

    def commands(self, text: str) -> Iterator[ServerEntry]:
        """Yield the commands of a batch file that may be servers."""
        lines = text.split("\n")
        number = 0
        while number < len(lines):
            first = number + 1
            line, number = self._logical_line(lines, number)
            if _COMMENT.match(line) or line.lstrip("@ \t").startswith(":"):
                continue
            for command in _split_commands(line):
                verb = command.split(maxsplit=1)[0].lower().lstrip("@")
                if verb in _CONTROL or (verb.startswith(("(", "if", "for")) and "(" in command):
                    number = _end_of_block(lines, first - 1, number)
                    yield from self._conditional(verb, first, "\n".join(lines[first - 1 : number]))
                    break
                if verb == "exit" or command.lower().split() == ["goto", ":eof"]:
                    return
                yield from self._command(first, command.lstrip("@ \t"))

    def _logical_line(self, lines: Sequence[str], number: int) -> tuple[str, int]:
        """Return a line joined with its continuations, and the number of the next line."""
        line = self._expand(lines[number])
        number += 1
        while _is_continued(line) and number < len(lines):
            # The caret makes the first character of the next line an ordinary one.
            line = line + self._expand(lines[number])
            number += 1
        return line, number

    def _expand(self, line: str) -> str:
        def value(found: re.Match[str]) -> str:
            if found["percent"]:
                return "%"
            if found["folder"]:
                return f"{self.path}/"
            if found["name"] is None:
                return ""  # nothing gives a script arguments here
            name = found["name"].upper()
            self.expanded.add(name)
            if name not in self.variables or found["change"]:
                return mark_unknown(f"{found[0]} has no value in the script")
            return self.variables[name][1]

        expanded = _EXPANSION.sub(value, line)
        if not self.is_delayed:
            return expanded
        return _DELAYED.sub(lambda found: mark_unknown(f"{found[0]} is expanded late"), expanded)

    def _conditional(self, verb: str, line: int, text: str) -> Iterator[ServerEntry]:
        """Yield a fault if a server is started under a condition; forget what is set there."""
        for found in _SET_INSIDE.finditer(text):
            reason = f"line {line}: %{found['name']}% is conditional"
            self.variables[found["name"].upper()] = (found["name"], mark_unknown(reason))
        words = split_words(text.replace("(", " ").replace(")", " "))
        if any(map(is_program, words)):
            fault = f"line {line}: `{verb}` decides how the server starts"
            yield ServerEntry(f"line {line}", faults=(fault,))

    def _command(self, line: int, command: str) -> Iterator[ServerEntry]:
        words = split_words(command)
        verb = words[0].lower() if words else ""
        if verb == "setlocal" and "enabledelayedexpansion" in command.lower():
            self.is_delayed = True
        if not words or verb in _IGNORED or verb.startswith("echo"):
            return
        if verb == "set":
            self._set(command)
            return
        if verb in ("cd", "chdir", "pushd"):
            places = [word for word in words[1:] if word.lower() != "/d"]
            self.folder = Path(self.folder or "", *places)
            return
        folder, faults = self.folder, []
        if verb == "start":
            words, place = _without_start(command)
            folder = Path(folder or "", place) if place else folder
        elif verb == "call":
            words = words[1:]
        if words and (words[0].startswith(":") or words[0].lower() in ("goto", "cmd", "cmd.exe")):
            faults.append(f"line {line}: `{' '.join(words[:2])}` is not followed")
        if words:
            env = dict(one for key, one in self.variables.items() if key not in self.expanded)
            name = f"line {line}"
            yield ServerEntry(name, tuple(words), env, folder=folder, faults=tuple(faults))

    def _set(self, command: str) -> None:
        found = _SET.fullmatch(command.strip())
        if found is None:
            return
        rest = found["rest"]
        if rest.startswith('"'):
            rest = rest[1:].rpartition('"')[0] or rest[1:]
        name, equals, value = rest.partition("=")
        if not equals:
            return
        if found["switch"]:
            value = mark_unknown(f"the script computes %{name.strip()}% or asks for it")
        name = name.strip()
        if value:
            self.variables[name.upper()] = (name, value)
        else:
            self.variables.pop(name.upper(), None)


def _is_continued(line: str) -> bool:
    """Return whether an unquoted caret ends a line."""
    return any(piece[0] == "^" for piece in _PIECE.finditer(line))


def _split_commands(line: str) -> Iterator[str]:
    """Yield the commands of a line, without carets and redirections."""
    command = ""
    for piece in _PIECE.finditer(line):
        if piece["separator"]:
            if command.strip():
                yield command.strip()
            if piece["separator"] == "|":
                return  # what reads the output does not matter
            command = ""
        elif not piece["redirection"]:
            command += piece[0].removeprefix("^")
    if command.strip():
        yield command.strip()


def _end_of_block(lines: Sequence[str], first: int, after: int) -> int:
    """Return the number of the line after a block in parentheses."""
    depth = 0
    for number in range(first, len(lines)):
        plain = re.sub(r'"[^"]*"|\^.', "", lines[number])
        depth += plain.count("(") - plain.count(")")
        if number + 1 >= after and depth <= 0:
            return number + 1
    return len(lines)


def _without_start(command: str) -> tuple[list[str], str]:
    """Return the command that `start` starts, as words, and its folder."""
    rest = command.split(maxsplit=1)[1] if " " in command else ""
    words, folder = split_words(rest), ""
    if rest.startswith('"'):
        words = words[1:]  # the title of the window
    while words and words[0].startswith("/"):
        option = words.pop(0).lower()
        if option in _START_OPTIONS_WITH_VALUE and words:
            value = words.pop(0)
            folder = value if option == "/d" else folder
    return words, folder


def _metadata(file: PresetFile) -> dict[str, object]:
    return heading_metadata(_COMMENT.sub("# ", file.text).replace("%%", "%"))


FORMAT = PresetFormat(
    suffix=".bat",
    write=_write,
    recognizes=lambda file: file.path.suffix.lower() in _SUFFIXES,
    read=_read,
    metadata=_metadata,
)
