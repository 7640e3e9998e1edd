"""The state of a shell while its text is read: variables, folder, open blocks and commands."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from autofit.presets.formats.variable_expansion import (
    mark_unknown,
    parameter_value,
    unknown_reasons,
)
from autofit.presets.server_entry import ServerEntry

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BLOCK_STARTS = frozenset({"if", "for", "while", "until", "case", "select", "{", "("})
_BLOCK_ENDS = frozenset({"fi", "done", "esac", "}", ")"})
BLOCK_WORDS = _BLOCK_STARTS | _BLOCK_ENDS | {"then", "else", "elif", "do", "in", "!"}
_LONGEST_VALUE = 1 << 16
# Extended by scripts, and known: autofit has them from the same shell.
_INHERITED = ("HOME", "USER", "PATH", "LD_LIBRARY_PATH")
_TESTS = frozenset({"[", "[[", "test"})
_FILE_TESTS = frozenset({"-f", "-e", "-r", "-s"})


@dataclass(slots=True)
class ShellState:
    """The variables, folder, open blocks and commands of a shell text so far.

    Attributes:
        exported: the variables that commands get.
        values: all variables.
        arrays: the words of each array.
        reasons: why a variable has no value, by name.
        folder: the folder of the last `cd`, or None before the first.
        folder_faults: why the folder is not known.
        exports_all: true after `set -a`.
        blocks: the conditions and loops that are open.
        tested: the last condition.
        unread: the files that `source` names and that cannot be read.
        commands: the commands that are no builtins, each with the variables exported before it.
    """

    exported: dict[str, str]
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    folder_faults: tuple[str, ...] = ()
    exports_all: bool = False
    blocks: list[str] = field(default_factory=list)
    tested: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    commands: list[ServerEntry] = field(default_factory=list)

    def reads_file(self, name: str) -> bool:
        """Return whether `source NAME` is sure to run: outside blocks, or if the file is there."""
        is_tested = name in self.tested and not _FILE_TESTS.isdisjoint(self.tested)
        return not unknown_reasons([name]) and (is_tested or not self.blocks)

    def for_file(self) -> ShellState:
        """Return the state for reading a file: the same variables, without blocks."""
        return replace(self, blocks=[], tested=[], commands=[])

    def value(self, expansion: str, line: int) -> str:
        """Return the value of an expansion such as `${NAME:-default}`, or a mark.

        Raises:
            ValueError: it is too long.
        """
        name = expansion.strip("${}")
        value = parameter_value(name, self.values)
        if value is None and name in _INHERITED and name not in self.reasons:
            value = os.environ.get(name, "")
        if value is None:
            reason = self.reasons.get(re.split(r"\W", name)[0])
            unread = f", and {self.unread[-1]} is not read" if self.unread else ""
            return mark_unknown(reason or f"line {line}: {expansion} has no value here{unread}")
        if len(value) > _LONGEST_VALUE:
            raise ValueError(f"line {line}: the value of {name} is too long")
        return value

    def enter_or_leave(self, word: str, line: int) -> None:
        """Handle a word that begins or ends a block, such as `if` and `fi`."""
        if word in _BLOCK_STARTS:
            self.blocks.append(f"line {line}: `{word}`")
        elif word in _BLOCK_ENDS and self.blocks:
            self.blocks.pop()

    def run(self, words: list[str], line: int) -> None:
        """Apply the effect of a shell builtin; keep any other command."""
        verb = words[0]
        if verb in ("export", "declare", "readonly", "local", "typeset"):
            self.assign(words[1:], exports=verb == "export" or "-x" in words[1:2])
        elif all(ASSIGNMENT.fullmatch(word) for word in words):
            self.assign(words, exports=self.exports_all)
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
            self._keep(words, line)

    def assign(self, words: list[str], *, exports: bool) -> None:
        """Set variables; a value that is not known keeps its reason."""
        for word in words:
            found = ASSIGNMENT.fullmatch(word)
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

    def _keep(self, words: list[str], line: int) -> None:
        faults: tuple[str, ...] = ()
        if any(_is_relative(word) for word in words):
            faults = self.folder_faults
        if self.blocks:
            faults = (*faults, f"{self.blocks[-1]} begins a block that contains the command")
        if words[0] in _TESTS:
            self.tested = words
        unread = [
            f"{name} is not read: variables that it sets are not known" for name in self.unread
        ]
        self.commands.append(
            ServerEntry(
                f"line {line}",
                tuple(words),
                dict(self.exported),
                folder=self.folder,
                faults=faults,
                notices=tuple(unread),
            )
        )


def _is_relative(word: str) -> bool:
    """Return whether a word looks like a file name that depends on the folder."""
    plain = word.rpartition("=")[2]
    if re.fullmatch(r"[\d./,]+", plain):  # a list such as 10/40/40
        return False
    return not plain.startswith(("/", "-", "~")) and ("/" in plain or plain.endswith(".gguf"))
