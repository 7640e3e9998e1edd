"""A runtime found on this machine: its build and the settings that it supports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autofit.runtime.dialect.dialect import Dialect, Spelling
from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.candidate import ParamValue
from autofit.trial.device import Device


@dataclass(frozen=True, slots=True)
class Version:
    """The build that a program reports; None for a part that it does not report.

    Repackaged builds may report build 0 or 1, so no decision depends on it.
    """

    text: str
    version: str | None = None
    build: int | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Runtime:
    """A program, its dialect, and the output of its help and version options.

    Attributes:
        dialect: the flags, endpoints and messages of the program.
        program: the file that identifies the build.
        command: the words that start it.
        help: the flags of its `--help`.
        version: its build.
        fingerprint: a digest that changes when the program or a library near it changes.
        texts: the byte strings found in its files, each with the file patterns searched.
        companions: the command of each companion program by its use.
        env: environment variables without which it does not start.
        devices: its devices in its own order; None if they are not listed yet, or cannot be.
    """

    dialect: Dialect
    program: Path
    command: tuple[str, ...]
    help: HelpText
    version: Version
    fingerprint: str
    texts: frozenset[tuple[str, tuple[str, ...]]] = frozenset()
    companions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] | None = None

    @property
    def name(self) -> str:
        """The dialect, version and build, for messages."""
        version = self.version
        parts = [self.dialect.name, version.version or ""]
        if version.build is not None and version.build > 1:
            parts.append(f"b{version.build}")
        return " ".join(part for part in parts if part)

    def with_devices(self, devices: tuple[Device, ...] | None) -> Runtime:
        """Return the same runtime with these devices."""
        return replace(self, devices=devices)

    def spelling(self, parameter: str) -> Spelling | None:
        """Return the first spelling of a parameter that this program has, or None."""
        known = self.dialect.parameters.get(parameter)
        spellings = known.spellings if known else ()
        return next((spelling for spelling in spellings if self._has(spelling)), None)

    def supports(self, parameter: str, value: ParamValue | None = None) -> bool:
        """Return whether the program has a parameter and, if given, accepts this value."""
        if self.spelling(parameter) is None or value is None:
            return self.spelling(parameter) is not None
        return format_value(value) in self.values(parameter) or not self.values(parameter)

    def values(self, parameter: str) -> tuple[str, ...]:
        """Return the values that a parameter accepts; empty if the program lists none."""
        spelling = self.spelling(parameter)
        if spelling is None:
            return ()
        if spelling.words is not None:
            return tuple(spelling.words)
        flag = self.help.get(spelling.flag) if spelling.flag else None
        if flag and flag.allowed:
            return (*spelling.values, *flag.allowed)  # autofit's names of values, then its own
        return self.dialect.parameters[parameter].allowed

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the dialect that this program supports."""
        return tuple(name for name in self.dialect.parameters if self.supports(name))

    @property
    def kv_types(self) -> tuple[str, ...]:
        """The KV cache types that are accepted for both K and V."""
        types_v = self.values("cache_type_v")
        return tuple(value for value in self.values("cache_type_k") if value in types_v)

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


def read_version(text: str, patterns: Sequence[str]) -> Version:
    """Read a program's version output with the first pattern that matches."""
    match = next((found for pattern in patterns if (found := re.search(pattern, text))), None)
    groups = match.groupdict() if match else {}
    build = groups.get("build")
    return Version(
        text.strip(), groups.get("version"), int(build) if build else None, groups.get("commit")
    )


def format_value(value: ParamValue) -> str:
    """Return a value as dialects and presets write it; booleans are `on` and `off`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
