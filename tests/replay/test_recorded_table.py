"""Recorded tables: their groups, their metric, and faults of their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.errors import UsageError
from autofit.replay.recorded_table import find_table, read_table

HEAD = "# source: made up\nncmoe,n_ctx,n_prompt,n_gen,pp_tps,tg_tps,status,vram_mib\n"


def _table(folder: Path, rows: str) -> Path:
    path = folder / "made_up.csv"
    path.write_text(HEAD + rows, encoding="utf-8")
    return path


def test_the_largest_group_in_which_something_ran_is_taken(tmp_path):
    """Rows of another context, and groups of failures only, are left out."""
    failed = "1,4096,,,,,oom_load,\n2,4096,,,,,oom_load,\n3,4096,,,,,oom_load,\n"
    rows = "8,2048,512,64,100,10,ok,\n7,2048,512,64,,,spill,\n9,1024,512,64,90,9,ok,\n"

    table = read_table(_table(tmp_path, failed + rows))

    assert [row.settings[0] for row in table.rows] == [8, 7]
    assert [row.exhausted_memory for row in table.rows] == [None, "device"]


@pytest.mark.parametrize(
    ("row", "metric", "value"),
    [
        ("8,2048,512,64,128,16,ok,", "request_s", 8.0),
        ("8,2048,,,128,16,ok,", "tg", 16.0),
        ("8,2048,512,64,128,,ok,", "pp", 128.0),
    ],
)
def test_the_metric_is_the_best_that_rows_have(tmp_path, row, metric, value):
    """Seconds per request are preferred, then generation, then prompts."""
    table = read_table(_table(tmp_path, row + "\n"))

    assert (table.metric, table.rows[0].value(table.metric)) == (metric, value)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("8,2048,512,64,128,16,ok,\n-1,2048,512,64,128,16,ok,\n", 4),
        ("8,2048,512,64,fast,16,ok,\n", 3),
        pytest.param(f"{'9' * 5000},2048,512,64,128,16,ok,\n", 3, id="digits"),
        ("8,2048\n", 3),
        ("", 2),
    ],
)
def test_faults_are_reported_with_their_line(tmp_path, rows, line):
    """A number that cannot be, a row that is too short and an empty table are faults."""
    path = _table(tmp_path, rows)

    with pytest.raises(UsageError) as error:
        read_table(path)

    assert error.value.message.startswith(f"{path}:{line}: ")


def test_an_unknown_table_is_reported_with_the_known_ones():
    """The hint lists the bundled tables."""
    with pytest.raises(UsageError) as error:
        find_table("no-such-table")

    assert "seed_vega_mi25" in str(error.value.hint)
