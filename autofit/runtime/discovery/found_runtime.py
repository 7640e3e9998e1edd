"""A runtime found on this machine, and what it can."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from autofit.runtime.dialect.dialect import Dialect, Spelling, Words
from autofit.runtime.discovery.help_text import Flag, HelpText
from autofit.trial.candidate import ParamValue
from autofit.trial.device import Device

TextKey = tuple[str, Words]


@dataclass(frozen=True, slots=True)
class Version:
    """What a program says about its build; None where it does not tell.

    Repackaged builds may say build 0 or 1: nothing is decided by it.
    """

    text: str
    version: str | None = None
    build: int | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program, the dialect it speaks, and what it answered.

    `program` is the file that makes it what it is, `command` the words that start it, `env`
    what it needs in its environment to start at all. `texts` are the byte strings found in
    its files. `fingerprint` changes when the program or a library beside it changes.
    `devices` are in the runtime's own order; None where it was not, or cannot be, asked.
    """

    dialect: Dialect
    program: Path
    command: Words
    help: HelpText
    version: Version
    fingerprint: str
    texts: frozenset[TextKey] = frozenset()
    companions: Mapping[str, Words] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] | None = None

    @property
    def name(self) -> str:
        """The runtime for people: its dialect, version and build."""
        version = self.version
        parts = [self.dialect.name, version.version or ""]
        if version.build is not None and version.build > 1:
            parts.append(f"b{version.build}")
        return " ".join(part for part in parts if part)

    def with_devices(self, devices: tuple[Device, ...] | None) -> Runtime:
        """The same runtime with its devices known."""
        return replace(self, devices=devices)

    def spelling(self, parameter: str) -> Spelling | None:
        """The first spelling of a parameter that this program has, None without one."""
        known = self.dialect.parameters.get(parameter)
        spellings = known.spellings if known else ()
        return next((spelling for spelling in spellings if self._has(spelling)), None)

    def supports(self, parameter: str, value: ParamValue | None = None) -> bool:
        """Whether the program knows a parameter and, if given, this value of it."""
        spelling = self.spelling(parameter)
        if spelling is None or value is None:
            return spelling is not None
        return format_value(value) in self.values(parameter) or not self.values(parameter)

    def values(self, parameter: str) -> Words:
        """The values that a parameter takes, empty where the program lists none."""
        spelling = self.spelling(parameter)
        if spelling is None:
            return ()
        if spelling.words is not None:
            return tuple(spelling.words)
        flag = self.help.get(spelling.flag) if spelling.flag else None
        listed = flag.allowed if flag else ()
        # Our own word for a value stands for what the program lists.
        return (
            (*spelling.values, *listed) if listed else self.dialect.parameters[parameter].allowed
        )

    @property
    def parameters(self) -> Words:
        """Every parameter of the dialect that this program supports."""
        return tuple(name for name in self.dialect.parameters if self.supports(name))

    @property
    def kv_types(self) -> Words:
        """The KV cache types that both K and V take."""
        wide = self.values("cache_type_v")
        return tuple(value for value in self.values("cache_type_k") if value in wide)

    def flag(self, spelling: str) -> Flag | None:
        """What the help says of a flag, None where it does not list it."""
        return self.help.get(spelling)

    def _has(self, spelling: Spelling) -> bool:
        if spelling.env is not None:
            return (spelling.text or spelling.env, spelling.files) in self.texts
        if spelling.unlisted:
            return True
        if spelling.flag is not None:
            flag = self.help.get(spelling.flag)
            return flag is not None and flag.takes_value
        flags = [self.help.get(word) for word in spelling.flags]
        return all(flag is not None and not flag.takes_value for flag in flags)


def read_version(text: str, patterns: Words) -> Version:
    """Read a program's answer about its version by the first pattern that matches."""
    for pattern in patterns:
        match = re.search(pattern, text)
        if match:
            named = match.groupdict()
            build = named.get("build")
            return Version(
                text.strip(),
                version=named.get("version"),
                build=int(build) if build else None,
                commit=named.get("commit"),
            )
    return Version(text.strip())


def format_value(value: ParamValue) -> str:
    """A value as dialects and presets write it: booleans are on and off."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
