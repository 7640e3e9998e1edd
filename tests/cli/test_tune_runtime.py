"""A short tune on real runtimes: llama-server with remote devices, and the embedded one."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.util import find_spec

import jsonschema
import pytest
from autofit_program import AutofitProgram
from cli.tune_document import RESULT
from real_llama_cpp import rpc_device

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(240)

SPEC = SynthSpec(layers=4, experts=8, used=2, embd=256, ff=128, heads=4, kv_heads=2, head_dim=64,
                 vocab=1024, ctx=2048, type="q8_0", seed=1)  # fmt: skip
WORKLOAD = "context: 512\nrequests:\n  - {prompt_tokens: 96, predicted_tokens: 9}\n"
SPACE = """\
layouts: [{layouts}]
parameters:
  threads:
    values: [1]
  ubatch:
    values: [128]
  cache_type:
    sets: [cache_type_k, cache_type_v]
    values: [q8_0]
  flash_attn:
    values: ["on"]
"""


@pytest.fixture
def words(tmp_path):
    """The arguments of a short tune of a small model."""
    model = tmp_path / "small.gguf"
    write_model(SPEC, model)
    (tmp_path / "brief.yaml").write_text(WORKLOAD)
    (tmp_path / "small.yaml").write_text(SPACE.format(layouts="balanced"))
    study = tmp_path / "study"
    return ["tune", model, "--workload", tmp_path / "brief.yaml", "--budget", "60s",
            "--max-launches", 2, "--study", study, "--space", tmp_path / "small.yaml",
            "--json"]  # fmt: skip


@pytest.mark.runtime
def test_two_remote_devices_are_tuned(llama_cpp, tmp_path, words):
    """llama-server places layers on two RPC devices within their limits, and the proof passes."""
    program = AutofitProgram(tmp_path)
    with ExitStack() as stack:
        ends = [stack.enter_context(rpc_device(llama_cpp)) for _ in range(2)]
        done = program.run(
            *words, "--runtime", llama_cpp, "--rpc", ",".join(ends),
            "--device", "RPC0=60", "--device", "RPC1=50", timeout_s=200,
        )  # fmt: skip

    assert done.code == 0, done.err
    jsonschema.validate(done.json, RESULT)
    winner = done.json["winner"]
    trials = Study.open(tmp_path / "study").trials()
    assert any(int(trial.candidate.params.get("n_gpu_layers", 0)) > 0 for trial in trials)
    for trial in trials:
        assert "--rpc" in trial.argv
        if trial.is_completed and trial.measurement:  # a score of KV types measures nothing
            used = trial.measurement.reported
            assert used["RPC0"].model_mib + used["RPC0"].context_mib < 60
            assert used["RPC1"].model_mib + used["RPC1"].context_mib < 50
    assert winner["params"]["devices"] == "RPC0,RPC1"
    assert winner["argv"][1:3] == ["--rpc", ",".join(ends)]


@pytest.mark.slow
@pytest.mark.runtime
def test_a_processor_is_tuned(llama_cpp, tmp_path, words):
    """Without a device the settings of the processor are measured and proven."""
    (tmp_path / "small.yaml").write_text(SPACE.replace("layouts: [{layouts}]\n", ""))
    done = AutofitProgram(tmp_path).run(*words, "--runtime", llama_cpp, timeout_s=200)

    assert done.code == 0, done.err
    jsonschema.validate(done.json, RESULT)
    assert done.json["outcomes"] == {"completed": done.json["launches"]}
    trials = {trial.number: trial for trial in Study.open(tmp_path / "study").trials()}
    proof = trials[done.json["winner"]["trial"]]
    assert [s.prompt_tokens for s in proof.measurement.samples] == [512 - 9 - 64] * 2


@pytest.mark.skipif(not find_spec("xllamacpp"), reason="the extra `embedded` is not installed")
def test_the_embedded_runtime_is_tuned(tmp_path, words):
    """The embedded runtime is launched, measured and proven like others."""
    (tmp_path / "small.yaml").write_text(SPACE.replace("layouts: [{layouts}]\n", ""))
    done = AutofitProgram(tmp_path).run(*words, "--dialect", "embedded", timeout_s=200)

    assert done.code == 0, done.err
    jsonschema.validate(done.json, RESULT)
    winner = done.json["winner"]
    assert winner["argv"][1:3] == ["-m", "autofit.runtime.embedded"]
    assert done.json["runtime"].startswith("embedded")
    assert winner["peak_mib"]["host"] > 1
