"""The workflow, systemd units and command lines on the page about nightly sweeps."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.cli.commands.check import command as check
from autofit.cli.commands.sweep import command as sweep

ROOT = Path(__file__).parents[2]
SECTION = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def _blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)


def test_the_workflow_is_valid(tmp_path):
    """The GitHub Actions workflow matches the schema of workflows."""
    (text,) = (block for block in _blocks("yaml") if "runs-on" in block)
    path = tmp_path / "nightly.yml"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows",
         str(path)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(text.replace("runs-on", "runs_on"), encoding="utf-8")
    assert subprocess.run(done.args, capture_output=True, timeout=60, check=False).returncode == 1


LINES = [
    line
    for kind in ("sh", "yaml", "ini")
    for block in _blocks(kind)
    for line in re.findall(r"^.*\bautofit (?:sweep|check) .*$", block, re.MULTILINE)
]


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_is_valid(line):
    """The options on the page are options of the program."""
    words = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", line.split("||")[0]), comments=True)
    start = next(place for place, word in enumerate(words) if word.endswith("autofit"))
    name, *rest = words[start + 1 :]
    command = {"sweep": sweep, "check": check}[name]

    assert command.make_context(name, rest).params


def test_the_systemd_units_are_valid():
    """The units are a service with one program and a nightly timer."""
    service, timer = _blocks("ini")
    parsed = configparser.ConfigParser(interpolation=None, strict=True)
    parsed.optionxform = str
    parsed.read_string(service)
    assert parsed["Service"]["Type"] == "oneshot"
    assert shlex.split(parsed["Service"]["ExecStart"])[1] == "sweep"
    parsed.clear()
    parsed.read_string(timer)
    assert parsed["Timer"]["OnCalendar"] == "*-*-* 02:17:00"
    assert parsed["Install"]["WantedBy"] == "timers.target"
