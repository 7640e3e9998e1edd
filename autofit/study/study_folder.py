"""A study on disk: every launch of a run, safe at any moment.

    study.json           header and, at the end, the result
    trials/0007.json     one launch, written before it is used
    trials/0007.log      the server's output
    trials/0007.running  exists during the launch
    trials/0007.cut_off  a launch that ended with autofit; it may be tried again
    skipped.jsonl        candidates that were not launched, and the reason
    presets/  report.md  report.html

`trials/` is the only truth. A file that cannot be read is not changed, a notice names it, and its
number is not used again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
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
from autofit.study.stored_result import StoredResult
from autofit.study.study_document import (
    DAMAGED,
    SCHEMA,
    describe_error,
    dump_document,
    read_document,
    require_types,
    upgrade,
)
from autofit.study.study_header import StudyHeader
from autofit.study.study_location import (
    lock_study,
    require_new_folder,
    reserve_disk,
    write_with_reserve,
)
from autofit.study.study_records import (
    SkippedCandidate,
    boot_id,
    lost_trial_from_dict,
    mark_to_dict,
)
from autofit.trial.trial import Trial

_NUMBERED = re.compile(r"(\d{4,})\.(json|log|running|cut_off)")
# Some hundred launches, each with a log of at most a megabyte.
_NEEDED_MIB = 200


class Study:
    """A study folder, open for reading (`open`) or locked for writing (`create`, `resume`).

    `notices` are remarks for the user on damaged files and cut off launches.
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
        """Create a study in a new or empty folder.

        Raises:
            UsageError: the folder has other contents.
            AutofitError: it cannot be written, is in use, or its disk has less than
                `needed_mib` free.
        """
        path = path.absolute()
        check_free_disk(path, needed_mib)
        try:
            path.mkdir(parents=True, exist_ok=True)
            study = cls(path, header, None, lock_study(path))
        except OSError as error:
            raise storage_error(error, path) from error
        with study._closed_on_error():
            require_new_folder(path)
            (path / "trials").mkdir(exist_ok=True)
            reserve_disk(path)
            study._write_head()
        return study

    @classmethod
    def open(cls, path: Path) -> Study:
        """Open a study for reading, even while a tune writes it.

        Raises:
            UsageError: there is no study.
            AutofitError: its head is damaged or from a newer autofit.
        """
        header, result = _read_head(path.absolute())
        return cls(path.absolute(), header, result, None)

    @classmethod
    def resume(cls, path: Path, header: StudyHeader) -> Study:
        """Open a study for writing; `header` is what a new study would get.

        `autofit.study.study_records` defines the result of launches that were in progress.

        Raises:
            UsageError: there is no study, or it has another model, machine or purpose.
            AutofitError: it is in use, damaged, or cannot be written.
        """
        path = path.absolute()
        stored, result = _read_head(path)
        conflicts = stored.conflicts(header)
        if conflicts:
            raise UsageError(
                f"the study {path} was started with other conditions: " + "; ".join(conflicts),
                "restore them, or start a new study with another `--study DIR`",
            )
        try:
            study = cls(path, stored, result, lock_study(path))
        except OSError as error:
            raise storage_error(error, path) from error
        with study._closed_on_error():
            if not (path / "trials").is_dir():
                study._notice("trials/ is missing: every launch is made again")
                (path / "trials").mkdir(exist_ok=True)
            study._settle_marks()
            with suppress(OSError):
                reserve_disk(path)
        return study

    def close(self) -> None:
        """Release the lock, so that others can write the study."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def trials(self) -> tuple[Trial, ...]:
        """Read every trial, in the order of numbers."""
        found = []
        for number, kind in sorted(self._numbered()):
            if kind == "json":
                trial = self._read_trial(number)
                if trial is not None:
                    found.append(trial)
        return tuple(found)

    def next_number(self) -> int:
        """Return the first number that no file of an earlier launch has."""
        return max((number for number, _ in self._numbered()), default=0) + 1

    def cut_off(self) -> tuple[int, ...]:
        """Return the numbers of launches that ended with autofit and have no trial."""
        return tuple(sorted(number for number, kind in self._numbered() if kind == "cut_off"))

    def started(self) -> tuple[int, ...]:
        """Return the numbers of all launches that started a process."""
        return tuple(sorted(number for number, kind in self._numbered() if kind == "log"))

    def log_path(self, number: int) -> Path:
        """Return the path of the server's output of a launch."""
        return self._file(number, "log")

    @contextmanager
    def launching(self, trial: Trial) -> Iterator[None]:
        """Mark a launch as in progress; the block must write its trial.

        The mark is removed at the end of the block, also after an exception. Only the death of
        autofit leaves it. `trial` is the launch as known before it starts.
        """
        path = self._file(trial.number, "running")
        self._write(path, dump_document(mark_to_dict(trial)))
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink(missing_ok=True)

    def write_trial(self, trial: Trial) -> None:
        """Write a trial so that no kill and no power cut can lose it.

        Raises:
            AutofitError: the file cannot be written. If the disk is full, the trial is written
                with the reserve before this is raised.
        """
        self._write(self._file(trial.number, "json"), dump_document(trial.to_dict()))

    def skip(self, skipped: SkippedCandidate) -> None:
        """Record a candidate that will not be launched."""
        self._require_lock()
        path = self.path / "skipped.jsonl"
        try:
            append_line(path, {"schema": SCHEMA, **skipped.to_dict()})
        except OSError as error:
            raise storage_error(error, path) from error

    def skipped(self) -> tuple[SkippedCandidate, ...]:
        """Read every candidate that was not launched, oldest first."""
        path = self.path / "skipped.jsonl"
        try:
            records, faults = read_lines(path)
        except OSError as error:
            raise storage_error(error, path) from error
        found = []
        for record in records:
            try:
                found.append(SkippedCandidate.from_dict(upgrade(record, "skipped")))
            except (AutofitError, *DAMAGED):
                faults += 1
        if faults:
            self._notice(f"{faults} unreadable lines in {path.name} are ignored")
        return tuple(found)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Write the result into `study.json`, in place of an earlier one."""
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
            names = os.listdir(self.path / "trials")  # noqa: PTH208 - only names are needed
        except FileNotFoundError:
            return
        for name in names:
            match = _NUMBERED.fullmatch(name)
            if match:
                yield int(match[1]), match[2]

    def _read_trial(self, number: int) -> Trial | None:
        path = self._file(number, "json")
        try:
            trial = Trial.from_dict(read_document(path, "trial"))
            require_types(trial)
        except (OSError, *DAMAGED) as error:
            self._notice(f"trials/{path.name} is damaged and ignored: {describe_error(error)}")
            return None
        except AutofitError as error:
            self._notice(f"trials/{path.name} is ignored: {error.message}")
            return None
        if trial.number != number:
            self._notice(f"trials/{path.name} is ignored: it contains trial {trial.number}")
            return None
        return trial

    def _settle_marks(self) -> None:
        numbered = set(self._numbered())
        for number in sorted(number for number, kind in numbered if kind == "running"):
            path = self._file(number, "running")
            if (number, "json") in numbered and self._read_trial(number) is not None:
                path.unlink()
                continue
            lost = None if (number, "json") in numbered else self._read_lost_trial(path)
            if lost is not None:
                self.write_trial(lost)
                path.unlink()
                self._notice(f"the machine went down during launch {number}: it is not repeated")
            else:
                path.replace(path.with_suffix(".cut_off"))
                self._notice(f"launch {number} was cut off: its candidate may be tried again")
        sync_folder(self.path / "trials")

    def _read_lost_trial(self, path: Path) -> Trial | None:
        """Return the trial of a mark if the machine has booted since."""
        try:
            mark = read_document(path, "mark")
            if mark["boot_id"] == boot_id():
                return None
            trial = lost_trial_from_dict(mark)
            require_types(trial)
        except (OSError, AutofitError, *DAMAGED):
            return None
        return trial

    def _write_head(self) -> None:
        head = {**self.header.to_dict(), "result": self.result}
        self._write(self.path / "study.json", dump_document(head))

    def _write(self, path: Path, text: str) -> None:
        self._require_lock()
        try:
            write_durably(path, text)
        except OSError as error:
            write_with_reserve(self.path, path, text)
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
            msg = "this study is open only for reading"
            raise RuntimeError(msg)

    def _notice(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)


def _parse_head(data: dict[str, Any]) -> tuple[StudyHeader, Mapping[str, Any] | None]:
    result = data.pop("result", None)
    header = StudyHeader.from_dict(data)
    require_types(header)
    if result is not None:
        StoredResult.model_validate(result)
    return header, result


def _read_head(path: Path) -> tuple[StudyHeader, Mapping[str, Any] | None]:
    file = path / "study.json"
    try:
        return _parse_head(read_document(file, "study"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{path} is not a study: it has no study.json",
            "give the folder of a tune, such as results/<model>-<date>-1",
        ) from error
    except OSError as error:
        raise storage_error(error, file) from error
    except AutofitError as error:
        raise AutofitError(f"{file}: {error.message}", error.hint) from error
    except DAMAGED as error:
        raise AutofitError(
            f"{file} is damaged: {describe_error(error)}",
            "the launches in trials/ are unchanged; start a new study with another `--study DIR`",
        ) from error
