"""The rates a confirmation is trusted for, on simulated launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench_confirm import HEADER, SETTINGS, rates, row

BY_NAME = {setting.name: setting for setting in SETTINGS}
QUICK = ("3% between launches", "2%, bursts: 1 launch in 20 25% slower")


@pytest.mark.parametrize("name", QUICK)
def test_a_few_simulated_confirmations_behave(name):
    """In eighty confirmations few claims are false, most gains are found, most intervals hold."""
    found = rates(BY_NAME[name], 80)

    # Two and a half standard deviations around 2.5%, 90% and 95%.
    assert found.false_gains <= 0.07
    assert found.false_losses <= 0.07
    assert found.found >= 0.75
    assert found.coverage >= 0.89
    assert 3 <= found.gain_rounds <= found.equal_rounds <= 12


def test_the_simulation_is_the_same_every_time():
    """The same repeats give the same rates, whatever ran before."""
    setting = BY_NAME["1% between launches"]

    assert rates(setting, 5) == rates(setting, 5)


def test_the_benchmark_prints_a_table(tmp_path):
    """Run as a program it prints a line for each kind of noise and writes the same."""
    program = Path(__file__).parents[2] / "benchmarks/bench_confirm.py"
    output = tmp_path / "table.md"

    done = subprocess.run(
        [sys.executable, program, "--repeats", "2", "--output", output],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert output.read_text(encoding="utf-8") == done.stdout
    assert HEADER in done.stdout
    assert [line.split(" | ")[0] for line in done.stdout.splitlines()[-len(SETTINGS) :]] == [
        f"| {name}" for name in BY_NAME
    ]


def test_a_row_has_all_columns_where_a_fixed_design_needs_too_many_rounds():
    """A fixed design that needs more rounds than simulated still gets a whole row."""
    setting = SETTINGS[0]
    found = rates(setting, 2)

    assert len(row(setting, found).split("|")) == len(HEADER.splitlines()[0].split("|"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BY_NAME)
def test_claims_hold_under_every_noise(name):
    """In 400 confirmations at most 7% claim a gain falsely, and 93% of intervals hold."""
    found = rates(BY_NAME[name], 400)

    assert found.false_gains <= 0.07
    assert found.false_losses <= 0.07
    assert found.coverage >= 0.93
    if name == "3% between launches":
        assert found.found >= 0.90
