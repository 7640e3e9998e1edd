"""A user's launch command, parsed with the help text of the runtime that is to start it.

Every command that reads a preset, script or launch command uses this module: `tune --baseline`,
`compare`, `check --against-machine` and `import`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath, PureWindowsPath

from autofit.errors import UsageError
from autofit.model.cached_models import find_model
from autofit.presets.command_options import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE_TENSOR,
    OVERRIDES,
    Option,
    absolute_path,
    keep_override_order,
    unlisted_flags,
    with_absolute_paths,
)
from autofit.presets.formats.ini import refused_keys
from autofit.presets.formats.variable_expansion import unknown_reasons
from autofit.presets.read_preset import ParsedPreset, refuse_faults
from autofit.runtime.command.argv_reader import ParsedCommand, parse_command
from autofit.runtime.command.argv_writer import spell_value
from autofit.runtime.command.redaction import redact_text
from autofit.runtime.dialect.dialect_file import load_all_dialects
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime, format_value
from autofit.runtime.discovery.help_text import Flag, HelpText

# The order in which overrides take effect in commands that autofit writes.
_APPLIED_OVERRIDES = (OVERRIDE_TENSOR, N_CPU_MOE, N_CPU_FFN, CPU_MOE)
# Each names a model that is downloaded, with the value that follows.
_DOWNLOADS = frozenset(
    {"-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-dr", "--docker-repo"}
)
_REPOSITORY_FLAGS = ("-hf", "-hfr", "--hf-repo")
_DOWNLOAD_VARIABLES = frozenset(
    f"LLAMA_ARG_{name}" for name in ("HF_REPO", "HF_FILE", "MODEL_URL", "DOCKER_REPO")
)
_ROUTER_FLAGS = ("--models-preset", "--models-dir")


@dataclass(frozen=True, slots=True)
class PresetCommand:
    """A preset's launch command, and the runtime that is to start it.

    `wrapper` comes before the program. `model` is absolute, or None if no file is named.
    `notices` say which arguments were left out, and how the launch differs from the preset.
    """

    preset: ParsedPreset
    runtime: Runtime
    command: ParsedCommand
    wrapper: tuple[str, ...] = ()
    model: Path | None = None
    notices: tuple[str, ...] = ()

    def with_notices(self, *notices: str) -> PresetCommand:
        """Return the command with more notices."""
        return replace(self, notices=(*self.notices, *notices))

    @property
    def program(self) -> tuple[str, ...]:
        """The words that start the program, without the wrapper, as the preset names it."""
        server, words = self.preset.server, self.command.program
        if not server.argv or not words:
            names = self.runtime.dialect.program.names or (str(self.runtime.program),)
            return (names[0],)
        path = words[-1]
        if "/" in path and server.folder is not None:
            path = str((server.folder / path).absolute())
        return (*words[len(self.wrapper) : -1], path)

    @property
    def argv(self) -> tuple[str, ...]:
        """The command as autofit would write it, without address and what is left out."""
        launch, command = self.runtime.dialect.launch, self.command
        rpc = (launch.rpc, command.rpc) if command.rpc and launch.rpc else ()
        model = (launch.model, str(self.model)) if self.model else ()
        settings, _ = self._written_params()
        return (*self.wrapper, *self.program, *rpc, *model, *settings, *command.rest)

    @property
    def env(self) -> dict[str, str]:
        """The variables that are set for the program."""
        return {**self._written_params()[1], **self.command.env}

    def _written_params(self) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the parameters as arguments and variables.

        A parameter that this program lacks is spelled as in another program of the dialect.
        """
        arguments: list[str] = []
        variables: dict[str, str] = {}
        for name, value in self.command.params.items():
            known = self.runtime.dialect.parameters[name].spellings
            spelling = self.runtime.spelling(name) or known[0]
            if spelling.words is not None:
                arguments += spelling.words[format_value(value)]
            elif spelling.flag is not None:
                arguments += (spelling.flag, spell_value(spelling, value) or "")
            elif spelling.env is not None:
                variables[spelling.env] = spell_value(spelling, value) or ""
        return tuple(arguments), variables


def read_preset_command(
    preset: ParsedPreset, runtime: str | None, dialect: str | None
) -> PresetCommand:
    """Parse a preset's command; `runtime` replaces its own program.

    Raises:
        UsageError: its program is not here, a value is missing, or it starts a router.
    """
    found, notices = find_preset_runtime(preset, runtime, dialect)
    return parse_preset_command(preset, found).with_notices(*notices)


def parse_preset_command(
    preset: ParsedPreset, runtime: Runtime, *, is_other_build: bool = False
) -> PresetCommand:
    """Parse a preset's command by the help of a runtime.

    With `is_other_build` the runtime that starts the command is missing, and another one is given.

    Raises:
        UsageError: a value is missing, or the command starts a router.
    """
    folder = preset.server.folder
    command = _parse(preset, runtime, allows_bare=is_other_build)
    router = next((a for a in command.rest if a.partition("=")[0] in _ROUTER_FLAGS), None)
    if router is not None:
        raise UsageError(
            f"{preset.label} starts a router ({router}), which serves several models",
            "give the router's preset file itself, and one of its sections with --section",
        )
    rest, downloads = _without_downloads(command.rest)
    env = {n: value for n, value in command.env.items() if n not in _DOWNLOAD_VARIABLES}
    params = map(str, command.params.values())
    used = (*command.program, command.model or "", command.rpc, *rest, *params, *env.values())
    refuse_faults(preset.label, unknown_reasons(used))
    cached = None if command.model else _find_cached(downloads, command.env)
    downloads += [name for name in command.env if name in _DOWNLOAD_VARIABLES]
    notices = [*preset.server.notices]
    refused = [] if is_other_build else list(refused_keys(preset.server.router_keys, runtime.help))
    if refused:
        notices.append(
            f"the router of this build refuses the file because of the key {refused[0]}"
        )
    shown = redact_text(" ".join(downloads), runtime.help)
    if cached is not None:
        notices.append(f"{shown} is in the cache: {cached}")
    elif downloads:
        notices.append(f"{shown} is left out: autofit serves model files and downloads none")
    unlisted = ", ".join(dict.fromkeys(unlisted_flags(rest, runtime.help)))
    if unlisted:
        notices.append(f"the help of {runtime.program.name} does not list {unlisted}")
    if command.left_out:
        left_out = ", ".join(dict.fromkeys(command.left_out))
        notices.append(f"left out of launches, and never written down: {left_out}")
    model = cached
    if command.model is not None:
        model = absolute_path(folder or Path(), str(Path(command.model).expanduser()))
        model = model if PureWindowsPath(model).drive else model.absolute()
    if folder is not None:
        rest = list(with_absolute_paths(rest, runtime.help, folder.absolute()))
    return PresetCommand(
        preset,
        runtime,
        replace(command, rest=tuple(rest), env=env),
        _wrapper(command.program, runtime) if preset.server.argv else (),
        model,
        tuple(notices),
    )


def _parse(preset: ParsedPreset, runtime: Runtime, *, allows_bare: bool) -> ParsedCommand:
    """Parse the command, with its tensor overrides in the order in which autofit writes them."""
    switches = runtime.dialect.switches
    argv = preset.server.full_argv(runtime.help, str(runtime.program), switches)
    parse = partial(
        parse_command,
        dialect=runtime.dialect,
        help_text=runtime.help,
        env=preset.server.full_env(runtime.help),
        allows_bare=allows_bare,
    )
    try:
        command = parse(argv)
    except UsageError as error:
        raise UsageError(f"{preset.label}: {error.message}", error.hint) from error
    start = len(command.program)
    ordered = _with_ordered_overrides(argv[start:], runtime.help)
    if ordered == argv[start:]:
        return command
    return parse([*argv[:start], *ordered])


def _with_ordered_overrides(arguments: Sequence[str], help_text: HelpText) -> tuple[str, ...]:
    """Return arguments with the same meaning, with tensor overrides in autofit's order."""
    options = tuple(_override_options(arguments, help_text))
    patterns = (o.value or "" for o in options if o.override_kind == OVERRIDE_TENSOR)
    if all(part.endswith("=CPU") for pattern in patterns for part in pattern.split(",")):
        return tuple(arguments)  # the other kinds move experts to the CPU, too
    ordered = keep_override_order(options, _APPLIED_OVERRIDES, help_text)
    return tuple(argument for option in ordered for argument in option.arguments)


def _override_options(arguments: Sequence[str], help_text: HelpText) -> Iterator[Option]:
    """Yield each override as an option, and every other argument as one of its own."""
    rest = iter(arguments)
    for argument in rest:
        flag = help_text.get(argument)
        if flag is None or set(OVERRIDES).isdisjoint(flag.spellings):
            yield Option(Flag((argument,), None, ""), argument)
        elif flag.takes_value:
            yield Option(flag, argument, next(rest, ""))
        else:
            yield Option(flag, argument)


def _without_downloads(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments without downloads, and the arguments that name a model to download."""
    kept: list[str] = []
    downloads: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in _DOWNLOADS:
            downloads += [argument, next(rest, "")]
        else:
            kept.append(argument)
    return kept, downloads


def _find_cached(downloads: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """Return the cached model that a command names, or None if there is not exactly one.

    A command that names a file of the repository, too, is left alone.
    """
    if "LLAMA_ARG_HF_FILE" in env or {"-hff", "--hf-file"} & {*downloads}:
        return None
    named = dict(zip(downloads[::2], downloads[1::2], strict=True))
    names = [env.get("LLAMA_ARG_HF_REPO"), *(named.get(flag) for flag in _REPOSITORY_FLAGS)]
    name = next(filter(None, reversed(names)), None)
    try:
        return find_model(name, is_name=True).absolute() if name else None
    except UsageError:
        return None


def _wrapper(program: Sequence[str], runtime: Runtime) -> tuple[str, ...]:
    """Return the words before those that start the runtime."""
    for words in (runtime.dialect.program.command[1:], runtime.command[1:]):
        index = _index_of(words, program) if words else None
        if index is not None:
            return tuple(program[: max(0, index - 1)])
    return tuple(program[:-1])


def _index_of(words: Sequence[str], argv: Sequence[str]) -> int | None:
    """Return where some words follow each other in a command."""
    starts = range(len(argv) - len(words) + 1)
    return next((i for i in starts if tuple(argv[i : i + len(words)]) == tuple(words)), None)


def find_preset_runtime(
    preset: ParsedPreset, path: str | None, dialect: str | None
) -> tuple[Runtime, tuple[str, ...]]:
    """Return the runtime at `path`, else the preset's own program, else the first one here.

    Also return notices about what is started in place of the preset's program.

    Raises:
        UsageError: the program is not here, or not a known runtime.
    """
    argv = preset.server.argv
    if not argv:
        return find_runtime(path, dialect), ()
    dialects = load_all_dialects().values()
    for known in dialects:
        tail = known.program.command[1:]
        if tail and _index_of(tail, argv) is not None and path is None:
            return find_runtime(None, dialect or known.name), ()
    names = {name for known in dialects for name in known.program.names}
    program = _program_of(argv, names)
    refuse_faults(preset.label, unknown_reasons([program]))
    place = Path(preset.server.folder or "", Path(program).expanduser()).absolute()
    if path is not None:
        found = find_runtime(path, dialect)
        is_other = "/" in program and place != found.program
        return found, (f"{found.program} is started, not {program}",) if is_other else ()
    if program in names:
        return find_runtime(None, dialect), ()
    if preset.server.in_container and not place.exists():
        found = find_runtime(None, dialect)
        return found, (f"{found.program} is started in place of {program} in a container",)
    try:
        return find_runtime(place if "/" in program else program, dialect), ()
    except UsageError as error:
        raise UsageError(
            f"{preset.label}: {error.message}", f"name the runtime with --runtime; {error.hint}"
        ) from error


def _program_of(argv: Sequence[str], names: set[str]) -> str:
    """Return the word of a command that names the program."""
    program = next((word for word in argv if PurePath(word).name in names), None)
    if program is not None:
        return program
    # A program of another name: the word before the first flag.
    flags = (index for index, word in enumerate(argv) if word.startswith("-"))
    return argv[max(0, next(flags, 1) - 1)]
