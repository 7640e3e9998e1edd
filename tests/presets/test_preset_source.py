"""Presets of a tune's winner, on the real llama-server and without one."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from dataclasses import replace
from datetime import date

import httpx
import pytest
from presets.preset_sample import make_preset
from study.study_sample import header

from autofit.errors import UsageError
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.presets.formats.registry import write_preset
from autofit.presets.preset import Preset
from autofit.presets.preset_source import winner_preset
from autofit.runtime.command.argv_writer import make_launch_plan
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.trial.candidate import Candidate, LaunchPlan


def test_a_study_without_a_winner_has_no_preset():
    """A result without a winner is refused."""
    with pytest.raises(UsageError, match="no winner"):
        winner_preset(
            None,
            {"winner": None},
            runtime=None,
            folder=make_preset().folder,
            made_on=make_preset().made_on,
        )


PARAMS = {
    "n_cpu_moe": 1,
    "override_tensor": r"blk\.1\.ffn_(up|down)_exps=CPU",
    "context": 512,
    "parallel": 1,
    "batch": 256,
    "ubatch": 64,
    "cache_type_k": "q8_0",
    "flash_attn": "on",
    "load_mode": "none",
    "threads": 1,
}


@pytest.fixture(scope="module")
def runtime(llama_cpp, tmp_path_factory) -> Runtime:
    """Return the real llama-server, as discovery describes it."""
    return find_runtime(llama_cpp / "llama-server", cache=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def served(runtime, tmp_path_factory) -> Preset:
    """Return a winner's preset with a free port, and a model whose path has a blank."""
    model = tmp_path_factory.mktemp("models") / "tiny modèle.gguf"
    write_model(
        SynthSpec(layers=2, experts=4, used=2, embd=64, ff=32, vocab=512, type="q8_0"), model
    )
    plan = make_launch_plan(
        runtime,
        model,
        Candidate(PARAMS),
        purpose="preset",
        wrapper=("env",),
        extra_args=("--no-warmup", "--alias", "it's mine"),
    )
    assert isinstance(plan, LaunchPlan)
    winner = {"params": PARAMS, "argv": list(plan.argv), "env": dict(plan.env), "proven": True}
    preset = winner_preset(
        header(model_path=str(model), model_name="tiny modèle"),
        {"winner": winner, "gain": None},
        runtime=runtime,
        folder=model.parent,
        made_on=date(2026, 11, 29),
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return replace(preset, port=probe.getsockname()[1])


@pytest.mark.runtime
def test_variables_start_the_server_with_the_settings(served, tmp_path):
    """A server started from a file of variables has the preset's context, slots and model."""
    preset = tmp_path / "a preset"
    preset.write_text(write_preset("env", served), encoding="utf-8")
    program = shlex.join(served.command)
    command = f"set -a; . {shlex.quote(str(preset))}; exec {program} --no-warmup"

    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
            cwd=tmp_path,
        )
    try:
        deadline = time.monotonic() + 45
        while not _is_ready(served.port):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        props = httpx.get(f"http://127.0.0.1:{served.port}/props").json()
    finally:
        process.terminate()
        process.wait(timeout=20)

    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["model_path"] == str(served.model_path)


def _is_ready(port: int) -> bool:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) != 0:
            return False
    return httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200


@pytest.mark.runtime
def test_ini_of_a_planned_launch_keeps_the_order_of_overrides(served):
    """Both overrides become one key, in the order in which they were launched."""
    text = write_preset("ini", served)

    assert f"model = {served.model_path}\n" in text
    assert "override-tensor = blk\\.1\\.ffn_(up|down)_exps=CPU,blk\\.(0)\\.ffn_" in text
    assert "n-cpu-moe" not in text
    assert "fit = off\n" in text
    assert "warmup = false\n" in text


@pytest.mark.runtime
def test_winner_of_another_runtime_is_refused(served, runtime):
    """A winner that another program ran is refused."""
    winner = {"params": PARAMS, "argv": ["/opt/other/llama-server", "-m", "x"], "env": {}}

    with pytest.raises(UsageError, match="not started with"):
        winner_preset(
            header(),
            {"winner": winner},
            runtime=runtime,
            folder=served.folder,
            made_on=date(2026, 11, 29),
        )
