"""Exit statuses of every system in one form."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.runtime.diagnosis.exit_status import (
    classify_exit,
    describe_status,
    parse_exit_status,
)


@pytest.mark.parametrize(
    ("text", "status", "death"),
    [
        ("0", 0, None),
        ("1", 1, "crash"),
        ("3", 3, "crash"),
        ("137", -9, "memory"),
        ("-9", -9, "memory"),
        ("SIGKILL", -9, "memory"),
        ("kill", -9, "memory"),
        ("143", -15, "killed"),
        ("-2", -2, "killed"),
        ("SIGHUP", -1, "killed"),
        ("132", -4, "illegal_instruction"),
        ("134", -6, "crash"),
        ("139", -11, "crash"),
        ("SIGBUS", -7, "crash"),
        ("0xC0000005", 0xC0000005, "crash"),
        ("-1073741819", 0xC0000005, "crash"),
        ("3221225477", 0xC0000005, "crash"),
        ("0xc000001d", 0xC000001D, "illegal_instruction"),
        ("0xC0000017", 0xC0000017, "memory"),
        ("0xC0DEC0DE", 0xC0DEC0DE, "crash"),
    ],
)
def test_a_status_is_understood_however_it_is_written(text: str, status: int, death: str | None):
    """Shells, Python, Windows and names of signals say the same."""
    assert parse_exit_status(text) == status
    assert classify_exit(status) == death


@pytest.mark.parametrize("text", ["", "foo", "SIGFOO", "0xZZ", "1.5"])
def test_what_is_no_status_is_refused(text: str):
    """A mistake is told with what can be given."""
    with pytest.raises(UsageError, match="not an exit status") as told:
        parse_exit_status(text)

    assert "137" in told.value.hint


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (1, "exit status 1"),
        (-9, "SIGKILL (-9)"),
        (-63, "signal 63"),
        (0xC0000005, "0xC0000005 (access violation)"),
        (0xC0DEC0DE, "0xC0DEC0DE"),
    ],
)
def test_a_status_is_said_in_words(status: int, words: str):
    """Signals and Windows' codes get their names."""
    assert describe_status(status) == words
