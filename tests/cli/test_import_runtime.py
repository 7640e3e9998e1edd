"""A user's own script on the real llama-server: imported, then used as a baseline."""

from __future__ import annotations

import json

import pytest
from autofit_program import AutofitProgram

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.study.study_folder import Study

pytestmark = [pytest.mark.runtime, pytest.mark.timeout(240)]

SPEC = SynthSpec(layers=2, experts=4, used=2, embd=256, ff=128, heads=4, kv_heads=2, head_dim=64,
                 vocab=600, ctx=1024, type="q8_0", seed=1)  # fmt: skip
WORKLOAD = "context: 512\nrequests:\n  - {prompt_tokens: 96, predicted_tokens: 9}\n"
SPACE = "parameters:\n  threads:\n    values: [1]\n  ubatch:\n    values: [256]\n"
SCRIPT = """\
#!/bin/bash
# What I start every day.
cd {folder}
export OMP_WAIT_POLICY=passive
MODEL="my model.gguf"
exec nice -n 1 {server} -m "$MODEL" \\
  -t 1 -ub 128 -c 512 --no-warmup --top-k 7 \\
  --host 0.0.0.0 --port 8080 --api-key sk-very-secret "$@"
"""


def test_a_users_script_becomes_the_baseline(llama_cpp, tmp_path):
    """The baseline is launched as the script says, and its API key is never stored."""
    write_model(SPEC, tmp_path / "my model.gguf")
    (tmp_path / "brief.yaml").write_text(WORKLOAD)
    (tmp_path / "small.yaml").write_text(SPACE)
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT.format(folder=tmp_path, server=llama_cpp / "llama-server"))
    program = AutofitProgram(tmp_path)

    read = program.run("import", script, "-o", tmp_path / "mine.json", "--json").json
    done = program.run(
        *("tune", tmp_path / "my model.gguf", "--baseline", tmp_path / "mine.json"),
        *("--workload", tmp_path / "brief.yaml", "--space", tmp_path / "small.yaml"),
        *("--budget", "15s", "--max-launches", 2, "--study", tmp_path / "study", "--json"),
        timeout_s=200,
    )

    assert read["params"] == {"context": 512, "ubatch": 128, "threads": 1}
    assert read["passed_through"] == ["--no-warmup", "--top-k", "7"]
    assert done.code == 0, done.err
    baseline = done.json["baseline"]
    assert baseline["outcome"]["kind"] == "completed"
    assert baseline["params"] == {"ubatch": 128, "threads": 1, "context": 512, "parallel": 1}
    assert baseline["argv"][:4] == ["nice", "-n", "1", str(llama_cpp / "llama-server")]
    assert {"--no-warmup", "--top-k"} <= set(baseline["argv"])
    assert "every launch runs under `nice -n 1`" in done.err
    trials = Study.open(tmp_path / "study").trials()
    assert all(trial.env["OMP_WAIT_POLICY"] == "passive" for trial in trials)
    for path in (tmp_path / "study").rglob("*"):
        assert not path.is_file() or b"very-secret" not in path.read_bytes()

    preset = next((tmp_path / "study" / "presets").glob("*.json"))
    checked = program.run("check", preset, "--against-machine", "--json")
    assert (checked.code, checked.json["reasons"]) == (0, [])
    assert json.loads((tmp_path / "mine.json").read_text())["argv"] == read["argv"]
