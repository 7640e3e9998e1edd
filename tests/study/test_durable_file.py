"""A disk that refuses is told in words, with what to do."""

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
def test_a_file_in_the_way_of_a_folder_is_named(tmp_path, error, below):
    """It is the user who has named it, and who can name another."""
    (tmp_path / "file").write_text("text")

    told = storage_error(error, tmp_path / "file" / below)

    assert told.message.endswith(f"{tmp_path / 'file'} is a file, not a folder")
    assert str(tmp_path / "file" / below) in told.message
    assert "--study DIR" in told.hint
    assert told.exit_code == 2


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "no room to write"),
        (errno.EACCES, "cannot write"),
        (errno.EIO, "cannot use"),
    ],
)
def test_what_a_disk_refuses_in_the_middle_of_a_run_is_no_usage_error(tmp_path, number, told):
    """The place is named, and a hint is there."""
    error = storage_error(OSError(number, "why"), tmp_path / "study")

    assert error.message == f"{told} {tmp_path / 'study'}: why"
    assert error.hint
    assert error.exit_code == 1
