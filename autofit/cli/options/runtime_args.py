"""The runtime's own words after `--`: which of them autofit decides itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autofit.errors import UsageError
from autofit.runtime.command.argv_reader import ParsedCommand, parse_command
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.search.space import Space
from autofit.trial.parameter_groups import PLACEMENT_PARAMS

_TASK = ("context", "parallel")


def refuse_decided(words: Sequence[str], runtime: Runtime, space: Space | None) -> None:
    """See that words for every launch do not undo what autofit decides.

    They come last and would win: a server at another address is never found, and one with
    another context is asked what it cannot hold. With a `space` its parameters count, too.

    Raises:
        UsageError: one of them does, or lacks its value; the hint says how to ask for it.
    """
    if not words:
        return
    given = parse_command([*runtime.command, *words], runtime.dialect, runtime.help)
    for flag, hint in (*_fixed(given, runtime), *_searched(given, runtime, space)):
        raise UsageError(f"{flag} after `--` is autofit's to decide", hint)


def _fixed(given: ParsedCommand, runtime: Runtime) -> Iterator[tuple[str, str]]:
    for flag in given.address:
        what = "port" if "port" in flag else "address"
        yield flag, f"leave it out: autofit chooses the {what}"
    if given.model is not None:
        yield runtime.dialect.launch.model, "leave it out: the model is autofit's own argument"
    if given.rpc:
        yield runtime.dialect.launch.rpc or "--rpc", f"put it before `--`: --rpc {given.rpc}"
    for flag in given.left_out:
        yield flag, "leave it out: autofit must get in and read the log; set it where you serve"
    for name in _TASK:
        if name in given.params:
            yield name, f"use --{name} {given.params[name]}, before `--`"


def _searched(
    given: ParsedCommand, runtime: Runtime, space: Space | None
) -> Iterator[tuple[str, str]]:
    if space is None:
        return
    always = always_flags(runtime)
    for word in given.rest:
        if word.partition("=")[0] in always:
            yield word, "leave it out: every launch but the baseline has explicit settings"
    taken = {name for axis in space.axes for name in axis.params}
    if space.layouts:
        taken |= set(PLACEMENT_PARAMS)
    for name, value in given.params.items():
        if name in space.pinned:
            yield name, f"leave it out: it is {space.pinned[name]} by --set"
        elif name in taken:
            yield name, f"use --set {name}={value}, before `--`: then it is not searched"


def always_flags(runtime: Runtime) -> frozenset[str]:
    """Every spelling of the flags that all launches with explicit settings have, and presets."""
    flags = (group[0] for group in runtime.dialect.launch.always)
    return frozenset(spelling for flag in flags for spelling in _synonyms(flag, runtime))


def _synonyms(flag: str, runtime: Runtime) -> tuple[str, ...]:
    listed = runtime.help.flags.get(flag)
    return listed.synonyms(flag) if listed else (flag,)
