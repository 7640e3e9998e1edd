"""A recorded grid is a table that the search can be replayed on."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.machine_fixtures import FakeMachine
from fakes.random_machine import random_case

SCRIPT = Path(__file__).parents[2] / "benchmarks/cards/record_grid.py"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A table of a simulated machine, and the words that made it."""
    folder = tmp_path_factory.mktemp("grid")
    case = random_case(3)
    machine = FakeMachine(folder, case.machine, seed=1)
    model = machine.write_model(case.model)
    table = folder / "table.csv"
    words = [
        sys.executable, str(SCRIPT), str(model), "--runtime", str(machine.server),
        "--dialect", str(machine.dialect), "--context", "16384",
        "--grid", "n_cpu_moe=0,13 ubatch=512,1024 flash_attn=on",
        "--grid", "n_cpu_moe=20 ubatch=512,1024 flash_attn=on",
        "--prompt", "512", "--generate", "16", "--repeats", "1",
        "--study", str(folder / "study"), "--output", str(table),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "AUTOFIT_LOCK_DIR": str(folder)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return words, table, folder


def _rows(table):
    lines = table.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("# source: measured by autofit")
    return list(csv.DictReader(lines[1:]))


def test_a_grid_has_a_row_for_each_point(recorded):
    """Every point is launched once; what does not fit is a row with that status."""
    rows = _rows(recorded[1])

    assert {(row["ncmoe"], row["ubatch"]) for row in rows} == {
        (layers, ubatch) for layers in ("0", "13", "20") for ubatch in ("512", "1024")
    }
    assert len(rows) == 6
    by_layers = {row["ncmoe"]: row["status"] for row in rows}
    assert by_layers["0"].startswith("oom")
    assert by_layers["20"] == "ok"
    assert all(float(row["pp_tps"]) > 0 for row in rows if row["status"] == "ok")


def test_a_grid_can_be_replayed(recorded):
    """`replay` takes the table."""
    done = subprocess.run([sys.executable, "-m", "autofit", "replay", str(recorded[1]),
                           "--seeds", "3", "--json"],
                          capture_output=True, text=True, timeout=120, check=True)  # fmt: skip

    replayed = json.loads(done.stdout)
    assert replayed["best_possible"] > 0
    assert replayed["launches_to_98pct"] is not None


def test_a_grid_is_gone_on_with(recorded):
    """Run again, it launches nothing that the study holds."""
    words, table, folder = recorded
    before = sorted((folder / "study" / "trials").glob("*.json"))
    subprocess.run(words, capture_output=True, timeout=120, check=True,
                   env={**os.environ, "AUTOFIT_LOCK_DIR": str(folder)})  # fmt: skip

    assert sorted((folder / "study" / "trials").glob("*.json")) == before
    assert len(_rows(table)) == 6
