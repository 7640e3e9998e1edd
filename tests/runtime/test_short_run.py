"""What is told of a runtime's program that failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.runtime.discovery.program_inspector import check_run, run_program


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("0.00.055.102 E failed to connect to foo\n0.00.055.103 I \n", "failed to connect to foo"),
        ("error: no such device\nsee the help\n", "error: no such device"),
        ("one\ntwo\n", "two"),
    ],
)
def test_the_reason_is_told_before_what_comes_last(said, told):
    """Times, levels and lines without words are no reason."""
    words = ("-c", f"printf '%s' '{said}' >&2; exit 1")
    finished = run_program(("sh", *words), {}, 20)

    with pytest.raises(UsageError, match=rf"status 1: {re.escape(told)}$"):
        check_run(Path("llama-server"), ("--list-devices",), finished, 20)
