"""A study on disk: every launch of one tune, safe at any moment, and how to go on with it.

    study.json           header and, once concluded, the result
    trials/0007.json     one launch, written before anyone acts on it
    trials/0007.log      the server's output
    trials/0007.running  there while the launch runs
    trials/0007.cut_off  a launch that ended with autofit; it may be tried again
    skipped.jsonl        what was not launched, and because of what
    presets/  report.md  report.html

`trials/` is the only truth. A file that cannot be read is left alone, named in a notice,
and its number is not used again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from autofit.errors import AutofitError, UsageError
from autofit.study.durable_file import (
    append_line,
    check_free_disk,
    read_lines,
    storage_error,
    sync_folder,
    write_durably,
)
from autofit.study.field_types import require_types
from autofit.study.folder_lock import (
    hold_reserve,
    lock_folder,
    refuse_foreign,
    write_from_reserve,
)
from autofit.study.running_mark import RunningMark, boot_id
from autofit.study.schema import SCHEMA
from autofit.study.skipped import SkippedCandidate
from autofit.study.study_document import DAMAGED, brief, current, dump, read
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial

_NUMBERED = re.compile(r"(\d{4,})\.(json|log|running|cut_off)")
# Some hundred launches, each with a log of a megabyte at most.
_NEEDED_MIB = 200


class Study:
    """One study folder, open for reading (`open`) or, locked, for writing (`create`, `resume`).

    `notices` are remarks for the user on what was found damaged or cut off.
    """

    def __init__(
        self,
        path: Path,
        header: StudyHeader,
        result: Mapping[str, Any] | None,
        lock: FileLock | None,
    ) -> None:
        self.path = path
        self.header = header
        self.result = result
        self.notices: list[str] = []
        self._lock = lock

    @classmethod
    def create(cls, path: Path, header: StudyHeader, *, needed_mib: float = _NEEDED_MIB) -> Study:
        """Begin a study in a folder that is new, empty, or was left before it began.

        Raises:
            UsageError: the folder holds something else.
            AutofitError: it cannot be written, is in use, or its disk has less than
                `needed_mib` free.
        """
        path = path.absolute()
        check_free_disk(path, needed_mib)
        try:
            path.mkdir(parents=True, exist_ok=True)
            study = cls(path, header, None, lock_folder(path))
        except OSError as error:
            raise storage_error(error, path) from error
        with study._closed_on_error():
            refuse_foreign(path)
            (path / "trials").mkdir(exist_ok=True)
            hold_reserve(path)
            study._write_head()
        return study

    @classmethod
    def open(cls, path: Path) -> Study:
        """Read a study, also while a tune is writing it.

        Raises:
            UsageError: there is none.
            AutofitError: its head is damaged or from a newer autofit.
        """
        header, result = _read_head(path.absolute())
        return cls(path.absolute(), header, result, None)

    @classmethod
    def resume(cls, path: Path, header: StudyHeader) -> Study:
        """Go on with a study under the header that a new one would get.

        Launches that were cut off are settled as `autofit.study.running_mark` says.

        Raises:
            UsageError: there is no study, or it is of another model, machine or purpose.
            AutofitError: it is in use, damaged, or cannot be written.
        """
        path = path.absolute()
        stored, result = _read_head(path)
        conflicts = stored.conflicts(header)
        if conflicts:
            raise UsageError(
                f"the study {path} was made under other conditions: " + "; ".join(conflicts),
                "restore them, or start a new study with another `--study DIR`",
            )
        try:
            study = cls(path, stored, result, lock_folder(path))
        except OSError as error:
            raise storage_error(error, path) from error
        with study._closed_on_error():
            study._settle()
            with suppress(OSError):
                hold_reserve(path)
        return study

    def close(self) -> None:
        """Let others write the study."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def trials(self) -> tuple[Trial, ...]:
        """Every trial, by number, read from the folder."""
        found = []
        for number, kind in sorted(self._numbered()):
            if kind == "json":
                trial = self._read_trial(number)
                if trial is not None:
                    found.append(trial)
        return tuple(found)

    def next_number(self) -> int:
        """The first number that no file of an earlier launch carries."""
        return max((number for number, _ in self._numbered()), default=0) + 1

    def cut_off(self) -> tuple[int, ...]:
        """The numbers of launches that ended with autofit: they took place, but are no trials."""
        return tuple(sorted(number for number, kind in self._numbered() if kind == "cut_off"))

    def started(self) -> tuple[int, ...]:
        """The numbers of all launches that started a process, whatever became of them."""
        return tuple(sorted(number for number, kind in self._numbered() if kind == "log"))

    def log_path(self, number: int) -> Path:
        """Where the server's output of a launch goes."""
        return self._file(number, "log")

    @contextmanager
    def launching(
        self,
        number: int,
        *,
        purpose: TrialPurpose,
        candidate: Candidate,
        layout: str = "",
        is_verbatim: bool = False,
        argv: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        started_at: float,
    ) -> Iterator[None]:
        """Mark a launch as under way; write its trial before leaving.

        However the block is left, the launch is over then, so the mark goes: only the death
        of autofit itself leaves it behind.
        """
        mark = RunningMark(
            number=number,
            purpose=purpose,
            candidate=candidate,
            layout=layout,
            is_verbatim=is_verbatim,
            argv=tuple(argv),
            env=dict(env or {}),
            started_at=started_at,
            boot_id=boot_id(),
        )
        path = self._file(number, "running")
        self._write(path, dump(mark.to_dict()))
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def write_trial(self, trial: Trial) -> None:
        """Keep a trial for good; after this returns, neither a kill nor a power cut loses it.

        Raises:
            AutofitError: the disk refuses. If it was merely full, the trial was still kept,
                in room held in reserve.
        """
        self._write(self._file(trial.number, "json"), dump(trial.to_dict()))

    def skip(self, skipped: SkippedCandidate) -> None:
        """Note a candidate that will not be launched."""
        self._require_lock()
        path = self.path / "skipped.jsonl"
        try:
            append_line(path, {"schema": SCHEMA, **skipped.to_dict()})
        except OSError as error:
            raise storage_error(error, path) from error

    def skipped(self) -> tuple[SkippedCandidate, ...]:
        """Every candidate that was not launched, oldest first."""
        path = self.path / "skipped.jsonl"
        try:
            records, faults = read_lines(path)
        except OSError as error:
            raise storage_error(error, path) from error
        found = []
        for record in records:
            try:
                found.append(SkippedCandidate.from_dict(current(record, "skipped")))
            except (AutofitError, *DAMAGED):
                faults += 1
        if faults:
            self._notice(f"{faults} unreadable lines in {path.name} were left out")
        return tuple(found)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Write what the tune concluded into `study.json`; a later conclusion replaces it."""
        self.result = result
        self._write_head()

    def write_output(self, name: str, text: str) -> Path:
        """Write a report or preset into the folder (`report.md`, `presets/winner.ini`)."""
        path = self.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, text)
        except OSError as error:
            raise storage_error(error, path) from error
        return path

    def _file(self, number: int, kind: str) -> Path:
        return self.path / "trials" / f"{number:04d}.{kind}"

    def _numbered(self) -> Iterator[tuple[int, str]]:
        try:
            names = os.listdir(self.path / "trials")  # noqa: PTH208 - names are all it takes
        except FileNotFoundError:
            return
        for name in names:
            match = _NUMBERED.fullmatch(name)
            if match:
                yield int(match[1]), match[2]

    def _read_trial(self, number: int) -> Trial | None:
        path = self._file(number, "json")
        try:
            trial = Trial.from_dict(read(path, "trial"))
            require_types(trial)
        except (OSError, *DAMAGED) as error:
            self._notice(f"trials/{path.name} cannot be read and was left out: {brief(error)}")
            return None
        except AutofitError as error:
            self._notice(f"trials/{path.name} was left out: {error.message}")
            return None
        if trial.number != number:
            self._notice(f"trials/{path.name} holds trial {trial.number} and was left out")
            return None
        return trial

    def _settle(self) -> None:
        numbered = set(self._numbered())
        for number in sorted(number for number, kind in numbered if kind == "running"):
            path = self._file(number, "running")
            if (number, "json") in numbered and self._read_trial(number) is not None:
                path.unlink()
                continue
            try:
                mark = RunningMark.from_dict(read(path, "mark"))
            except (OSError, AutofitError, *DAMAGED):
                mark = None
            if mark is not None and mark.boot_id != boot_id() and (number, "json") not in numbered:
                self.write_trial(mark.crashed_trial())
                path.unlink()
                self._notice(
                    f"the machine went down during launch {number}: it is not tried again"
                )
            else:
                path.replace(path.with_suffix(".cut_off"))
                self._notice(f"launch {number} was cut off: its candidate may be tried again")
        sync_folder(self.path / "trials")

    def _write_head(self) -> None:
        head = {**self.header.to_dict(), "result": self.result}
        self._write(self.path / "study.json", dump(head))

    def _write(self, path: Path, text: str) -> None:
        self._require_lock()
        try:
            write_durably(path, text)
        except OSError as error:
            write_from_reserve(self.path, path, text)
            raise storage_error(error, path) from error

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.close()
            raise storage_error(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def _require_lock(self) -> None:
        if self._lock is None:
            msg = "this study is open for reading only"
            raise RuntimeError(msg)

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)


def _head_of(data: dict[str, Any]) -> tuple[StudyHeader, Mapping[str, Any] | None]:
    result = data.pop("result", None)
    header = StudyHeader.from_dict(data)
    require_types(header)
    if result is not None and not isinstance(result, dict):
        raise TypeError(f"result cannot be {result!r:.40}")
    return header, result


def _read_head(path: Path) -> tuple[StudyHeader, Mapping[str, Any] | None]:
    file = path / "study.json"
    try:
        return _head_of(read(file, "study"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} is no study: it has no study.json",
            "give the folder that a tune has written, such as results/<model>-<date>-1",
        ) from error
    except OSError as error:
        raise storage_error(error, file) from error
    except AutofitError as error:
        raise AutofitError(f"{file}: {error.message}", error.hint) from error
    except DAMAGED as error:
        raise AutofitError(
            f"{file} is damaged: {brief(error)}",
            "the launches in trials/ are untouched; start a new study with another `--study DIR`",
        ) from error
