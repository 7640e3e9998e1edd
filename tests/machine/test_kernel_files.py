"""Small text files of the kernel, as sensors and containers can damage them."""

from __future__ import annotations

import pytest

from autofit.machine.kernel_files import read_mib, read_number, read_text


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n", b"12 34", "\u00b2".encode(), b"-1", b"9" * 5000, b"1e9", b"\0"]
)
def test_text_that_is_no_number_is_none(content, tmp_path):
    """Text that is not UTF-8, other digits and very long numbers are no number."""
    path = tmp_path / "file"
    path.write_bytes(content)
    assert isinstance(read_text(path), str)
    assert read_number(path) is None
    assert read_mib(path) is None


def test_numbers_are_read(tmp_path):
    """A number may be surrounded by blanks; a missing file has none."""
    path = tmp_path / "file"
    assert read_number(path) is None
    path.write_text(f" {3 << 20}\n")
    assert read_number(path) == 3 << 20
    assert read_mib(path) == 3.0
