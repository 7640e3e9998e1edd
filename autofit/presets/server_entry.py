"""One server that a preset file describes, in any format."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePath

from autofit.presets.command_options import Option
from autofit.runtime.command.argv_reader import FALSE_WORDS, TRUE_WORDS
from autofit.runtime.dialect.dialect_file import load_all_dialects
from autofit.runtime.discovery.help_text import HelpText

_MODEL_FLAGS = ("-m", "--model")
MODEL_VARIABLE = "LLAMA_ARG_MODEL"
_MODEL_KEYS = ("model", "m", MODEL_VARIABLE)
_VARIABLE = re.compile(r"LLAMA_")


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """A server, or a command that may start one.

    It has a command in `argv`, or only `options` by name without dashes, or only variables in
    `env`. `argv` begins with wrapper and program. Relative file names start in `folder`, which is
    None if the file does not name it. `notices` name the parts that are left out. `faults` name
    the parts that are not understood: a server with faults is refused. A program `in_container`
    may be missing on this machine. `router_keys` are the keys of all sections of a router's file,
    because the router refuses a file for any wrong key.
    """

    name: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[tuple[str, str], ...] = ()
    folder: Path | None = None
    notices: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    in_container: bool = False
    router_keys: tuple[str, ...] = ()

    @property
    def model(self) -> str:
        """The model file, or an empty text if none is named."""
        model = self.env.get(MODEL_VARIABLE, "")
        for key, value in self.options:
            model = value if key in _MODEL_KEYS else model
        # A wrapper before the program may have a flag of the same name.
        programs = (i for i, argument in enumerate(self.argv) if is_program(argument))
        rest = iter(self.argv[next(programs, 0) :])
        for argument in rest:
            flag, equals, value = argument.partition("=")
            if flag in _MODEL_FLAGS:
                model = value if equals else next(rest, "")
        return model

    def serves(self, model: Path) -> bool:
        """Return whether it serves a model file. If a file is missing, its name decides."""
        if not self.model:
            return False
        own = Path(self.folder or "", self.model).expanduser()
        try:
            if own.exists() and model.exists():
                return own.samefile(model)
        except (OSError, ValueError):
            return False
        return own.name == model.name

    def full_argv(
        self, help_text: HelpText, program: str, switches: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Return the whole command; without one, `program` with the options as flags.

        As llama-server's router does, this gives each option once, with its last value, sorted by
        its first spelling in the help. `switches` are flags without a value that another build
        may have.
        """
        if self.argv:
            return self.argv
        flags: dict[str, tuple[str, ...]] = {}
        for key, value in self.options:
            spelling = _spelling(key, help_text)
            flag = help_text.get(spelling) if spelling else None
            if flag is not None:
                flags[flag.spellings[0]] = _flag_arguments(Option(flag, spelling), value)
            elif f"--{key}" in switches:
                flags[f"--{key}"] = _older_switch(key, value, switches)
            elif not _VARIABLE.match(key):
                flags[f"--{key}"] = (f"--{key}", value)
        return (program, *(argument for name in sorted(flags) for argument in flags[name]))

    def full_env(self, help_text: HelpText) -> dict[str, str]:
        """Return the variables, and the options that are variables without a flag in the help."""
        options = {
            key: value
            for key, value in self.options
            if _VARIABLE.match(key) and not _spelling(key, help_text)
        }
        return {**self.env, **options}

    def with_notices(self, *notices: str) -> ServerEntry:
        """Return the entry with more notices."""
        return replace(self, notices=(*self.notices, *notices))


def _spelling(key: str, help_text: HelpText) -> str:
    """Return the flag for a key of a router's file, or "" if the key is unknown."""
    spellings = (s for s in (f"--{key}", f"-{key}") if s in help_text)
    # For the router, the variable of a negative form has the same sense as the other one.
    variable = key.replace("LLAMA_ARG_NO_", "LLAMA_ARG_")
    by_variable = (f for f in help_text.flags.values() if f.env in (key, variable))
    named = (f"--{Option(flag, flag.spellings[0]).positive_name}" for flag in by_variable)
    return next(spellings, None) or next((s for s in named if s in help_text), "")


def _flag_arguments(option: Option, value: str) -> tuple[str, ...]:
    """Return an option and its value as llama-server's router passes them to a model's server."""
    if option.flag.takes_value:
        return (option.spelling, value)
    # `no-warmup = false` is `warmup = true`. A word that the router does not know switches on.
    if option.is_negative and value not in TRUE_WORDS:
        return (f"--{option.positive_name}",)
    if not option.is_negative and value not in FALSE_WORDS:
        return (option.spelling,)
    long = (s for s in reversed(option.flag.spellings) if s.startswith("--"))
    negative = next((s for s in long if Option(option.flag, s).is_negative), None)
    return (negative,) if negative else ()


def _older_switch(key: str, value: str, switches: Collection[str]) -> tuple[str, ...]:
    """Return the flag for a switch of an older build, such as `mmap = 0`, which is `--no-mmap`."""
    positive = key.removeprefix("no-")
    is_on = (value not in FALSE_WORDS) == (key == positive)
    flag = f"--{positive}" if is_on else f"--no-{positive}"
    return (flag,) if flag in switches else ()


def is_program(path: str) -> bool:
    """Return whether a path is that of a known runtime, by its file name."""
    name = PurePath(path.replace("\\", "/")).name
    return name.removesuffix(".exe") in _program_names(os.getcwd())  # noqa: PTH109 - cache key


@lru_cache(maxsize=1)
def _program_names(_folder: str) -> frozenset[str]:
    """Return the program names of all dialects, including the user's own in the current folder."""
    dialects = load_all_dialects().values()
    return frozenset(name for dialect in dialects for name in dialect.program.names)
