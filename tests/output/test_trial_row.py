"""One trial as short texts, and its command to repeat by hand."""

from __future__ import annotations

import json
import subprocess
import sys

from study.study_sample import WORKLOAD, trial

from autofit.output.text.trial_row import command_line, grouped_notes, trial_row, trial_rows
from autofit.trial.outcome import Crashed, OutOfMemory


def test_completed_trial_shows_speeds():
    """The cells have the measured speeds of the workload and the free memory."""
    row = trial_row(trial(7), WORKLOAD)

    assert (row.number, row.outcome, row.is_completed) == (7, "completed", True)
    assert (row.pp_per_s, row.tg_per_s) == ("1,000", "40")
    assert row.free_mib == "CUDA0 900 MiB, host unknown"
    assert row.params == "n_cpu_moe=20 ubatch=512"


def test_failed_trial_shows_stage_and_reason():
    """The outcome has stage, buffer and device, and the cells of speeds are empty."""
    failure = OutOfMemory("context", "cudaMalloc failed\n\x1b[31m", buffer="kv", device="CUDA1")
    row = trial_row(trial(1, failure), WORKLOAD)

    assert row.outcome == "out of memory at context (kv, CUDA1)"
    assert row.evidence == "cudaMalloc failed \\u001b[31m"
    assert row.request_s == row.tg_per_s == row.free_mib == ""


def test_params_in_common_are_shown_once():
    """Params that all candidates share are returned apart from the rows."""
    plain = trial(1)
    trials = [plain, trial(2, n_cpu_moe=18), trial(3, ubatch=512)]

    rows, common = trial_rows(trials, WORKLOAD)

    assert common == "ubatch=512"
    assert [row.params for row in rows] == ["n_cpu_moe=20", "n_cpu_moe=18", "n_cpu_moe=20"]


def test_notes_are_grouped():
    """A remark on several launches is one line with their numbers."""
    rows, _ = trial_rows([trial(n) for n in (1, 2, 3, 7)], WORKLOAD)

    assert grouped_notes(rows) == ["memory did not come back within 30 s (#1 to #3, #7)"]


def test_command_starts_the_same_in_a_shell(tmp_path, monkeypatch):
    """Pasted into a shell, the command has the words and variables of the trial, no others."""
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "1")
    monkeypatch.setenv("GGML_X", "of the user")
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    argv = (sys.executable, "-c", program, "-m", "it's $HOME.gguf", "--port", "{port}")

    line = command_line(argv, {"GGML_X": "3 4"}, port=8099, unset=["LLAMA_ARG_CTX_SIZE", "GGML_X"])
    done = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=True, timeout=20
    )
    words, environment = json.loads(done.stdout)

    assert words == ["-m", "it's $HOME.gguf", "--port", "8099"]
    assert environment["GGML_X"] == "3 4"
    assert "LLAMA_ARG_CTX_SIZE" not in environment


def test_crash_without_a_known_reason_has_no_details():
    """Without details there are no brackets."""
    assert trial_row(trial(1, Crashed("load", "x")), WORKLOAD).outcome == "crashed at load"
