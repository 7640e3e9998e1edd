"""A systemd service: its `ExecStart` with what is set for it.

Quoting, continued lines and variables as systemd.service(5) and systemd.exec(5) have them.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autofit.presets.entry import Entry
from autofit.presets.formats.read_command import entry_of_words
from autofit.presets.formats.variables import filled

_SERVICE = re.compile(r"^\s*\[Service\]\s*$", re.MULTILINE)
_SPECIFIER = re.compile(r"%(.)")
_ESCAPE = re.compile(r"\\\\|\\x([0-9a-fA-F]{2})|\\([snt])")
_ESCAPED = {"s": 0x20, "n": 0x0A, "t": 0x09}
# Stands for a byte that was written as an escape, until the words are split.
_BYTE = 0xE100
_BYTES = re.compile(f"[{chr(_BYTE)}-{chr(_BYTE + 0xFF)}]+")
# They hold under systemd only, and change how fast a server is or what it may take.
_LIMITS = ("CPUAffinity", "AllowedCPUs", "CPUQuota", "CPUWeight", "NUMAPolicy", "NUMAMask", "Nice",
           "CPUSchedulingPolicy", "MemoryMax", "MemoryHigh", "AllowedMemoryNodes")  # fmt: skip


def is_unit(text: str) -> bool:
    """Whether a text is a service's unit or a drop-in for one."""
    return _SERVICE.search(text) is not None


def entries_of_unit(text: str, name: str) -> list[Entry]:
    """The commands of a unit: one, unless it has several `ExecStart`.

    Raises:
        ValueError: a quote is not closed.
    """
    commands: list[str] = []
    env: dict[str, str] = {}
    notes: list[str] = []
    folder: Path | None = None
    for key, value in _settings(text):
        if key == "ExecStart":
            commands = [*commands, value] if value else []
        elif key == "Environment":
            env = {**env, **_variables(value)} if value else {}
        elif key == "EnvironmentFile":
            notes.append(f"EnvironmentFile {value} is not read: what it sets is not known")
        elif key == "WorkingDirectory":
            folder = None if value.startswith("~") else Path(value.lstrip("-"))
        elif key in _LIMITS:
            notes.append(f"{key}={value} holds under systemd only, not where autofit measures")
    names = [name] if len(commands) == 1 else [f"{name} {i}" for i in range(1, len(commands) + 1)]
    return [
        _entry(own, command, env, folder).noting(*notes)
        for own, command in zip(names, commands, strict=True)
    ]


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """The settings of `[Service]`, continued lines joined, comments among them left out."""
    section, whole = "", ""
    for line in (*text.splitlines(), ""):
        bare = line.strip()
        if bare.startswith(("#", ";")):
            continue
        if not whole and bare.startswith("[") and bare.endswith("]"):
            section = bare
            continue
        whole = f"{whole} {bare}".strip() if whole else bare
        if whole.endswith("\\"):
            whole = whole[:-1].rstrip() + " "
            continue
        key, equals, value = whole.partition("=")
        if equals and section == "[Service]":
            yield key.strip(), value.strip()
        whole = ""


def _variables(value: str) -> dict[str, str]:
    # `%%` stands for one here as well.
    words = (_shown(word.replace("%%", "%")) for word in shlex.split(_kept(value)))
    return {n: text for n, equals, text in (word.partition("=") for word in words) if equals}


def _kept(text: str) -> str:
    """The text with its C escapes as characters that `shlex` takes for any others."""

    def kept(found: re.Match[str]) -> str:
        if found[1]:
            return chr(_BYTE + int(found[1], 16))
        return chr(_BYTE + _ESCAPED[found[2]]) if found[2] else found[0]

    return _ESCAPE.sub(kept, text)


def _shown(word: str) -> str:
    return _BYTES.sub(lambda f: os.fsdecode(bytes(ord(c) - _BYTE for c in f[0])), word)


def _entry(name: str, command: str, env: dict[str, str], folder: Path | None) -> Entry:
    faults: list[str] = []

    def specified(found: re.Match[str]) -> str:
        if found[1] == "%":
            return "%"
        if found[1] == "h":
            return str(Path.home())
        faults.append(f"{found[0]} in ExecStart is systemd's to fill in")
        return found[0]

    words: list[str] = []
    for word in shlex.split(_kept(command.lstrip("-@:+!|"))):
        text, missing = filled(_SPECIFIER.sub(specified, word), env.get)
        faults += [f"{variable} has no value in this unit" for variable in missing]
        # `$NAME` as a word of its own is split into words, `${NAME}` is not.
        is_plain = re.fullmatch(r"\$[A-Za-z_]\w*", word) is not None and not missing
        words += map(_shown, text.split() if is_plain else [text])
    found = entry_of_words(name, words, env)
    return replace(found, folder=found.folder or folder, faults=(*found.faults, *faults))
