"""The folder of one sweep: which entries it has, and what came of each, safe at any moment.

sweep.json              suite, shard and names; when it began and ended
lock/                   the lock that the commands of its entries take
entries/NAME/record.json    what the entry measured; there once it is done
entries/NAME/tune/ ...      the study of each of its commands, and TUNE.log beside it
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from autofit.errors import AutofitError, UsageError
from autofit.study.durable_file import check_free_disk, storage_error, write_durably
from autofit.study.study_location import create_study_folder, user_data_folder
from autofit.sweep.entry_record import EntryRecord
from autofit.sweep.suite import Suite

_HEAD = "sweep.json"
_SCHEMA = 1
_NEEDED_MIB = 200.0
_DAMAGED = (KeyError, TypeError, ValueError)


@dataclass(frozen=True, slots=True, kw_only=True)
class NightHead:
    """What a sweep is of; equal for those that can go on with one another.

    `suite` is the suite's name and `digest` that of its text; `shard` is (I, N).
    """

    suite: str
    digest: str
    names: tuple[str, ...]
    only: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None

    @classmethod
    def of(cls, suite: Suite, only: Sequence[str], shard: tuple[int, int] | None) -> NightHead:
        """The head of a sweep over a suite."""
        names = tuple(entry.name for entry in suite.chosen(only, shard))
        text = suite.path.read_bytes()
        return cls(
            suite=suite.name,
            digest=hashlib.sha256(text).hexdigest()[:16],
            names=names,
            only=tuple(only),
            shard=shard,
        )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NightHead:
        """The inverse of `asdict`.

        Raises:
            KeyError, TypeError: the data is no head.
        """
        shard = data["shard"]
        return cls(
            suite=data["suite"],
            digest=data["digest"],
            names=tuple(data["names"]),
            only=tuple(data["only"]),
            shard=(shard[0], shard[1]) if shard else None,
        )


class NightFolder:
    """The folder of a sweep, read and written."""

    def __init__(self, path: Path, head: NightHead) -> None:
        self.path = path
        self.head = head

    @classmethod
    def create(cls, path: Path | None, head: NightHead, *, today: date) -> NightFolder:
        """Begin a sweep in a new or empty folder, by default below `results/sweeps`.

        Raises:
            UsageError: there is something else in it.
            AutofitError: it cannot be written, or its disk is full.
        """
        try:
            if path is None:
                part = f"-{head.shard[0]}-of-{head.shard[1]}" if head.shard else ""
                path = create_study_folder(
                    f"{head.suite}{part}",
                    today=today,
                    parent=sweeps_folder(),
                    fallback=_elsewhere(),
                )
            path = path.absolute()
            try:
                check_free_disk(path, _NEEDED_MIB)
            except AutofitError as error:
                raise _refused(error) from error
            path.mkdir(parents=True, exist_ok=True)
            foreign = sorted(one.name for one in path.iterdir() if not one.name.endswith(".tmp"))
        except OSError as error:
            raise _refused(storage_error(error, path or sweeps_folder())) from error
        if foreign:
            what = "there is a sweep in" if _HEAD in foreign else "there is something else in"
            raise UsageError(
                f"{what} {path} already", "go on with it with --resume, or choose another"
            )
        folder = cls(path, head)
        folder._write(path / _HEAD, {"schema": _SCHEMA, **asdict(head)})
        return folder

    @classmethod
    def open(cls, path: Path) -> NightFolder:
        """Read the folder of a sweep.

        Raises:
            UsageError: it is none.
        """
        try:
            head = NightHead.from_dict(json.loads((path / _HEAD).read_text(encoding="utf-8")))
        except (OSError, *_DAMAGED) as error:
            reason = getattr(error, "strerror", None) or f"{_HEAD}: {error}"
            if isinstance(error, FileNotFoundError):
                reason = f"it has no {_HEAD}" if path.is_dir() else "it is not there"
            raise UsageError(
                f"{path} is no folder of a sweep: {reason}", "`ls results/sweeps` shows them"
            ) from error
        return cls(path.absolute(), head)

    @classmethod
    def latest(cls, head: NightHead) -> NightFolder | None:
        """The newest folder of a sweep over the same suite, names and shard."""
        found = []
        places = (sweeps_folder(), _elsewhere())
        for path in (path for place in places for path in place.glob(f"*/{_HEAD}")):
            try:
                folder = cls.open(path.parent)
            except UsageError:
                continue
            own = folder.head
            if (own.suite, own.only, own.shard) == (head.suite, head.only, head.shard):
                found.append((path.stat().st_mtime, str(path), folder))
        return max(found, key=lambda one: one[:2])[2] if found else None

    @property
    def lock(self) -> Path:
        """Where the commands of the entries keep their lock."""
        return self.path / "lock"

    def entry(self, name: str) -> Path:
        """The folder of an entry; made where it is not there.

        Raises:
            AutofitError: it cannot be.
        """
        path = self.path / "entries" / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(storage_error(error, path)) from error
        return path

    def record(self, name: str) -> EntryRecord | None:
        """What an entry measured, None where it is not done.

        Raises:
            AutofitError: the file is damaged.
        """
        path = self.path / "entries" / name / "record.json"
        try:
            return EntryRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(storage_error(error, path)) from error
        except _DAMAGED as error:
            raise AutofitError(
                f"{path} is damaged: {error}",
                "remove it and go on with --resume: no launch is repeated",
            ) from error

    def write_record(self, record: EntryRecord) -> None:
        """Keep what an entry measured for good.

        Raises:
            AutofitError: the disk refuses.
        """
        self._write(self.entry(record.name) / "record.json", record.to_dict())

    def write_output(self, name: str, text: str) -> Path:
        """Write a report into the folder.

        Raises:
            AutofitError: the disk refuses.
        """
        path = self.path / name
        try:
            write_durably(path, text)
        except OSError as error:
            raise _refused(storage_error(error, path)) from error
        return path

    @staticmethod
    def _write(path: Path, data: Mapping[str, Any]) -> None:
        try:
            write_durably(path, json.dumps(data, indent=1) + "\n")
        except OSError as error:
            raise _refused(storage_error(error, path)) from error


def sweeps_folder() -> Path:
    """Where sweeps go when nobody says."""
    return Path.cwd() / "results" / "sweeps"


def _refused(error: AutofitError) -> AutofitError:
    """What a study says of a disk that refuses, with the option that a sweep has."""
    return type(error)(error.message, error.hint.replace("--study DIR", "--folder DIR"))


def _elsewhere() -> Path:
    """Where they go when that cannot be written."""
    return user_data_folder() / "sweeps"
