"""A user's own launch command taken apart on the runtime that is to start it.

The one way from a preset, script or command to settings: for the baseline of a tune, both
sides of a comparison, and `autofit import`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from autofit.errors import UsageError
from autofit.presets.option import FLAG, Option, with_absolute_paths
from autofit.presets.override_order import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE,
    keep_order,
    kind_of,
)
from autofit.presets.read_preset import ReadPreset
from autofit.runtime.command.argv_reader import ParsedCommand, parse_command
from autofit.runtime.dialect.dialect_file import load_all_dialects
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import Flag, HelpText

# Overrides take effect in this order where autofit writes a command.
_APPLIED = (OVERRIDE, N_CPU_MOE, N_CPU_FFN, CPU_MOE)
# They name a model that is downloaded, with the value that follows.
_DOWNLOADS = frozenset(
    {"-hf", "-hfr", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url", "-dr", "--docker-repo"}
)
_DOWNLOADED = frozenset(
    f"LLAMA_ARG_{name}" for name in ("HF_REPO", "HF_FILE", "MODEL_URL", "DOCKER_REPO")
)
_ROUTER = ("--models-preset", "--models-dir")


@dataclass(frozen=True, slots=True)
class OwnCommand:
    """A launch command, and the runtime that is to start it.

    `model` is absolute, None where no file is named. `notices` tell what was left out of it or
    is started otherwise.
    """

    runtime: Runtime
    command: ParsedCommand
    wrapper: tuple[str, ...] = ()
    model: Path | None = None
    notices: tuple[str, ...] = ()

    def noting(self, *notices: str) -> OwnCommand:
        """The same with more notices."""
        return replace(self, notices=(*self.notices, *notices))


def own_command(preset: ReadPreset, runtime: str | None, dialect: str | None) -> OwnCommand:
    """Take a preset's command apart; `runtime` starts it in place of its own program.

    Raises:
        UsageError: its program is not here, a value is missing, or it starts a router.
    """
    found, notices = runtime_of(preset, runtime, dialect)
    return taken_apart(preset, found).noting(*notices)


def taken_apart(preset: ReadPreset, runtime: Runtime) -> OwnCommand:
    """Take a preset's command apart by the help of a runtime.

    Raises:
        UsageError: a value is missing, or it starts a router.
    """
    command = _read(preset, runtime)
    router = next((word for word in command.rest if word.partition("=")[0] in _ROUTER), None)
    if router is not None:
        raise UsageError(
            f"{preset.label} starts a router ({router}), which serves several models",
            "give the router's preset file itself, and one of its sections with --section",
        )
    rest, downloads = _without_downloads(command.rest)
    env = {name: value for name, value in command.env.items() if name not in _DOWNLOADED}
    downloads += tuple(name for name in command.env if name in _DOWNLOADED)
    notices = [*preset.notes]
    if downloads:
        told = " ".join(downloads)
        notices.append(f"{told} is left out: a model is a file here")
    unlisted = ", ".join(dict.fromkeys(_unlisted(rest, runtime.help)))
    if unlisted:
        notices.append(f"the help of {runtime.program.name} does not list {unlisted}")
    if command.left_out:
        told = ", ".join(dict.fromkeys(command.left_out))
        notices.append(f"left out of launches, and never written down: {told}")
    model = None
    if command.model is not None:
        model = Path(preset.folder or "", Path(command.model).expanduser()).absolute()
    if preset.folder is not None:
        rest = with_absolute_paths(rest, runtime.help, preset.folder.absolute())
    return OwnCommand(
        runtime,
        replace(command, rest=rest, env=env),
        _wrapper(command.program, runtime) if preset.argv else (),
        model,
        tuple(notices),
    )


def _read(preset: ReadPreset, runtime: Runtime) -> ParsedCommand:
    """The command, its tensor overrides in an order that autofit keeps when it writes them."""
    words = preset.words(runtime.help, str(runtime.program))
    try:
        command = parse_command(words, runtime.dialect, runtime.help, preset.env)
    except UsageError as error:
        raise UsageError(f"{preset.label}: {error.message}", error.hint) from error
    start = len(command.program)
    ordered = _in_our_order(words[start:], runtime.help)
    if ordered == tuple(words[start:]):
        return command
    return parse_command([*words[:start], *ordered], runtime.dialect, runtime.help, preset.env)


def runtime_of(
    preset: ReadPreset, path: str | None, dialect: str | None
) -> tuple[Runtime, tuple[str, ...]]:
    """The runtime asked for, else the preset's own program, else the first one here.

    With it come notices of what is started otherwise than the preset says.

    Raises:
        UsageError: it is not here, or no runtime.
    """
    if not preset.argv:
        return find_runtime(path, dialect), ()
    dialects = load_all_dialects()
    for known in dialects.values():
        tail = known.program.command[1:]
        if tail and _position(tail, preset.argv) is not None and path is None:
            return find_runtime(None, dialect or known.name), ()
    names = {name for known in dialects.values() for name in known.program.names}
    program = _own_program(preset, names)
    if path is not None:
        found = find_runtime(path, dialect)
        is_other = "/" in program and _place(preset, program) != found.program
        return found, (f"{found.program} is started, not {program}",) if is_other else ()
    if program in names:
        return find_runtime(None, dialect), ()
    place = _place(preset, program)
    if preset.in_container and not place.exists():
        found = find_runtime(None, dialect)
        return found, (f"{found.program} is started, not {program} of a container",)
    try:
        return find_runtime(place if "/" in program else program, dialect), ()
    except UsageError as error:
        raise UsageError(
            f"{preset.label}: {error.message}", f"name the runtime with --runtime; {error.hint}"
        ) from error


def _own_program(preset: ReadPreset, names: set[str]) -> str:
    """The word of a preset's command that names the program."""
    program = next((word for word in preset.argv if PurePath(word).name in names), None)
    if program is not None:
        return program
    # A program of another name: whatever comes right before the first flag.
    flags = (i for i, word in enumerate(preset.argv) if word.startswith("-"))
    return preset.argv[max(0, next(flags, 1) - 1)]


def _place(preset: ReadPreset, program: str) -> Path:
    return Path(preset.folder or "", Path(program).expanduser()).absolute()


def _wrapper(program: Sequence[str], runtime: Runtime) -> tuple[str, ...]:
    """The words before those that start the runtime."""
    for words in (runtime.dialect.program.command[1:], runtime.command[1:]):
        place = _position(words, program) if words else None
        if place is not None:
            return tuple(program[: max(0, place - 1)])
    return tuple(program[:-1])


def _position(words: Sequence[str], within: Sequence[str]) -> int | None:
    for start in range(len(within) - len(words) + 1):
        if tuple(within[start : start + len(words)]) == tuple(words):
            return start
    return None


def _in_our_order(arguments: Sequence[str], help_text: HelpText) -> tuple[str, ...]:
    """The arguments such that autofit's own order of tensor overrides changes nothing."""
    found = tuple(_options(arguments, help_text))
    patterns = (option.value or "" for option in found if kind_of(option) == OVERRIDE)
    if all(part.endswith("=CPU") for pattern in patterns for part in pattern.split(",")):
        return tuple(arguments)  # the others move experts there, too
    options = keep_order(found, _APPLIED, help_text)
    return tuple(word for option in options for word in option.words)


def _options(arguments: Sequence[str], help_text: HelpText) -> Iterator[Option]:
    """Tensor overrides as options, and every other word as one of its own."""
    words = iter(arguments)
    for word in words:
        flag = help_text.get(word)
        is_override = flag is not None and bool(set(_APPLIED) & set(flag.spellings))
        if flag is None or not is_override:
            yield Option(Flag((word,), None, ""), word)
        elif flag.takes_value:
            yield Option(flag, word, next(words, ""))
        else:
            yield Option(flag, word)


def _unlisted(rest: Sequence[str], help_text: HelpText) -> Iterator[str]:
    """The flags that the help does not know: misspelt, or another build's."""
    words = iter(rest if help_text.flags else ())
    for word in words:
        spelling = word.partition("=")[0]
        spelling = spelling.replace("_", "-") if spelling.startswith("--") else spelling
        flag = help_text.get(spelling)
        if flag is None and FLAG.match(word):
            yield spelling
        elif flag is not None and flag.takes_value and "=" not in word:
            next(words, None)


def _without_downloads(rest: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    kept: list[str] = []
    dropped: list[str] = []
    words = iter(rest)
    for word in words:
        if word in _DOWNLOADS:
            dropped += [word, next(words, "")]
        else:
            kept.append(word)
    return tuple(kept), tuple(dropped)
