"""The rates that a sweep is trusted for, on simulated launches and nights."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench_sweep import BY_KIND, BY_LAUNCHES, Simulation, rates

AT_3 = BY_KIND[0]


def test_a_slowdown_of_6_percent_at_3_percent_noise_is_found():
    """Of 100 sweeps of one entry at least 90 catch it; at most 5 claim a null change."""
    assert (AT_3.slowdown, AT_3.noise.between, AT_3.launches) == (1.06, 0.03, 8)

    found = rates(AT_3, 100, (3,))[3]

    assert found.sweeps == 100
    assert found.found >= 90
    assert found.false <= 5


def test_a_first_kept_night_is_enough_with_twelve_launches():
    """If nothing is known of how nights vary, more launches make up for it."""
    found = rates(replace(AT_3, launches=12), 60, (1,))[1]

    assert found.found >= 54
    assert found.false <= 3


def test_the_reference_cancels_what_a_night_does_to_the_machine():
    """Nights 10% apart hide 6%, and not from a reference in the same rounds."""
    restless = replace(AT_3, between_nights=0.1, has_reference=True)

    found = rates(restless, 40, (1,))[1]

    assert found.found >= 34
    assert found.false <= 3


def test_a_restless_machine_is_learnt_to_be_one():
    """Nights 10% apart raise fewer alarms once ten of them are kept."""
    found = rates(replace(AT_3, between_nights=0.1), 40, (1, 10))

    assert found[1].false >= 12
    assert found[10].false <= 7


def test_the_simulation_is_the_same_every_time():
    """The same sweeps give the same rates, whatever ran before."""
    assert rates(AT_3, 3, (1, 2)) == rates(AT_3, 3, (1, 2))
    assert Simulation(AT_3, 1).record() == Simulation(AT_3, 1).record()
    assert Simulation(AT_3, 1).record() != Simulation(AT_3, 2).record()


@pytest.mark.slow
def test_the_benchmark_prints_its_tables(tmp_path):
    """Run as a program it prints a line for each setting and writes the same."""
    program = Path(__file__).parents[2] / "benchmarks/bench_sweep.py"
    output = tmp_path / "table.md"

    done = subprocess.run(
        [sys.executable, program, "--repeats", "1", "--output", output],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert output.read_text(encoding="utf-8").strip() == done.stdout.strip()
    names = [
        line.split(" | ")[0].strip("| ") for line in done.stdout.splitlines() if " / " in line
    ]
    assert [name for name in names if name in {one.name for one in (*BY_LAUNCHES, *BY_KIND)}] == [
        one.name for one in (*BY_LAUNCHES, *BY_KIND)
    ]
