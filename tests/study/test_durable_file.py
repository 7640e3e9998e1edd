"""Errors of the disk, with hints."""

from __future__ import annotations

import errno

import pytest

from autofit.study.durable_file import storage_error


@pytest.mark.parametrize(
    "error",
    [
        FileExistsError(errno.EEXIST, "File exists"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory"),
    ],
)
@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_a_file_in_place_of_a_folder_is_a_usage_error(tmp_path, error, below):
    """The error names the file, and the user can choose another folder."""
    (tmp_path / "file").write_text("text")

    message = storage_error(error, tmp_path / "file" / below)

    assert message.message.endswith(f"{tmp_path / 'file'} is a file, not a folder")
    assert str(tmp_path / "file" / below) in message.message
    assert "--study DIR" in message.hint
    assert message.exit_code == 2


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no room to write"),
        (errno.EACCES, "cannot write"),
        (errno.EIO, "cannot use"),
    ],
)
def test_disk_errors_during_a_run_are_no_usage_errors(tmp_path, number, message):
    """The error names the path and has a hint."""
    error = storage_error(OSError(number, "why"), tmp_path / "study")

    assert error.message == f"{message} {tmp_path / 'study'}: why"
    assert error.hint
    assert error.exit_code == 1
