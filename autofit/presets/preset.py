"""A preset before it is written: the settings of one model, and measurements of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.presets.command_options import (
    Option,
    keep_override_order,
    merge_repeated,
    parse_options,
    with_absolute_paths,
)
from autofit.runtime.command.redaction import HIDDEN
from autofit.runtime.dialect.dialect import PresetRules
from autofit.runtime.discovery.help_text import HelpText
from autofit.study.fingerprint import Environment
from autofit.trial.workload import Workload

# llama-server's own default; written out, since another is announced for later builds.
DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """The settings of one model, the program to start, and the measurements of them.

    `wrapper`, `command` and `arguments` in a row are what was launched. Relative paths in
    `arguments` start in `folder`. `address` has the flags for the address of the server, each with
    a value; `port` replaces `{port}` in them. `help` is None if the runtime is not known.
    `tunable` are the flags and variables that a tune may choose. `origin` says where the settings
    come from, and is empty for a tune's winner. `image` is the container image that the user
    named. `gain` and `estimates` are as in the result of a tune. `free_mib` is the headroom.
    `peak_mib` is the memory that all programs used at the peak, `taken_mib` that of the server.
    """

    model_name: str
    model_path: Path
    wrapper: tuple[str, ...] = ()
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    address: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any]
    help: HelpText | None
    folder: Path
    rules: PresetRules = field(default_factory=PresetRules)
    image: str = ""
    tunable: frozenset[str] = frozenset()
    origin: str = ""
    port: int = DEFAULT_PORT
    workload: Workload
    objective: str
    environment: Environment
    gain: Mapping[str, Any] | None = None
    tie: bool = False
    proven: bool = False
    estimates: Mapping[str, Any] = field(default_factory=dict)
    peak_mib: Mapping[str, float | None] = field(default_factory=dict)
    taken_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    made_on: date
    autofit_version: str

    @property
    def served_arguments(self) -> tuple[str, ...]:
        """The arguments for any folder, with an address where they have none."""
        given = self.given_address
        missing = (
            argument
            for flag, value in _flags_and_values(self.address)
            if flag not in given
            for argument in (flag, value)
        )
        return (*self._absolute_arguments(), *with_port(missing, self.port))

    @property
    def given_address(self) -> dict[str, str]:
        """The address flags that the arguments have, with their values."""
        flags = {flag for flag, _ in _flags_and_values(self.address)}
        return {flag: value for flag, value in pairwise(self.arguments) if flag in flags}

    def arguments_at(self, address: Sequence[str]) -> tuple[str, ...]:
        """Return the arguments for any folder with another address in place of their own."""
        arguments = list(self._absolute_arguments())
        for flag, _ in _flags_and_values(self.address):
            while flag in arguments[:-1]:
                start = arguments.index(flag)
                del arguments[start : start + 2]
        return (*arguments, *address)

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command, to be started in any folder."""
        return (*self.wrapper, *self.command, *self.served_arguments)

    @property
    def has_hidden_values(self) -> bool:
        """True if stars stand for a value that autofit does not write down."""
        texts = (*self.wrapper, *self.arguments, *self.env.values())
        return any(HIDDEN in text for text in texts)

    def is_tunable(self, spellings: Sequence[str]) -> bool:
        """Return whether a tune may choose a flag or variable with these spellings."""
        return not self.tunable.isdisjoint(spellings)

    def options(self, applied_overrides: Sequence[str]) -> tuple[Option, ...]:
        """Return the served arguments as options, each flag once.

        `applied_overrides` is the order in which the format applies tensor overrides.

        Raises:
            UsageError: the runtime's help is not known, or does not list an argument.
        """
        if self.help is None:
            raise UsageError(
                "this format cannot be written: the flags of the runtime are not known",
                "name the runtime with --runtime PATH, or use the formats `args`, `shell` or "
                "`json`",
            )
        options = parse_options(self.served_arguments, self.help)
        return merge_repeated(keep_override_order(options, applied_overrides, self.help))

    def _absolute_arguments(self) -> tuple[str, ...]:
        return with_absolute_paths(self.arguments, self.help, self.folder)


def _flags_and_values(address: Sequence[str]) -> list[tuple[str, str]]:
    return [(flag, value) for flag, value in pairwise(address) if flag.startswith("-")]


def with_port(arguments: Iterable[str], port: int) -> tuple[str, ...]:
    """Return the arguments with `{port}` replaced by a port."""
    return tuple(argument.replace("{port}", str(port)) for argument in arguments)
