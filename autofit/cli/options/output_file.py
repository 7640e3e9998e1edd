"""Where a command's text goes: stdout, or a file that the user named."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autofit.cli.options.path_errors import check_writable, resolved
from autofit.errors import AutofitError

_EXECUTABLE = 0o111


def check_target(target: str) -> None:
    """See that a file may be written there, before any work is done for it; `-` is stdout.

    Raises:
        UsageError: it may not.
    """
    if target != "-":
        check_writable(Path(target).expanduser())


def deliver(text: str, target: str, *, is_program: bool = False, like: Path | None = None) -> None:
    """Write to a file, or to stdout where the target is `-`; a file is replaced as a whole.

    Paths that are no valid Unicode are written back as the bytes they were. A file that is to
    be `like` another may be read by those who may read that one.

    Raises:
        UsageError: the target may not be written.
        AutofitError: it cannot be written.
    """
    from autofit.study.durable_file import write_durably  # noqa: PLC0415 - --help is quick

    if target == "-":
        click.echo(os.fsencode(text), nl=not text.endswith("\n"))
        return
    check_target(target)
    path = Path(target).expanduser()
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(os.fsencode(text))  # a pipe or device must not be replaced
            return
        place = resolved(path)
        write_durably(place, text, like=like)
        if is_program:
            place.chmod(place.stat().st_mode | _EXECUTABLE)
    except OSError as error:
        raise AutofitError(
            f"cannot write {path}: {error.strerror or error}",
            "choose a place that you may write to and that has room; `-` is stdout",
        ) from error
