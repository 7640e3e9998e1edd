"""The words of one command taken apart: what comes before the server, and what is set for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from autofit.presets.entry import Entry, is_program
from autofit.presets.formats.container import docker_run
from autofit.presets.formats.shell_text import shell_variables, shown, simple_commands

_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# They start what follows and change nothing about how fast it is.
_PLAIN = frozenset({"exec", "command", "nohup", "setsid", "time", "builtin"})
_PLAIN_SWITCHES = re.compile(r"-[a-z]|--wait|--fork")
_ROOT = frozenset({"sudo", "doas"})
_ROOT_VALUED = frozenset({"-u", "-g", "-h", "-p", "-C", "-T", "-D", "-R"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh"})
_DEEPEST = 4
# Commands that may name a server without starting it.
_TALKERS = frozenset({"echo", "printf", "kill", "pkill", "pgrep", "killall", "grep", "which", "["})
_REPOSITORY = frozenset({"-hf", "-hfr", "--hf-repo", "-mu", "--model-url"})


def entry_of_words(
    name: str, words: Sequence[str], env: Mapping[str, str], *, depth: int = 0
) -> Entry:
    """The server that a command starts; `env` is what was set for it before."""
    left, own = list(words), dict(env)
    notes = tuple(_drop_beginning(left, own))
    contained = docker_run(left)
    if contained is not None:
        own.update(contained.env)
        told = (*notes, *contained.notes)
        return Entry(name, contained.argv, own, notes=told, in_container=True)
    if len(left) == 1 or PurePosixPath(left[0] if left else "").name not in _SHELLS:
        return Entry(name, tuple(left), own, notes=notes)
    inner = _inner_shell(left)
    if inner is None or depth >= _DEEPEST:
        fault = f"it runs another script: give that one ({' '.join(left[1:3])})"
        return Entry(name, tuple(left), own, notes=notes, faults=(fault,))
    found = entries_of_shell(inner, own, depth=depth + 1)
    if len(found) != 1:
        return Entry(name, env=own, faults=(f"{left[0]} starts {len(found)} servers",))
    return replace(found[0], name=name, notes=(*notes, *found[0].notes))


def _drop_beginning(left: list[str], env: dict[str, str]) -> Iterator[str]:
    """Take off what comes before the program and sets something, or changes nothing."""
    while left:
        verb = PurePosixPath(left[0]).name
        setting = _SETTING.fullmatch(left[0])
        if setting:
            env[setting[1]] = setting[2]
            left.pop(0)
        elif verb in _PLAIN and len(left) > 1:
            left.pop(0)
            while left and _PLAIN_SWITCHES.fullmatch(left[0]):
                left.pop(0)
        elif verb == "env" and len(left) > 1:
            _drop_env(left, env)
        elif verb in _ROOT:
            yield f"{verb} is left out: autofit starts servers as whoever calls it"
            _drop_root(left)
        else:
            return


def entries_of_shell(
    text: str, env: Mapping[str, str] | None = None, *, depth: int = 0
) -> list[Entry]:
    """The servers that shell text starts: those that their program or their model file tells.

    Where none is told so, the only command there is; where there is no command, what is set.

    Raises:
        ValueError: the text cannot be taken apart, or holds several other commands.
    """
    entries = []
    for command in simple_commands(text, env):
        found = entry_of_words(f"line {command.line}", command.words, command.env, depth=depth)
        faults = tuple(dict.fromkeys((*command.faults, *found.faults)))
        folder = command.folder
        if found.folder is not None:
            folder = (folder or Path()) / found.folder
        entries.append(replace(found, folder=folder, faults=faults))
    if not entries:
        own = shell_variables(text)
        return [Entry("variables", env={**(env or {}), **own})] if own else []
    servers = [entry for entry in entries if _is_server(entry)]
    servers = [entry for entry in servers if _names_model(entry)] or servers
    if not servers and len(entries) > 1:
        lines = ", ".join(
            f"`{shown(entry.argv[0])}` in {entry.name}" for entry in entries[:5] if entry.argv
        )
        raise ValueError(f"it holds more than one command, and none is a llama-server: {lines}")
    others = len(entries) - len(servers)
    if servers and others:
        told = "another command is" if others == 1 else f"{others} other commands are"
        return [entry.noting(f"{told} left alone") for entry in servers]
    return servers or entries


def _is_server(entry: Entry) -> bool:
    if not entry.argv or PurePosixPath(entry.argv[0]).name in _TALKERS:
        return False
    at = next((i for i, word in enumerate(entry.argv) if is_program(word)), None)
    if at is None:
        return entry.model.endswith(".gguf")
    after = entry.argv[at + 1 :]
    # Without words a known program may be the argument of another, as in `pkill llama-server`.
    return at == 0 or (bool(after) and after[0].startswith("-"))


def _names_model(entry: Entry) -> bool:
    return bool(entry.model) or any(word in _REPOSITORY for word in entry.argv)


def _drop_env(left: list[str], env: dict[str, str]) -> None:
    """Take off `env` and its options."""
    left.pop(0)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word in ("-i", "-", "--ignore-environment"):
            env.clear()
        elif word in ("-u", "--unset") and left:
            env.pop(left.pop(0), None)


def _drop_root(left: list[str]) -> None:
    """Take off `sudo` and its options."""
    left.pop(0)
    while left and left[0].startswith("-"):
        if left.pop(0) in _ROOT_VALUED and left:
            left.pop(0)


def _inner_shell(words: Sequence[str]) -> str | None:
    """The text of `sh -c TEXT`, None where it is no such command."""
    if len(words) < 3 or PurePosixPath(words[0]).name not in _SHELLS:  # noqa: PLR2004
        return None
    for index, word in enumerate(words[1:-1], start=1):
        if re.fullmatch(r"-\w*c", word):
            return words[index + 1]
        if not word.startswith("-"):
            return None
    return None
