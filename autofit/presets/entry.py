"""One server that a file tells of, whatever the file's format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePath

from autofit.runtime.dialect.dialect_file import load_all_dialects

_MODEL_FLAGS = ("-m", "--model")
_MODEL_KEYS = ("model", "m")
_MODEL_VARIABLE = "LLAMA_ARG_MODEL"


@dataclass(frozen=True, slots=True)
class Entry:
    """A server: its command, or options by name without dashes, or only variables.

    `argv` begins with wrapper and program. `folder` is where relative file names start, None
    for wherever it is started. `notes` tell what was left out of it, `faults` what was not
    understood: an entry with faults cannot be taken. A program `in_container` is not on this
    machine under that name.
    """

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[tuple[str, str], ...] = ()
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    in_container: bool = False

    @property
    def model(self) -> str:
        """The model file that it names, empty where it names none."""
        found = self.env.get(_MODEL_VARIABLE, "")
        for key, value in self.options:
            found = value if key in _MODEL_KEYS else found
        words = iter(self.argv[program_length(self.argv) :])
        for word in words:
            flag, equals, value = word.partition("=")
            if flag in _MODEL_FLAGS:
                found = value if equals else next(words, "")
        return found

    def serves(self, model: Path) -> bool:
        """Whether it names this model file, as far as can be told from another folder."""
        if not self.model:
            return False
        own = Path(self.folder or "", self.model).expanduser()
        try:
            if own.exists() and model.exists():
                return own.samefile(model)
        except (OSError, ValueError):
            return False
        return own.name == model.name

    def noting(self, *notes: str) -> Entry:
        """The same with more notes."""
        return replace(self, notes=(*self.notes, *notes))


def is_program(word: str) -> bool:
    """Whether a word is the path of a known runtime."""
    name = PurePath(word.replace("\\", "/")).name
    return name.removesuffix(".exe") in _known(os.getcwd())[0]  # noqa: PTH109 - a cache's key


def program_length(argv: Sequence[str]) -> int:
    """How many words come up to the program; without a known one, those before a flag."""
    for index, word in enumerate(argv):
        if is_program(word):
            return index + 1
    for tail in _known(os.getcwd())[1]:  # noqa: PTH109 - a cache's key
        for index in range(len(argv)):
            if tuple(argv[index : index + len(tail)]) == tail:
                return index + len(tail)
    return next((index for index, word in enumerate(argv) if word.startswith("-")), len(argv))


@lru_cache(maxsize=1)
def _known(_folder: str) -> tuple[frozenset[str], tuple[tuple[str, ...], ...]]:
    """The file names of programs that dialects are for, and the words that start others."""
    programs = [dialect.program for dialect in load_all_dialects().values()]
    names = frozenset(name for program in programs for name in program.names)
    return names, tuple(program.command[1:] for program in programs if program.command[1:])


def listed(entries: Sequence[Entry]) -> str:
    """The entries for a message, each with its model."""
    return ", ".join(_shown(entry) for entry in entries) or "none"


def matching(entries: Sequence[Entry], section: str) -> Iterator[Entry]:
    """The entries of a name; where there are none, those whose model has it."""
    named = [entry for entry in entries if entry.name == section]
    if named:
        yield from named
        return
    yield from (e for e in entries if section in (e.model, *_names(e.model)))


def _names(model: str) -> tuple[str, str]:
    path = PurePath(model)
    return path.name, path.stem


def _shown(entry: Entry) -> str:
    model = PurePath(entry.model).name
    return f"{entry.name} ({model})" if model and model != entry.name else entry.name
