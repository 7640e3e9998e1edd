"""Files from outside: what is no small regular file, and JSON that is no plain data."""

from __future__ import annotations

import json
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.input_files import parse_json, read_input, read_json


@pytest.fixture(params=["pipe", "link to a device", "folder", "socket"])
def special(request, tmp_path):
    """The path of something that is not a regular file."""
    path = tmp_path / "special"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "link to a device":
        path.symlink_to("/dev/zero")
    elif request.param == "folder":
        path.mkdir()
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    return path if request.param != "device" else "/dev/zero"


def test_only_regular_files_are_read(special):
    """Anything else is an error at once: it is neither waited for nor read."""
    with pytest.raises(OSError, match=r"it is|No such device"):
        read_input(special)


def test_a_large_file_is_not_read(tmp_path):
    """A file above the limit is an error, whatever the system says of its size."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="MiB"):
        read_input(path, 1 << 20)
    path.write_bytes(b"12345")
    assert read_input(path, 5) == b"12345"


@pytest.mark.parametrize(
    "text",
    [
        "NaN", "-Infinity", "1e999", "-1e999", "9" * 400, "9" * 100_000, "-" + "9" * 21, "[" * 100,
        "[" * 100_000, '{"a":' * 100_000, '{"a":[' * 60 + "1" + "]}" * 60, "", "{", "\x00", "[1,]",
        r'"\ud800"', r'{"\uDBFF": 1}',
    ],
)  # fmt: skip
def test_json_that_is_no_plain_data_is_refused(text):
    """Numbers that are not finite or very long, deep nesting and damage are errors of one kind."""
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


@pytest.mark.parametrize("data", [b"\xff", b'"\xed\xa0\x80"', b"\xff\xfe1\x00"])
def test_json_that_is_not_utf8_is_refused(data, tmp_path):
    """Bytes of another encoding are an error of the same kind."""
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(ValueError, match=r"."):
        read_json(tmp_path / "a.json")


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), 1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.just("\udcff"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_PLAIN)
def test_plain_data_is_read_as_it_was_written(data):
    """Every document that autofit writes can be read, also with a byte order mark."""
    text = json.dumps(data)

    assert parse_json(text) == data
    assert parse_json(b"\xef\xbb\xbf" + text.encode()) == data
