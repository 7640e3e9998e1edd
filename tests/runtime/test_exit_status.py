"""Exit statuses of all systems in one form."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.runtime.diagnosis.exit_status import (
    classify_exit,
    describe_status,
    parse_exit_status,
)


@pytest.mark.parametrize(
    ("text", "status", "cause"),
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
def test_status_is_parsed_in_every_form(text: str, status: int, cause: str | None):
    """Statuses of shells, Python and Windows and names of signals are parsed and classified."""
    assert parse_exit_status(text) == status
    assert classify_exit(status) == cause


@pytest.mark.parametrize("text", ["", "foo", "SIGFOO", "0xZZ", "1.5"])
def test_other_text_is_rejected(text: str):
    """The error has examples of valid statuses."""
    with pytest.raises(UsageError, match="not an exit status") as raised:
        parse_exit_status(text)

    assert "137" in raised.value.hint


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (1, "exit status 1"),
        (-9, "SIGKILL (-9)"),
        (-63, "signal 63"),
        (0xC0000005, "0xC0000005 (access violation)"),
        (0xC0DEC0DE, "0xC0DEC0DE"),
    ],
)
def test_status_is_described(status: int, text: str):
    """Signals and codes of Windows are described by their names."""
    assert describe_status(status) == text
