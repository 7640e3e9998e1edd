"""What a preset is made of: the settings, and what is known about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.presets.option import with_absolute_paths
from autofit.presets.override_order import OVERRIDES
from autofit.runtime.dialect.dialect import ContainerRules, IniRules
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.study.fingerprint import Environment
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Params
from autofit.trial.workload import Workload

# llama-server's own default; written out, since another is announced for later builds.
DEFAULT_PORT = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetFacts:
    """Settings that were proven, and where, for what and with what result.

    `wrapper`, `command` and `arguments` in a row are what was run; `address` are the words
    with a `{port}` that say where to listen, added where the arguments do not. `folder` is
    where relative paths in the arguments start. `formats` are those the runtime can use, None
    for any. `gain` and `estimates` are as in the result of a tune; `free_mib` is the
    headroom, `taken_mib` the peak without what others held. `help` is the runtime's help text,
    None where it has none. `decided` are the flags and variables that a tune may choose,
    `origin` says what the settings were taken from where that is not a tune's winner, `image`
    is the container's where the user names one.
    """

    model_name: str
    model_path: Path
    wrapper: tuple[str, ...] = ()
    command: tuple[str, ...]
    arguments: tuple[str, ...]
    address: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    params: Params
    help: HelpText | None
    folder: Path
    formats: tuple[str, ...] | None = None
    ini: IniRules = field(default_factory=IniRules)
    container: ContainerRules = field(default_factory=ContainerRules)
    image: str = ""
    decided: frozenset[str] = frozenset()
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
        """The arguments with a port in them, and files named so that any folder will do."""
        arguments = with_absolute_paths(self.arguments, self.help, self.folder)
        own = self.own_address
        missing = (pair for pair in _pairs(self.address) if pair[0] not in own)
        words = (word for pair in missing for word in with_port(pair, self.port))
        return (*arguments, *words)

    @property
    def own_address(self) -> dict[str, str]:
        """Where the user's own arguments say to listen, by flag."""
        flags = {pair[0] for pair in _pairs(self.address)}
        return {word: value for word, value in pairwise(self.arguments) if word in flags}

    def decides(self, spellings: Sequence[str]) -> bool:
        """Whether a flag or variable, by its spellings, is a tune's to choose."""
        return not self.decided.isdisjoint(spellings)

    def served_at(self, address: tuple[str, ...]) -> tuple[str, ...]:
        """The arguments for listening at another address, whatever the user's own say."""
        arguments = list(with_absolute_paths(self.arguments, self.help, self.folder))
        for flag in {pair[0] for pair in _pairs(self.address)}:
            while flag in arguments[:-1]:
                place = arguments.index(flag)
                del arguments[place : place + 2]
        return (*arguments, *address)

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command, to be started in any folder."""
        return (*self.wrapper, *self.command, *self.served_arguments)


def _pairs(address: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The flags of an address, each with its value."""
    for place, word in enumerate(address):
        if word.startswith("-"):
            yield address[place : place + 2]


def with_port(argv: Sequence[str], port: int) -> tuple[str, ...]:
    """A command with its `{port}` filled in."""
    return tuple(word.replace("{port}", str(port)) for word in argv)


def winner_facts(
    header: StudyHeader,
    result: Mapping[str, Any],
    *,
    runtime: Runtime,
    folder: Path,
    made_on: date,
    origin: str = "",
) -> PresetFacts:
    """The facts of a tune's winner; `folder` is where the tune was started.

    `origin` says what else the settings are that the result calls its winner.

    Raises:
        UsageError: the tune has no winner.
    """
    winner = result.get("winner")
    if not winner:
        raise UsageError(
            "this study has no winner to write a preset of",
            "`autofit show STUDY` tells what came of it",
        )
    wrapper, arguments = split_command(tuple(winner["argv"]), runtime.command)
    return PresetFacts(
        model_name=header.model_name,
        model_path=folder / header.model_path,
        wrapper=wrapper,
        arguments=arguments,
        env=winner.get("env") or {},
        params=winner["params"],
        folder=folder,
        origin=origin,
        **of_runtime(runtime),
        workload=header.workload,
        objective=header.objective,
        environment=header.environment,
        gain=result.get("gain"),
        tie=bool(result.get("tie")),
        proven=bool(winner.get("proven")),
        estimates=winner.get("estimates") or {},
        peak_mib=winner.get("peak_mib") or {},
        taken_mib=winner.get("taken_mib") or {},
        free_mib=winner.get("free_mib") or {},
        made_on=made_on,
        autofit_version=header.autofit_version,
    )


def of_runtime(runtime: Runtime) -> dict[str, Any]:
    """The fields that are facts of the runtime."""
    dialect = runtime.dialect
    spellings = [s for parameter in dialect.parameters.values() for s in parameter.spellings]
    return {
        "command": runtime.command,
        "address": dialect.launch.address,
        "help": runtime.help,
        "ini": dialect.preset.ini,
        "container": dialect.preset.container,
        "formats": dialect.preset.formats,
        "decided": frozenset(flag for spelling in spellings for flag in spelling.flags)
        | dialect.variables
        | {group[0] for group in dialect.launch.always}
        | ({dialect.launch.rpc} if dialect.launch.rpc else set())
        | OVERRIDES,
    }


def split_command(
    argv: tuple[str, ...], command: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The wrapper before the command, and the arguments after it."""
    length = len(command)
    for start in range(len(argv) - length + 1):
        if argv[start : start + length] == command:
            return argv[:start], argv[start + length :]
    raise UsageError(
        f"the winner was not started with {' '.join(command)!r}",
        "give the runtime of the tune with `--runtime PATH`",
    )
