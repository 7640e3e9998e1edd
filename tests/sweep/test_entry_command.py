"""The commands that measure an entry."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autofit.cli.commands.probe import command as probe
from autofit.cli.commands.remeasure import command as remeasure
from autofit.cli.commands.tune import command as tune
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.sweep.entry_command import (
    PROGRAM,
    boundary_budget_s,
    boundary_command,
    measuring_command,
    recheck_command,
)
from autofit.sweep.entry_record import BoundaryRow, EntryRecord, MeasuredSettings
from autofit.sweep.suite import SuiteEntry

ENTRY = SuiteEntry(
    name="a", index=0, model="/m.gguf", runtime="/bin", against="/old", dialect="llama_server",
    workload="chat", space="moe", context=4096, parallel=2, require=("tg>=5",),
    devices={"CUDA0": "8GiB", "RPC0": "4000"}, rpc="10.0.0.2:50052", pins={"ubatch": "512"},
    env={"A": "b c"}, wrapper="numactl -N 0", args=("--no-warmup",), answers=False,
)  # fmt: skip
BEFORE = EntryRecord(
    name="a", mode="tune", date="2026-01-01T00:00:00+00:00", autofit_version="1",
    winner=MeasuredSettings({"n_cpu_moe": 4, "ubatch": 256}, ("llama-server",), "x"),
)  # fmt: skip
COMMANDS = {"tune": tune, "probe": probe, "remeasure": remeasure}
ROWS = (BoundaryRow("single:CUDA0", "f16", 4, 3), BoundaryRow("balanced", "f16", 4, 3))


def _commands():
    yield measuring_command(ENTRY, None, 60)
    for mode in ("tune", "remeasure", "compare"):
        yield measuring_command(replace(ENTRY, mode=mode), BEFORE, 60.4)
    yield measuring_command(
        replace(ENTRY, mode="remeasure", preset="llama-server -c 1"), None, 0.2
    )
    yield recheck_command(ENTRY, BEFORE, 60)
    yield boundary_command(ENTRY, ROWS, BEFORE.winner, 60)


@pytest.mark.parametrize("command", list(_commands()), ids=lambda command: command.name)
def test_autofit_accepts_every_command(command, tmp_path):
    """Every option is one that the command has, and the arguments after `--` stay."""
    argv = command.argv(tmp_path)
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


def test_command_resumes_its_study(tmp_path):
    """As soon as the study has a header, the command resumes it."""
    command = measuring_command(ENTRY, None, 60)
    (tmp_path / "tune").mkdir()
    assert "--resume" not in command.argv(tmp_path)
    (tmp_path / "tune" / "study.json").write_text("{}")

    assert "--resume" in command.argv(tmp_path)


def test_settings_of_the_baseline_are_measured_again(tmp_path):
    """The settings are those of the baseline; without a baseline there is a tune."""
    again = replace(ENTRY, mode="remeasure")
    words = measuring_command(again, BEFORE, 60).arguments

    assert json.loads(words[words.index("--params") + 1]) == {"n_cpu_moe": 4, "ubatch": 256}
    assert "--neighbours" in words
    assert measuring_command(again, None, 60).name == "tune"
    assert measuring_command(replace(again, mode="compare"), None, 60).name == "remeasure"


def test_short_budget_reserves_time_for_the_boundary():
    """Measuring and finding the boundary together take the granted time."""

    def budget_s(**changed):
        words = measuring_command(replace(ENTRY, **changed), None, 60).arguments
        return words[words.index("--budget") + 1]

    assert (budget_s(), budget_s(boundary=False)) == ("45s", "60s")
    assert budget_s(budget_s=60.0) == "60s"
    assert budget_s(mode="compare", preset="llama-server -c 1") == "60s"
    assert boundary_budget_s(ENTRY, 60) == 15
    assert boundary_command(ENTRY, ROWS, BEFORE.winner, 15).arguments[-3:] == (
        "--budget",
        "15s",
        "--yes",
    )


def test_secrets_are_masked():
    """The command in a baseline can be committed."""
    assert redact_variables({"HF_TOKEN": "s1", "PATH": "/bin"}) == {
        "HF_TOKEN": "***",
        "PATH": "/bin",
    }
    assert redact_command(["x", "--api-key", "s3", "--hf-token=s4", "-hft", "s5", "-c", "1"]) == (
        "x", "--api-key", "***", "--hf-token=***", "-hft", "***", "-c", "1",
    )  # fmt: skip
