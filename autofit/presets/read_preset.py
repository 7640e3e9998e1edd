"""A preset read back into a launch command: what autofit writes, and what people have.

Read are shell scripts and command lines, llama-server's router presets, llama-swap's and
compose's YAML, systemd units, files of variables, and autofit's own documents. What a file says
beside the command is left alone, except the workload that a preset of autofit was tuned for.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.presets.entry import Entry, is_program, listed, matching
from autofit.presets.formats.read_command import entries_of_shell
from autofit.presets.formats.read_ini import entries_of_ini, has_section
from autofit.presets.formats.read_json import entries_of_document
from autofit.presets.formats.read_systemd import entries_of_unit, is_unit
from autofit.presets.formats.read_yaml import entries_of_data, is_known
from autofit.presets.formats.registry import SUFFIXES
from autofit.presets.formats.variables import file_variables
from autofit.presets.heading import heading_workload
from autofit.presets.label import shorten
from autofit.presets.text_file import read_text_file
from autofit.runtime.command.redaction import redact_command
from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.workload import Request, Workload

_YAML = (".yaml", ".yml")
_BATCH = (".bat", ".cmd", ".ps1")
_YAML_START = re.compile(r"^(?:models|services)\s*:", re.MULTILINE)
_COMMENT = ("#", ";")
_NAMED = ("ini", "llama-swap", "compose", "systemd")
_FALSE = frozenset({"false", "off", "disabled", "0"})


@dataclass(frozen=True, slots=True)
class ReadPreset:
    """What a preset says.

    `argv` begins with wrapper and program; it is empty where the preset has only `options`,
    by name without dashes, or only `env`. `label` is what the user gave, shortened; `kind` is
    the format, `section` the name of the part that was taken where the file has several.
    `folder` is where relative file names start, None for wherever it is started; `notes` tell
    what was left out. A program `in_container` is not on this machine under its name. `facts`
    are the lines `name: text` of a heading that autofit wrote, or what its document says beside
    the command.
    """

    label: str
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    options: tuple[tuple[str, str], ...] = ()
    workload: Workload | None = None
    kind: str = "command"
    section: str = ""
    folder: Path | None = None
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    in_container: bool = False

    def words(self, help_text: HelpText, program: str) -> tuple[str, ...]:
        """The whole command; `program` and its help serve where the preset names none."""
        if self.argv:
            return self.argv
        words = (word for option in self.options for word in _option_words(*option, help_text))
        return (program, *words)


def read_preset(
    given: str, *, section: str | None = None, model: Path | None = None
) -> ReadPreset:
    """Read a preset: a file, the folder of a finished tune, or a quoted launch command.

    Of a file with several servers the one named `section` is taken (a name, or the path or
    name of its model file), or else the only one that serves `model`.

    Raises:
        UsageError: there is no such file, it holds no launch command, or several, or one that
            takes a shell or another program to understand.
    """
    if not given.strip():
        raise UsageError("an empty preset", _hint())
    path = Path(given).expanduser()
    try:
        if path.is_dir():
            path = _of_study(path)
        is_file = path.exists()
    except (OSError, ValueError):  # a command may be longer than a file's name
        is_file = False
    if not is_file:
        label, text = shorten(redact_command([given])[0]), given
        _refuse_no_command(given)
        kind, entries = "command", _guarded(entries_of_shell, text, label)
        document: dict[str, Any] = {}
    else:
        label = given
        text = read_text_file(path)
        kind, entries, document = _of_file(text, path, given)
    entries = [e for e in entries if e.argv or e.options or e.env or e.faults]
    entry = _chosen(entries, label, section, model)
    if entry.faults:
        raise UsageError(
            f"{label}: {'; '.join(entry.faults)}",
            "give the command itself, with the values that it ends up with: autofit runs no shell",
        )
    _guarded(_check_words, entry, label)
    facts = {**_heading_facts(text), **document}
    workload = facts.get("workload")
    return ReadPreset(
        label,
        entry.argv,
        entry.env,
        entry.options,
        workload if isinstance(workload, Workload) else None,
        kind,
        entry.name if len(entries) > 1 or kind in _NAMED else "",
        entry.folder,
        entry.notes,
        facts,
        entry.in_container,
    )


def _hint() -> str:
    formats = ", ".join(dict.fromkeys(SUFFIXES.values()))
    return (
        f"give a file that autofit has written ({formats}), a script, a unit, a llama-swap or "
        "compose file, or a launch command, quoted"
    )


def _refuse_no_command(given: str) -> None:
    """See that what is no file looks like a command."""
    if len(given.split()) > 1 or is_program(given):
        return
    path = Path(given)
    if path.suffix or "/" in given or shutil.which(given) is None:
        raise UsageError(f"no such preset: {given}", _hint())


def _of_study(folder: Path) -> Path:
    found = sorted((folder / "presets").glob("*.json"))
    if len(found) != 1:
        raise UsageError(f"{folder} holds {len(found) or 'no'} presets", _hint())
    return found[0]


def _of_file(text: str, path: Path, label: str) -> tuple[str, list[Entry], dict[str, Any]]:
    """The kind of a file, its servers, and what a document of ours says beside."""
    if path.suffix.lower() in _BATCH:
        raise UsageError(f"{label}: scripts of Windows are not understood", _hint())
    if path.suffix.lower() == ".json" or text.lstrip().startswith("{"):
        data = _guarded(_parsed_json, text, label)
        if is_known(data):
            return "yaml", _guarded(entries_of_data, data, path.parent, label), {}
        return "json", _guarded(entries_of_document, data, label), _document_facts(data, label)
    if path.suffix.lower() in _YAML or _YAML_START.search(text):
        data = yaml_files.read_yaml(path)
        if not is_known(data):
            raise UsageError(f"{label} has neither `models` (llama-swap) nor `services`", _hint())
        kind = "llama-swap" if "models" in data else "compose"
        return kind, _guarded(entries_of_data, data, path.parent, label), {}
    if is_unit(text):
        return "systemd", _guarded(entries_of_unit, text, path.stem, label), {}
    if path.suffix == SUFFIXES["ini"] or has_section(text):
        return "ini", _guarded(entries_of_ini, text, label), {}
    if path.suffix == SUFFIXES["env"]:
        return "env", [Entry("variables", env=file_variables(text))], {}
    entries = _guarded(entries_of_shell, text, label)
    is_env = bool(entries) and not entries[0].argv
    return "env" if is_env else "shell", entries, {}


def _guarded(read: Any, *given: Any) -> Any:  # noqa: ANN401 - any reader of a format
    """What a reader of a format makes of a text; its faults with the file's name.

    The last of what is given is the label.
    """
    *arguments, label = given
    try:
        return read(*arguments)
    except RecursionError as error:
        raise UsageError(f"{label} is no preset: nested too deeply", _hint()) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        told = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{label} is no preset: {told}", _hint()) from error


def _parsed_json(text: str) -> dict[str, Any]:
    data = json.loads(text)
    if not isinstance(data, dict):
        raise TypeError("not an object")
    return data


def _chosen(
    entries: Sequence[Entry], label: str, section: str | None, model: Path | None
) -> Entry:
    if not entries:
        raise UsageError(f"{label} holds no launch command", _hint())
    if section is not None:
        found = [*matching(entries, section)]
        if len(found) == 1:
            return found[0]
        told = f"{len(found)} are" if found else "none is"
        raise UsageError(f"{label}: {told} called '{section}'", f"it has: {listed(entries)}")
    if len(entries) > 1 and model is not None:
        found = [entry for entry in entries if entry.serves(model)]
        if len(found) == 1:
            return found[0]
    if len(entries) > 1:
        raise UsageError(
            f"{label} holds {len(entries)} servers: {listed(entries)}",
            f"choose one with --section '{entries[0].name}'",
        )
    return entries[0]


def _check_words(entry: Entry) -> None:
    """See that every word can be given to a program."""
    for word in (
        *entry.argv,
        *entry.env,
        *entry.env.values(),
        *(w for o in entry.options for w in o),
    ):
        if "\0" in word:
            raise ValueError("a word has a NUL in it, which no program can be given")
        os.fsencode(word)  # a UnicodeEncodeError is a ValueError


def _heading_facts(text: str) -> dict[str, Any]:
    """What the comments of a preset say that autofit wrote."""
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        bare = line.lstrip()
        if not bare.startswith(_COMMENT):
            continue
        workload = heading_workload(bare)
        if workload is not None:
            facts.setdefault("workload", workload)
        name, colon, told = bare.lstrip("#; ").partition(": ")
        if colon and name in ("check", "build", "devices", "headroom"):
            facts.setdefault(name, told.strip())
    return facts


def _document_facts(data: Mapping[str, Any], label: str) -> dict[str, Any]:
    """What a document of ours says beside its command."""
    told = ("check", "build", "peak_mib", "taken_mib", "free_mib")
    facts = {key: data[key] for key in told if key in data}
    if data.get("workload") and isinstance(data["workload"], Mapping):
        workload = _guarded(_workload, data["workload"], label)
        facts["workload"] = workload
    return facts


def _workload(data: Mapping[str, Any]) -> Workload:
    requests = tuple(Request(**request) for request in data["requests"])
    return Workload(**{**data, "requests": requests})


def _option_words(key: str, value: str, help_text: HelpText) -> tuple[str, ...]:
    spelling = next((word for word in (f"--{key}", f"-{key}") if word in help_text), f"--{key}")
    flag = help_text.get(spelling)
    if flag is None or flag.takes_value:
        return (spelling, value)
    if value.lower() not in _FALSE:
        return (spelling,)
    negative = [word for word in flag.spellings if word.startswith("--no-")]
    return (negative[-1],) if negative else ()
