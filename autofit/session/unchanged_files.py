"""A check that model and runtime are still those with which a run began."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autofit.errors import AutofitError
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import fingerprint_program
from autofit.study.fingerprint import file_digest

_HINT = (
    "its launches cannot be compared with those before: restore it and resume the study, or start "
    "a new one"
)


class UnchangedFiles:
    """The files of a model and of a runtime, as they were at the start of a run."""

    def __init__(self, model_files: Sequence[Path], runtime: Runtime) -> None:
        self._files = tuple(model_files)
        self._runtime = runtime
        self._status = self._read_status()
        self._digest = file_digest(self._files)
        self._fingerprint = self._read_fingerprint()

    def check(self) -> None:
        """Compare size and time of each file, and the contents of a file that differs in these.

        Raises:
            AutofitError: a file was replaced or removed.
        """
        status = self._read_status()
        if status != self._status:
            if file_digest(self._files) != self._digest:
                raise AutofitError(f"the model {self._files[0]} was changed during the run", _HINT)
            self._status = status
        if self._read_fingerprint() != self._fingerprint:
            program = self._runtime.program
            raise AutofitError(f"the runtime {program} was changed during the run", _HINT)

    def _read_status(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(map(_size_and_time, self._files))

    def _read_fingerprint(self) -> str:
        return fingerprint_program(self._runtime.program, self._runtime.command)


def _size_and_time(path: Path) -> tuple[int, int] | None:
    """Return the size and time of a file, or None if it cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
