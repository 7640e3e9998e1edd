"""Boundaries of the real llama-server, whose devices are RPC servers with little memory."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from autofit_program import AutofitProgram
from real_llama_cpp import rpc_device

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.study.study_folder import Study
from autofit.trial.trial import Trial

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(240)]

LAYERS = 6
# 25 MiB of experts a layer, little else.
SPEC = SynthSpec(layers=LAYERS, experts=16, used=2, embd=256, ff=2016, heads=4, kv_heads=2,
                 head_dim=64, vocab=1024, ctx=2048, type="q8_0", seed=1)  # fmt: skip
WORKLOAD = "context: 512\nrequests:\n  - {prompt_tokens: 96, predicted_tokens: 4}\n"
SPACE = """\
layouts: [balanced, single]
parameters:
  threads:
    values: [1]
  ubatch:
    values: [128]
  cache_type:
    sets: [cache_type_k, cache_type_v]
    values: [f16]
  flash_attn:
    values: ["on"]
"""
# Of the 150 MiB of experts; the server of the device itself uses some 30 MiB more.
LIMIT_MIB = 100


@pytest.fixture
def words(tmp_path, llama_cpp):
    """The command line of a probe of a small model."""
    write_model(SPEC, tmp_path / "small.gguf")
    (tmp_path / "brief.yaml").write_text(WORKLOAD)
    (tmp_path / "small.yaml").write_text(SPACE)
    return ["probe", tmp_path / "small.gguf", "--workload", tmp_path / "brief.yaml", "--space",
            tmp_path / "small.yaml", "--runtime", llama_cpp, "--study", tmp_path / "study",
            "--json"]  # fmt: skip


def trials_of(folder: Path) -> dict[int, Trial]:
    """Return the launches of a probe by the number of layers with experts in system RAM."""
    trials = Study.open(folder / "study").trials()
    return {trial.candidate.get_int("n_cpu_moe", 0): trial for trial in trials}


def test_remote_device_that_runs_out_of_memory_has_its_boundary_found(llama_cpp, tmp_path, words):
    """The system refuses memory to the server of the device; counters do not show this limit."""
    with rpc_device(llama_cpp, LIMIT_MIB) as end:
        done = AutofitProgram(tmp_path).run(*words, "--rpc", end, timeout_s=200)

    assert done.code == 0, done.err
    (row,) = done.json["boundary"]
    assert (row["layout"], row["outcome"], row["proven"]) == ("single:RPC0", "out_of_memory", True)
    assert 0 < row["fits"] < LAYERS
    assert row["fails"] == row["fits"] - 1
    assert row["failed_launches"] <= 3
    trials = trials_of(tmp_path)
    assert trials[row["fits"]].is_completed
    outcome = trials[row["fails"]].outcome
    assert (outcome.kind, outcome.where, outcome.device) == ("out_of_memory", "device", "RPC0")
    assert all(trial.is_completed == (n >= row["fits"]) for n, trial in trials.items())


def test_limits_of_two_devices_are_kept_to_the_layer(llama_cpp, tmp_path, words):
    """The user's limit is a boundary like any other, and the log shows the buffers."""
    with ExitStack() as stack:
        ends = [stack.enter_context(rpc_device(llama_cpp)) for _ in range(2)]
        done = AutofitProgram(tmp_path).run(
            *words, "--rpc", ",".join(ends), "--layout", "balanced",
            "--device", "RPC0=70", "--device", "RPC1=60", timeout_s=200,
        )  # fmt: skip

    assert done.code == 0, done.err
    (row,) = done.json["boundary"]
    assert row["proven"]
    assert row["fails"] == row["fits"] - 1
    assert row["params"]["devices"] == "RPC0,RPC1"
    limits = {"RPC0": 70, "RPC1": 60}
    for trial in Study.open(tmp_path / "study").trials():
        held = {name: row.buffers_mib for name, row in trial.measurement.reported.items()}
        over = [name for name, limit in limits.items() if held[name] > limit]
        assert trial.is_completed == (not over)
        assert trial.is_completed or trial.outcome.device in over
        split = [int(n) for n in str(trial.candidate.params["tensor_split"]).split(",")]
        assert sum(split) == LAYERS + 1
