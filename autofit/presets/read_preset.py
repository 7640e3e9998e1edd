"""A preset that a user gives: a file, the folder of a study, or a quoted launch command."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Any

from autofit.errors import UsageError
from autofit.presets.formats.preset_format import open_preset_file
from autofit.presets.formats.registry import FORMATS, recognize_format
from autofit.presets.formats.shell import shell_servers
from autofit.presets.formats.variable_expansion import without_marks, without_private
from autofit.presets.preset_heading import heading_metadata
from autofit.presets.server_entry import ServerEntry, is_program
from autofit.runtime.command.redaction import redact_text
from autofit.trial.workload import Workload

_HINT = (
    "give a file that autofit has written "
    f"({', '.join(dict.fromkeys(known.suffix for known in FORMATS.values()))}), a script, a "
    "systemd unit, a llama-swap or compose file, or a launch command in quotes"
)
_MOST_FAULTS = 5
_LONGEST_LABEL = 60
_LABEL_START = 18
# Characters before the first difference of two commands that both labels keep.
_BEFORE_DIFFERENCE = 20


@dataclass(frozen=True, slots=True)
class ParsedPreset:
    """One server of a preset file or command, and what autofit recorded in the file.

    `label` is the user's text for the preset, shortened. `kind` is the format, or `command`.
    `section` is the server's name in the file, empty if it has none. `metadata` are the check
    value, the workload and the memory that autofit recorded, as far as the file has them.
    """

    label: str
    kind: str
    server: ServerEntry
    section: str = ""

    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workload(self) -> Workload | None:
        """The workload that the preset was tuned for, or None if the file does not name it."""
        return self.metadata.get("workload")


def read_preset(
    given: str, *, section: str | None = None, model: Path | None = None
) -> ParsedPreset:
    """Read a preset: a file, the folder of a finished tune, or a quoted launch command.

    If a file has several servers, `section` chooses one: by its name, or by the path or name of
    its model file. Without `section`, the only server of `model` is chosen.

    Raises:
        UsageError: there is no such file, it has no launch command, it has several servers and
            none is chosen, or only another program can evaluate the command.
    """
    if not given.strip():
        raise UsageError("the preset must not be empty", _HINT)
    path = _existing_path(given)
    label = given if path else shorten(redact_text(given))
    metadata: Mapping[str, Any]
    with _named_faults(label):
        if path is None:
            entries = shell_servers(without_private(given))
            kind, metadata = "command", heading_metadata(given)
        else:
            kind, entries, metadata = _read_file(path)
        entries = [e for e in entries if e.argv or e.options or e.env or e.faults]
        server = _chosen(entries, label, section, model)
        _check_encodable(server)
    refuse_faults(label, server.faults)
    is_named = len(entries) > 1 or (kind in FORMATS and FORMATS[kind].names_servers)
    section = server.name if is_named else ""
    return ParsedPreset(label, kind, server, section, metadata)


def refuse_faults(label: str, faults: Sequence[str]) -> None:
    """Raise a UsageError that names the parts of a preset that are not understood."""
    if faults:
        raise UsageError(
            f"{label}: {'; '.join(faults[:_MOST_FAULTS])}",
            "give the command itself with its final values: autofit does not run a shell",
        )


def _existing_path(given: str) -> Path | None:
    """Return the path of a file, or None for a command.

    Raises:
        UsageError: it is neither, or a folder without exactly one preset.
    """
    path = Path(given).expanduser()
    try:
        if path.is_dir():
            found = sorted((path / "presets").glob("*.json"))
            if len(found) == 1:
                return found[0]
            raise UsageError(f"{path} has {len(found) or 'no'} presets", _HINT)
        if path.exists():
            return path
    except (OSError, ValueError):  # a command may be longer than a file name
        pass
    if len(given.split()) > 1 or is_program(given):
        return None
    if path.suffix or "/" in given or shutil.which(given) is None:
        raise UsageError(f"no such preset: {given}", _HINT)
    return None


def _read_file(path: Path) -> tuple[str, list[ServerEntry], Mapping[str, Any]]:
    """Return a file's format, its servers, and what autofit recorded in it."""
    file = open_preset_file(path)
    kind = recognize_format(file)
    read = FORMATS[kind].read
    entries = (
        read(file) if read else shell_servers(file.text, script_folder=path.absolute().parent)
    )
    if kind == "shell" and entries and not entries[0].argv:
        kind = "env"
    return kind, entries, FORMATS[kind].metadata(file)


@contextmanager
def _named_faults(label: str) -> Iterator[None]:
    """Turn what a reader raises about a file's content into errors that name the file."""
    try:
        yield
    except RecursionError as error:
        raise UsageError(f"{label} is not a preset: nested too deeply", _HINT) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        fault = f"it has no {error}" if isinstance(error, KeyError) else error
        raise UsageError(f"{label} is not a preset: {fault}", _HINT) from error


def _chosen(
    entries: Sequence[ServerEntry], label: str, section: str | None, model: Path | None
) -> ServerEntry:
    if not entries:
        raise UsageError(f"{label} has no launch command", _HINT)
    if section is not None:
        found = _called(entries, section)
        if len(found) == 1:
            return found[0]
        count = f"{len(found)} servers are" if found else "no server is"
        raise UsageError(f"{label}: {count} called '{section}'", f"it has: {_listed(entries)}")
    if len(entries) > 1 and model is not None:
        found = [entry for entry in entries if entry.serves(model)]
        if len(found) == 1:
            return found[0]
    if len(entries) > 1:
        raise UsageError(
            f"{label} has {len(entries)} servers: {_listed(entries)}",
            f"choose one with --section '{entries[0].name}'",
        )
    return entries[0]


def _called(entries: Sequence[ServerEntry], section: str) -> list[ServerEntry]:
    """Return the servers of that name.

    If there are none, return those whose model file has the name.
    """
    named = [entry for entry in entries if entry.name == section]
    return (
        named
        or [entry for entry in entries if entry.name.strip() == section.strip()]
        or [
            entry
            for entry in entries
            if section in (entry.model, PurePath(entry.model).name, PurePath(entry.model).stem)
        ]
    )


def _listed(entries: Sequence[ServerEntry]) -> str:
    models = [without_marks(PurePath(entry.model).name) for entry in entries]
    return ", ".join(
        f"{entry.name} ({model})" if model and model != entry.name else entry.name
        for entry, model in zip(entries, models, strict=True)
    )


def _check_encodable(server: ServerEntry) -> None:
    """Raise a ValueError for text that no program can be given."""
    options = (text for option in server.options for text in option)
    for text in (*server.argv, *server.env, *server.env.values(), *options):
        if "\0" in text:
            raise ValueError("it contains a NUL character, which no argument can have")
        os.fsencode(text)  # a UnicodeEncodeError is a ValueError


def shorten(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Return a command on one line, cut at its end if it is long."""
    plain = " ".join(text.split())
    return plain if len(plain) <= longest else plain[: longest - 3] + "..."


def shorten_apart(one: str, other: str) -> tuple[str, str]:
    """Shorten two commands so that their texts still differ, unless they are the same.

    Commands with the same long beginning are cut in the middle, to show where they differ.
    """
    texts = " ".join(one.split()), " ".join(other.split())
    labels = shorten(texts[0]), shorten(texts[1])
    if labels[0] != labels[1] or texts[0] == texts[1]:
        return labels
    same = takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False))
    difference = sum(1 for _ in same)
    # With the argument before, which may be the flag whose value differs.
    word = texts[0].rfind(" ", 0, difference) + 1
    before = texts[0].rfind(" ", 0, max(0, word - 1)) + 1
    start = max(before, difference - _BEFORE_DIFFERENCE)
    first, second = (
        f"{text[:_LABEL_START].rstrip()} ... "
        f"{shorten(text[start:], _LONGEST_LABEL - _LABEL_START - 5)}"
        for text in texts
    )
    return first, second
