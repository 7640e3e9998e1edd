"""Shell scripts and command lines that start a server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePosixPath

from autofit.presets.command_options import flag_groups
from autofit.presets.formats.container_command import docker_run_server
from autofit.presets.formats.preset_format import PresetFormat
from autofit.presets.formats.shell_parser import parse_shell
from autofit.presets.formats.variable_expansion import without_marks
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import heading
from autofit.presets.server_entry import ServerEntry, is_program

_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# They start the command that follows, and change nothing about its speed.
_STARTERS = frozenset({"exec", "command", "nohup", "setsid", "time", "builtin"})
_STARTER_SWITCHES = re.compile(r"-[a-z]|--wait|--fork")
_ROOT_STARTERS = frozenset({"sudo", "doas"})
_ROOT_OPTIONS_WITH_VALUE = frozenset({"-u", "-g", "-h", "-p", "-C", "-T", "-D", "-R"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
# They start a command, which is their last arguments or one of them as text.
_SESSIONS = frozenset({"tmux", "screen", "su", "runuser", "script"})
_DEEPEST = 4
# Commands that may name a server without starting it.
_MENTIONERS = frozenset(
    {"echo", "printf", "kill", "pkill", "pgrep", "killall", "grep", "which", "["}
)
_REPOSITORY_FLAGS = frozenset({"-hf", "-hfr", "--hf-repo", "-mu", "--model-url"})


def _write_script(presets: Sequence[Preset]) -> str:
    """Return a POSIX script that replaces itself by the server and passes its arguments on."""
    (preset,) = presets
    lines = ["#!/bin/sh", *(f"# {line}" for line in heading(preset))]
    program = [*preset.wrapper, *preset.command]
    return script(lines, preset.env, program, preset.served_arguments)


def script(
    first_lines: Sequence[str],
    env: Mapping[str, str],
    program: Sequence[str],
    arguments: Sequence[str],
) -> str:
    """Return a script that sets variables and runs a program, with one line per flag."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    groups = [shlex.join(group) for group in flag_groups(arguments)]
    command = " \\\n  ".join([f"exec {shlex.join(program)}", *groups, '"$@"'])
    return "\n".join([*first_lines, *exports, command]) + "\n"


def _write_args(presets: Sequence[Preset]) -> str:
    """Return the command on one line. If it has variables, `env NAME=VALUE` comes first."""
    (preset,) = presets
    settings = [f"{name}={value}" for name, value in preset.env.items()]
    return shlex.join([*(["env", *settings] if settings else []), *preset.argv]) + "\n"


def shell_servers(
    text: str,
    env: Mapping[str, str] | None = None,
    *,
    depth: int = 0,
    script_folder: Path | None = None,
) -> list[ServerEntry]:
    """Return the servers that shell text starts, found by their program or model file.

    If no command is known as a server, a single command is taken for one. Text without
    commands gives an entry with the variables that it sets.

    Raises:
        ValueError: the text cannot be parsed, or has several commands and none is a server.
    """
    commands, variables = parse_shell(text, env, script_folder)
    if not commands:
        return [ServerEntry("variables", env=variables)] if variables else []
    return servers_among(commands, depth=depth)


def servers_among(commands: Iterable[ServerEntry], *, depth: int = 0) -> list[ServerEntry]:
    """Return the servers that the commands of a script start, or its only command.

    Raises:
        ValueError: it has several commands, and none is a server.
    """
    entries = [command_server(command, depth=depth) for command in commands]
    servers = [entry for entry in entries if _is_server(entry)]
    servers = [entry for entry in servers if _names_model(entry)] or servers
    if not servers and len(entries) > 1:
        shown = ", ".join(
            f"`{without_marks(entry.argv[0])}` in {entry.name}"
            for entry in entries[:5]
            if entry.argv
        )
        raise ValueError(f"it has more than one command, and none is a llama-server: {shown}")
    others = len(entries) - len(servers)
    if servers and others:
        ignored = "1 other command is" if others == 1 else f"{others} other commands are"
        return [entry.with_notices(f"{ignored} ignored") for entry in servers]
    return servers or entries


def _is_server(entry: ServerEntry) -> bool:
    if not entry.argv or PurePosixPath(entry.argv[0]).name in _MENTIONERS:
        return False
    programs = (i for i, argument in enumerate(entry.argv) if is_program(argument))
    program = next(programs, None)
    if program is None:
        return entry.model.endswith(".gguf")
    # Without flags a known program may be the argument of another, as in `pkill llama-server`.
    return program == 0 or any(a.startswith("-") for a in entry.argv[program + 1 : program + 2])


def _names_model(entry: ServerEntry) -> bool:
    return bool(entry.model) or not _REPOSITORY_FLAGS.isdisjoint(entry.argv)


def command_server(command: ServerEntry, *, depth: int = 0) -> ServerEntry:
    """Return the server that a command starts, through any container or shell around it."""
    rest, env = list(command.argv), dict(command.env)
    notices = (*command.notices, *_remove_starters(rest, env))
    found = _inner_server(rest, env, depth)
    folder = command.folder
    if found.folder is not None:
        folder = (folder or Path()) / found.folder
    return replace(
        found,
        name=command.name,
        folder=folder,
        faults=tuple(dict.fromkeys((*command.faults, *found.faults))),
        notices=(*notices, *found.notices),
    )


def _inner_server(rest: list[str], env: Mapping[str, str], depth: int) -> ServerEntry:
    contained = docker_run_server(rest)
    if contained is not None:
        return replace(contained, env={**env, **contained.env})
    starter = PurePosixPath(rest[0] if rest else "").name
    inner = None
    if starter in _SESSIONS:
        rest, inner = _session_command(rest)
    if inner is None and (len(rest) == 1 or starter not in _SHELLS):
        return ServerEntry("", tuple(rest), env)
    inner = inner or _inner_text(rest)
    if inner is None or depth >= _DEEPEST:
        fault = f"it runs another script: give that script instead ({' '.join(rest[1:3])})"
        return ServerEntry("", tuple(rest), env, faults=(fault,))
    found = shell_servers(inner, env, depth=depth + 1)
    if len(found) != 1:
        return ServerEntry("", env=env, faults=(f"{rest[0]} starts {len(found)} servers",))
    return found[0]


def _remove_starters(rest: list[str], env: dict[str, str]) -> Iterator[str]:
    """Remove variables and starters before the program; yield notices."""
    while rest:
        verb = PurePosixPath(rest[0]).name
        setting = _SETTING.fullmatch(rest[0])
        if setting:
            env[setting[1]] = setting[2]
            rest.pop(0)
        elif verb in _STARTERS and len(rest) > 1:
            rest.pop(0)
            while rest and _STARTER_SWITCHES.fullmatch(rest[0]):
                rest.pop(0)
        elif verb == "env" and len(rest) > 1:
            rest.pop(0)
            _remove_env_options(rest, env)
        elif verb in _ROOT_STARTERS:
            yield f"{verb} is left out: autofit starts servers as the user who runs it"
            rest.pop(0)
            while rest and rest[0].startswith("-"):
                if rest.pop(0) in _ROOT_OPTIONS_WITH_VALUE and rest:
                    rest.pop(0)
        else:
            return


def _remove_env_options(rest: list[str], env: dict[str, str]) -> None:
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-i", "-", "--ignore-environment"):
            env.clear()
        elif option in ("-u", "--unset") and rest:
            env.pop(rest.pop(0), None)


def _session_command(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the command that a session program starts, or its text."""
    for index, argument in enumerate(argv):
        if is_program(argument):
            return list(argv[index:]), None
        if any(map(is_program, argument.split()[:-1])):
            return list(argv), argument
    return list(argv), None


def _inner_text(argv: Sequence[str]) -> str | None:
    """Return the text of `sh -c TEXT`, or None for any other shell command."""
    for option, text in pairwise(argv[1:]):
        if re.fullmatch(r"-\w*c", option):
            return text
        if not option.startswith("-"):
            return None
    return None


FORMAT = PresetFormat(
    suffix=".sh",
    write=_write_script,
    read=lambda file: shell_servers(file.text, script_folder=file.path.absolute().parent),
    is_program=True,
)
ARGS_FORMAT = PresetFormat(suffix=".args", write=_write_args)
