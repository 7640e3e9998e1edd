"""Asking a program what it is, once: answers are kept in the user's cache folder.

A kept answer belongs to a fingerprint of the program and the libraries beside it (path,
size, time of change), so a rebuilt program is asked again.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from tempfile import NamedTemporaryFile

import platformdirs
from pydantic import TypeAdapter

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect, Evidence, Words
from autofit.runtime.discovery.help_text import HelpText, parse_help
from autofit.runtime.discovery.short_run import PATH_HINT, check, start

# Where an installed program's libraries lie, seen from its own folder.
_LIBRARY_FOLDERS = (".", "../lib", "../lib64")


class Probe:
    """One program, its answers and the texts in its files.

    `env` is what the program turned out to need in its environment to start at all.
    """

    def __init__(self, program: Path, command: Words, cache: Path | None = None) -> None:
        self.program = program
        self.command = command
        self.fingerprint = _fingerprint(program, command)
        folder = cache or platformdirs.user_cache_path("autofit") / "runtimes"
        self._record_path = folder / f"{self.fingerprint}.json"
        self._record = _read_record(self._record_path)
        self._helps: dict[Words, HelpText] = {}

    @property
    def env(self) -> dict[str, str]:
        """Variables that the program needs to start."""
        return self._record.env

    def ask(self, words: Words, timeout_s: float) -> str:
        """What the program prints on stdout, or else on stderr, when given these words.

        Raises:
            UsageError: it cannot be started, fails, hangs or prints nothing.
        """
        key = " ".join(words)
        if key not in self._record.answers:
            self._record.answers[key] = self._run(words, timeout_s)
            _write_record(self._record_path, self._record)
        return self._record.answers[key]

    def help(self, words: Words, timeout_s: float) -> HelpText:
        """The program's help.

        Raises:
            UsageError: as `ask`, or the answer lists no flags.
        """
        if words not in self._helps:
            parsed = parse_help(self.ask(words, timeout_s))
            if not parsed.flags:
                raise UsageError(
                    f"{self.program} is not a runtime: its {' '.join(words)} lists no flags",
                    PATH_HINT,
                )
            self._helps[words] = parsed
        return self._helps[words]

    def has_text(self, text: str, files: Words) -> bool:
        """Whether the bytes of a text are in the program or in matching files beside it."""
        key = "|".join((text, *files))
        if key not in self._record.texts:
            self._record.texts[key] = any(_contains(path, text) for path in self._files(files))
            _write_record(self._record_path, self._record)
        return self._record.texts[key]

    def shows(self, evidence: Evidence, dialect: Dialect) -> bool:
        """Whether the program shows a sign of a dialect.

        Raises:
            UsageError: as `help`.
        """
        if evidence.text is not None:
            return self.has_text(evidence.text, evidence.files)
        listed = self.help(dialect.ask.help, dialect.ask.timeout_s)
        if evidence.flag is not None:
            return evidence.flag in listed
        return evidence.matches_help(listed.text)

    def _files(self, patterns: Words) -> Iterator[Path]:
        yield self.program
        for folder in _LIBRARY_FOLDERS:
            for path in _entries(self.program.parent / folder):
                if any(fnmatch(path.name, pattern) for pattern in patterns):
                    yield path

    def _run(self, words: Words, timeout_s: float) -> str:
        finished = start((*self.command, *words), self.env, timeout_s, tells_wait=True)
        if "error while loading shared libraries" in finished.stderr and not self.env:
            # Repackaged builds put the libraries beside the program without a run path.
            others = os.environ.get("LD_LIBRARY_PATH")
            folder = str(self.program.parent)
            self.env["LD_LIBRARY_PATH"] = f"{folder}:{others}" if others else folder
            finished = start((*self.command, *words), self.env, timeout_s, tells_wait=True)
        check(self.program, words, finished, timeout_s)
        answer = finished.stdout if finished.stdout.strip() else finished.stderr
        if not answer.strip():
            raise UsageError(
                f"{self.program} is not a runtime: {' '.join(words)} prints nothing", PATH_HINT
            )
        return answer


@dataclass(slots=True)
class _Record:
    """What is kept of a program; `env` belongs to the answers."""

    answers: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bool] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def _read_record(path: Path) -> _Record:
    try:
        return TypeAdapter(_Record).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return _Record()  # there is none, or it is damaged: ask again


def _write_record(path: Path, record: _Record) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump(asdict(record), file)
        Path(file.name).replace(path)
    except OSError:
        pass  # a cache that cannot be written costs time only


def _fingerprint(program: Path, command: Words) -> str:
    """A digest of the program and of everything beside it: libraries decide what it can."""
    digest = hashlib.sha256(" ".join(command).encode())
    folders = [program.parent / folder for folder in _LIBRARY_FOLDERS]
    beside = (path for folder in folders for path in _entries(folder) if ".so" in path.name)
    for path in (program, *beside):
        try:
            stat = path.stat()
        except OSError:
            continue
        digest.update(f"|{path}|{stat.st_mtime_ns}|{stat.st_size}".encode())
    return digest.hexdigest()[:24]


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _contains(path: Path, text: str) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(text.encode()) >= 0
    except (OSError, ValueError):  # gone, unreadable or empty
        return False
