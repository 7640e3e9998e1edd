"""A preset read back into a launch command: the inverse of the formats, and of what people type.

Read are the formats that autofit writes, plain launch commands (in a file or quoted), and
files of others in the same formats. What a file says beside the command is left alone, except
the workload that a preset of autofit was tuned for.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.output.preset.format import SUFFIXES
from autofit.output.preset.heading import heading_workload
from autofit.runtime.help_text import HelpText
from autofit.trial.workload import Request, Workload

_SETTING = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SECTION = re.compile(r"\s*\[(.+)\]\s*")
_FALSE = frozenset({"false", "off", "disabled", "0"})
_DEFAULTS = "*"
# Of the router itself, not of a server that it starts.
_ROUTER_KEYS = frozenset({"version", "load-on-startup", "stop-timeout"})


@dataclass(frozen=True, slots=True)
class ReadPreset:
    """What a preset says.

    `argv` begins with wrapper and program; it is empty where the preset has only `options`,
    by name without dashes, or only `env`. `label` is what the user gave, shortened.
    """

    label: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[tuple[str, str], ...] = ()
    workload: Workload | None = None

    def words(self, help_text: HelpText, program: str) -> tuple[str, ...]:
        """The whole command; `program` and its help serve where the preset names none."""
        if self.argv:
            return self.argv
        words = (word for option in self.options for word in _option_words(*option, help_text))
        return (program, *words)


def read_preset(given: str) -> ReadPreset:
    """Read a preset: a file, the folder of a finished tune, or a quoted launch command.

    Raises:
        UsageError: there is no such file, or it holds no launch command.
    """
    path = Path(given).expanduser()
    try:
        if path.is_dir():
            path = _of_study(path)
        is_file = path.is_file()
    except (OSError, ValueError):  # a command may be longer than a file's name
        is_file = False
    if not is_file:
        if len(given.split()) == 1 and (path.suffix in SUFFIXES.values() or "/" in given):
            raise UsageError(f"no such preset: {given}", _hint())
        return _command(given, shorten(given))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the preset {given}: {error}", _hint()) from error
    try:
        found = _read(text, path.suffix, given)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{given} is no preset: {error}", _hint()) from error
    comments = (line for line in text.splitlines() if line.lstrip().startswith(("#", ";")))
    told = next((told for line in comments if (told := heading_workload(line))), None)
    return replace(found, workload=found.workload or told)


def shorten(text: str, most: int = 60) -> str:
    """A long command cut for a label."""
    plain = " ".join(text.split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def _hint() -> str:
    formats = ", ".join(SUFFIXES.values())
    return f"give a file that autofit has written ({formats}) or a launch command, quoted"


def _of_study(folder: Path) -> Path:
    found = sorted((folder / "presets").glob("*.json"))
    if len(found) != 1:
        raise UsageError(f"{folder} holds {len(found) or 'no'} presets", _hint())
    return found[0]


def _read(text: str, suffix: str, label: str) -> ReadPreset:
    lines = [line for line in text.splitlines() if line.strip()]
    plain = [line for line in lines if not line.lstrip().startswith(("#", ";"))]
    if not plain:
        raise UsageError(f"the preset {label} is empty", _hint())
    if text.lstrip().startswith("{"):
        return _json(json.loads(text), label)
    if suffix == SUFFIXES["ini"] or any(_SECTION.fullmatch(line) for line in plain):
        return _ini(plain, label)
    settings = [_SETTING.fullmatch(line.strip()) for line in plain]
    if all(settings) and not any(_is_command(line) for line in plain):
        return _env(plain, label)
    return _script(text, label)


def _json(document: Any, label: str) -> ReadPreset:  # noqa: ANN401 - whatever the file holds
    argv, env = document["argv"], document.get("env", {})
    workload = document.get("workload")
    if not argv or not all(isinstance(word, str) for word in argv):
        raise ValueError("its `argv` is no list of words")
    return ReadPreset(
        label,
        tuple(argv),
        {str(name): str(value) for name, value in env.items()},
        workload=_workload(workload) if workload else None,
    )


def _workload(data: Mapping[str, Any]) -> Workload:
    requests = tuple(Request(**request) for request in data["requests"])
    return Workload(**{**data, "requests": requests})


def _ini(lines: Sequence[str], label: str) -> ReadPreset:
    """A router preset of one model; the section `*` holds defaults for all."""
    sections: dict[str, dict[str, str]] = {}
    name = _DEFAULTS
    for line in lines:
        section = _SECTION.fullmatch(line)
        if section:
            name = section[1]
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise ValueError(f"'{line.strip()}' is neither [section] nor key = value")
        # A value ends at the first of these, quotes or not.
        shown = re.split(r"[;#]", value, maxsplit=1)[0].strip()
        sections.setdefault(name, {})[key.strip()] = shown
    defaults = sections.pop(_DEFAULTS, {})
    if len(sections) != 1:
        found = ", ".join(sections) or "none"
        raise UsageError(
            f"the preset {label} is to have one model, it has: {found}",
            "keep the section to compare in a file of its own",
        )
    options = {**defaults, **next(iter(sections.values()))}
    kept = {key: value for key, value in options.items() if key not in _ROUTER_KEYS}
    variables = {key: value for key, value in kept.items() if key.startswith("LLAMA_ARG_")}
    return ReadPreset(
        label,
        env=variables,
        options=tuple((key, value) for key, value in kept.items() if key not in variables),
    )


def _option_words(key: str, value: str, help_text: HelpText) -> tuple[str, ...]:
    spelling = next((word for word in (f"--{key}", f"-{key}") if word in help_text), f"--{key}")
    flag = help_text.get(spelling)
    if flag is None or flag.takes_value:
        return (spelling, value)
    if value.lower() not in _FALSE:
        return (spelling,)
    negative = [word for word in flag.spellings if word.startswith("--no-")]
    return (negative[-1],) if negative else ()


def _env(lines: Sequence[str], label: str) -> ReadPreset:
    env = {}
    for line in lines:
        for word in shlex.split(line, comments=True):
            name, _, value = word.partition("=")
            env[name] = value
    return ReadPreset(label, env=env)


def _script(text: str, label: str) -> ReadPreset:
    """A shell script or a command line: variables that are exported, then one command."""
    env: dict[str, str] = {}
    command: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["export"]:
            env.update(word.partition("=")[::2] for word in words[1:])
        elif words and words[0] not in ("set", "cd"):
            if command:
                raise ValueError(f"it holds more than one command: {shorten(line)}")
            command = words
    return _with_settings(command, env, label)


def _command(text: str, label: str) -> ReadPreset:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"cannot read the command {label}: {error}", _hint()) from error
    if not words:
        raise UsageError("an empty preset", _hint())
    return _with_settings(words, {}, label)


def _with_settings(words: Sequence[str], env: dict[str, str], label: str) -> ReadPreset:
    """A command with its leading `exec`, `env` and settings taken apart."""
    left = [word for word in words if word != "$@"]
    while left and (left[0] in ("exec", "env") or _SETTING.fullmatch(left[0])):
        found = _SETTING.fullmatch(left.pop(0))
        if found:
            env[found[1]] = found[2]
    if not left and not env:
        raise UsageError(f"{label} holds no launch command", _hint())
    return ReadPreset(label, tuple(left), env)


def _is_command(line: str) -> bool:
    """Whether a line that begins with a setting goes on with a program."""
    return any(not _SETTING.fullmatch(word) for word in _split(line))


def _split(line: str) -> Iterator[str]:
    try:
        yield from shlex.split(line, comments=True)
    except ValueError:
        return
