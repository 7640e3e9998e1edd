"""The captures of every command in `docs/screens.md`."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from autofit.cli.main import COMMANDS

PAGE = (Path(__file__).parents[2] / "docs" / "screens.md").read_text(encoding="utf-8")
BLOCK = r"```text\n\$ (.*)\n((?:.*\n)*?)```"
CAPTURES = re.findall(BLOCK, PAGE)
LAST = re.findall(rf"The last screen:\n\n{BLOCK}", PAGE)
COLUMNS, LINES = 80, 20


@pytest.mark.parametrize(("command", "text"), LAST, ids=[command for command, _ in LAST])
def test_a_last_screen_has_at_most_20_lines_of_80_columns(command, text):
    """Only the command to run, and a hint, may be longer than a line."""
    lines = text.splitlines()
    long = [line for line in lines if len(line) > COLUMNS]

    assert sum(max(1, math.ceil(len(line) / COLUMNS)) for line in lines) <= LINES
    assert all("llama-server" in line or line.startswith("hint: ") for line in long)


def test_every_kind_of_run_has_a_last_screen():
    """They are a finished and a stopped tune, a probe, a comparison and a sweep."""
    kinds = [command.split()[1] for command, _ in LAST]

    assert kinds == ["tune", "tune", "probe", "compare", "sweep"]


def test_every_command_is_captured():
    """Commands that only show a whole tune or need several builds are left out."""
    shown = {command.split()[1] for command, _ in CAPTURES}

    assert set(COMMANDS) - shown <= {"demo", "bisect"}
    assert not re.search(r"Traceback|/work/|/root/|/tmp/", PAGE)
