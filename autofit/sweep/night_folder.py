"""The folder of one sweep: its entries and their records. Each file is always complete.

sweep.json              suite, shard and names of the sweep
lock/                   the lock that the commands of its entries take
entries/NAME/record.json    the measurements of an entry that is done
entries/NAME/tune/ ...      the study of each of its commands, and the log tune.log ...
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from pydantic import TypeAdapter

from autofit.errors import AutofitError, UsageError
from autofit.input_files import parse_json, read_input, read_json
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
    """The head of a sweep, which identifies it: a sweep can continue another with an equal head.

    `suite` is the name of the suite, `digest` the digest of its text, and `shard` is (I, N).
    `night` is the name of the night that other runners share, or None.
    """

    suite: str
    digest: str
    names: tuple[str, ...]
    only: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    night: str | None = None

    @classmethod
    def of(cls, suite: Suite, only: Sequence[str], shard: tuple[int, int] | None) -> NightHead:
        """Return the head of a sweep of a suite."""
        return cls(
            suite=suite.name,
            digest=hashlib.sha256(suite.path.read_bytes()).hexdigest()[:16],
            names=tuple(entry.name for entry in suite.select(only, shard)),
            only=tuple(only),
            shard=shard,
        )

    def is_part_of(self, other: NightHead) -> bool:
        """Return whether this is the same part of the same suite; its text may have changed."""
        return (self.suite, self.only, self.shard) == (other.suite, other.only, other.shard)


class NightFolder:
    """The folder of a sweep, read and written."""

    def __init__(self, path: Path, head: NightHead) -> None:
        self.path = path
        self.head = head

    @classmethod
    def create(cls, path: Path | None, head: NightHead, *, today: date) -> NightFolder:
        """Begin a sweep in a new or empty folder, by default below `results/sweeps`.

        Raises:
            UsageError: the folder contains other files.
            AutofitError: the folder cannot be written, or the disk is full.
        """
        with _storage(path or _default_folder()):
            if path is None:
                part = f"-{head.shard[0]}-of-{head.shard[1]}" if head.shard else ""
                path = create_study_folder(
                    f"{head.suite}{part}",
                    today=today,
                    parent=_default_folder(),
                    fallback=_fallback_folder(),
                )
            path = path.absolute()
            check_free_disk(path, _NEEDED_MIB)
            path.mkdir(parents=True, exist_ok=True)
            present = sorted(one.name for one in path.iterdir() if not one.name.endswith(".tmp"))
        if present:
            content = "a sweep" if _HEAD in present else "other files"
            raise UsageError(
                f"{path} already contains {content}",
                "continue that sweep with --resume, or choose another folder",
            )
        folder = cls(path, head)
        folder.write(_HEAD, json.dumps({"schema": _SCHEMA, **asdict(head)}, indent=1) + "\n")
        return folder

    @classmethod
    def open(cls, path: Path) -> NightFolder:
        """Read the folder of a sweep.

        Raises:
            UsageError: the folder is not that of a sweep.
        """
        try:
            data = read_json(path / _HEAD)
            head = TypeAdapter(NightHead).validate_python(data)
        except (OSError, *_DAMAGED) as error:
            reason = getattr(error, "strerror", None) or f"{_HEAD}: {error}"
            if isinstance(error, FileNotFoundError):
                reason = f"it has no {_HEAD}" if path.is_dir() else "it does not exist"
            raise UsageError(
                f"{path} is not the folder of a sweep: {reason}",
                "use `ls results/sweeps` to list the sweeps",
            ) from error
        return cls(path.absolute(), head)

    @classmethod
    def latest(cls, head: NightHead) -> NightFolder | None:
        """Return the newest sweep folder that has the suite, names, shard and night of a head."""
        return cls._latest(lambda own: own.night == head.night and own.is_part_of(head))

    @classmethod
    def latest_shared(cls, head: NightHead) -> NightFolder | None:
        """Return the newest sweep folder of a shared night with the suite of a head."""
        return cls._latest(lambda own: own.night is not None and own.is_part_of(head))

    @classmethod
    def _latest(cls, is_meant: Callable[[NightHead], bool]) -> NightFolder | None:
        found = []
        parents = (_default_folder(), _fallback_folder())
        for path in (path for parent in parents for path in parent.glob(f"*/{_HEAD}")):
            try:
                folder = cls.open(path.parent)
            except UsageError:
                continue
            if is_meant(folder.head):
                found.append((path.stat().st_mtime, str(path), folder))
        return max(found, key=lambda one: one[:2])[2] if found else None

    @property
    def lock(self) -> Path:
        """The folder of the lock that the commands of the entries take."""
        return self.path / "lock"

    def entry(self, name: str) -> Path:
        """Return the folder of an entry, and create it if it does not exist.

        Raises:
            AutofitError: the folder cannot be created.
        """
        path = self.path / "entries" / name
        with _storage(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def record(self, name: str) -> EntryRecord | None:
        """Return the record of an entry, or None if it is not done.

        Raises:
            AutofitError: the file is damaged.
        """
        path = self.path / "entries" / name / "record.json"
        try:
            with _storage(path):
                if not path.exists():
                    return None
                data = read_input(path)
            return EntryRecord.from_dict(parse_json(data))
        except _DAMAGED as error:
            reason = " ".join(str(error).split())
            raise AutofitError(
                f"{path} is damaged: {reason}",
                "remove it and continue with --resume: no launch is repeated",
            ) from error

    def write_record(self, record: EntryRecord) -> None:
        """Save the record of an entry.

        Raises:
            AutofitError: the record cannot be written.
        """
        path = self.entry(record.name) / "record.json"
        self.write(str(path.relative_to(self.path)), json.dumps(record.to_dict(), indent=1) + "\n")

    def write(self, name: str, text: str) -> None:
        """Write a file of the folder.

        Raises:
            AutofitError: the file cannot be written.
        """
        with _storage(self.path / name):
            write_durably(self.path / name, text)


def _default_folder() -> Path:
    return Path.cwd() / "results" / "sweeps"


def _fallback_folder() -> Path:
    """Return the folder for sweeps that is used if the default one cannot be written."""
    return user_data_folder() / "sweeps"


@contextmanager
def _storage(path: Path) -> Iterator[None]:
    """Raise disk errors with a hint to the sweep's option for its folder."""
    try:
        yield
    except (OSError, AutofitError) as error:
        cause = storage_error(error, path) if isinstance(error, OSError) else error
        hint = cause.hint.replace("--study DIR", "--folder DIR")
        raise type(cause)(cause.message, hint) from error
