"""The commands that entries are measured by."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autofit.cli.commands.probe import command as probe
from autofit.cli.commands.remeasure import command as remeasure
from autofit.cli.commands.tune import command as tune
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.sweep.entry_record import BoundaryRow, EntryRecord, Winner
from autofit.sweep.steps import (
    PROGRAM,
    boundary_part_s,
    boundary_step,
    first_step,
    kept_step,
)
from autofit.sweep.suite import Entry

ENTRY = Entry(
    name="a", place=0, model="/m.gguf", runtime="/bin", against="/old", dialect="llama_server",
    workload="chat", space="moe", context=4096, parallel=2, require=("tg>=5",),
    devices={"CUDA0": "8GiB", "RPC0": "4000"}, rpc="10.0.0.2:50052", pins={"ubatch": "512"},
    env={"A": "b c"}, wrapper="numactl -N 0", args=("--no-warmup",), answers=False,
)  # fmt: skip
KEPT = EntryRecord(
    name="a", mode="tune", date="2026-01-01T00:00:00+00:00", autofit_version="1",
    winner=Winner({"n_cpu_moe": 4, "ubatch": 256}, ("llama-server",), "x"),
)  # fmt: skip
COMMANDS = {"tune": tune, "probe": probe, "remeasure": remeasure}
ROWS = (BoundaryRow("single:CUDA0", "f16", 4, 3), BoundaryRow("balanced", "f16", 4, 3))


def _steps():
    yield first_step(ENTRY, None, 60)
    for mode in ("tune", "remeasure", "compare"):
        yield first_step(replace(ENTRY, mode=mode), KEPT, 60.4)
    yield first_step(replace(ENTRY, mode="remeasure", preset="llama-server -c 1"), None, 0.2)
    yield kept_step(ENTRY, KEPT, 60)
    yield boundary_step(ENTRY, ROWS, KEPT.winner, 60)


@pytest.mark.parametrize("step", list(_steps()), ids=lambda step: step.name)
def test_a_command_is_understood_by_autofit(step, tmp_path):
    """Every word of a step is one that the command takes, and what comes after `--` stays."""
    argv = step.argv(tmp_path)
    assert argv[: len(PROGRAM)] == PROGRAM
    name, *words = argv[len(PROGRAM) :]
    given = COMMANDS[name].make_context(name, words).params

    assert str(given["model"]) == "/m.gguf"
    assert given["extra_args"] == ("--no-warmup",)
    assert given["device"] == ("CUDA0=8GiB", "RPC0=4000")
    assert given["env"] == ("A=b c",)
    assert (given["context"], given["parallel"]) == (4096, 2)
    assert given["as_json"]
    assert not given["resume"]


def test_a_study_that_was_begun_is_gone_on_with(tmp_path):
    """As soon as a study has its head, the command resumes it."""
    step = first_step(ENTRY, None, 60)
    (tmp_path / "tune").mkdir()
    assert "--resume" not in step.argv(tmp_path)
    (tmp_path / "tune" / "study.json").write_text("{}")

    assert "--resume" in step.argv(tmp_path)


def test_kept_settings_are_launched_as_they_were(tmp_path):
    """The settings come as the baseline has them; with nothing kept there is a tune."""
    again = replace(ENTRY, mode="remeasure")
    words = first_step(again, KEPT, 60).words

    assert json.loads(words[words.index("--params") + 1]) == {"n_cpu_moe": 4, "ubatch": 256}
    assert "--neighbours" in words
    assert first_step(again, None, 60).name == "tune"
    assert first_step(replace(again, mode="compare"), None, 60).name == "remeasure"


def test_an_entry_that_is_short_of_time_keeps_some_for_its_boundary():
    """What measures and what finds the boundary together take what was granted."""

    def budget_s(**changed):
        words = first_step(replace(ENTRY, **changed), None, 60).words
        return words[words.index("--budget") + 1]

    assert (budget_s(), budget_s(boundary=False)) == ("45s", "60s")
    assert budget_s(budget_s=60.0) == "60s"
    assert budget_s(mode="compare", preset="llama-server -c 1") == "60s"
    assert boundary_part_s(ENTRY, 60) == 15
    assert boundary_step(ENTRY, ROWS, KEPT.winner, 15).words[-3:] == ("--budget", "15s", "--yes")


def test_keys_are_masked():
    """What a baseline keeps of a command is fit to be committed."""
    assert redact_variables({"HF_TOKEN": "s1", "PATH": "/bin"}) == {
        "HF_TOKEN": "***",
        "PATH": "/bin",
    }
    assert redact_command(["x", "--api-key", "s3", "--hf-token=s4", "-hft", "s5", "-c", "1"]) == (
        "x", "--api-key", "***", "--hf-token=***", "-hft", "***", "-c", "1",
    )  # fmt: skip
