"""Predictions of the runtime's planner, compared with a real server."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_llama_cpp import clean_environment, free_port, rpc_device

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.runtime.command.argv_writer import make_launch_plan
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.planner.planner import PredictionCache, RuntimePlanner
from autofit.trial.candidate import Candidate, LaunchPlan, ParamValue
from autofit.trial.measurement import ReportedMemory

EMBD, VOCAB = 256, 40000
BASE: dict[str, ParamValue] = {
    "devices": "RPC0,RPC1",
    "n_gpu_layers": 5,
    "tensor_split": "2,3",
    "n_cpu_moe": 1,
    "context": 4096,
    "parallel": 1,
    "batch": 2048,
    "ubatch": 1024,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "flash_attn": "on",
    "load_mode": "none",
    "repack": False,
}
_ROW = re.compile(r"\|\s+- (\S+).*?=\s*(?:\d+\s*\+ \(\s*\d+ =\s*)?(\d+) \+\s*(\d+) \+\s*(\d+)")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose logits are larger than the rest of its graph."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(
        SynthSpec(layers=4, experts=8, used=2, embd=EMBD, heads=4, vocab=VOCAB, header_only=True),
        path,
    )
    return path


@pytest.fixture(scope="module")
def rpc(llama_cpp: Path) -> Iterator[str]:
    """Start two remote devices."""
    with rpc_device(llama_cpp) as first, rpc_device(llama_cpp) as second:
        yield f"{first},{second}"


def reported(runtime: Runtime, model: Path, candidate: Candidate, rpc: str, log: Path) -> dict:
    """Return model, context and compute MiB by device in a real server's memory table."""
    plan = make_launch_plan(runtime, model, candidate, purpose="measure", rpc=rpc)
    assert isinstance(plan, LaunchPlan)
    words = [word.replace("{port}", str(free_port())) for word in plan.argv]
    with log.open("wb") as file:
        server = subprocess.Popen(words, stdout=file, stderr=file, env=clean_environment())
    try:
        for _ in range(400):
            assert server.poll() is None, log.read_text()[-2000:]
            if "listening on" in log.read_text(errors="replace"):
                break
            time.sleep(0.05)
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait(10)
    rows = _ROW.findall(log.read_text())
    return {
        "host" if name == "Host" else name: (float(m), float(k), float(c))
        for name, m, k, c in rows
    }


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("changes", "output", "surplus"),
    [
        ({}, "RPC1", 3),
        ({"ubatch": 2048, "parallel": 4, "cache_type_k": "q8_0"}, "RPC1", 3),
        ({"tensor_split": "4,1"}, "RPC1", 3),  # one device holds only the output layer
        ({"n_cpu_moe": None}, "RPC1", 7),  # pipeline parallelism
        ({"n_gpu_layers": 0, "tensor_split": "1,1"}, "host", 3),
        ({"flash_attn": "off", "n_gpu_layers": 3, "tensor_split": "1,2"}, "RPC1", 3),
    ],
)
def test_prediction_matches_the_server(  # noqa: PLR0917 - cases and fixtures
    changes: dict[str, ParamValue | None],
    output: str,
    surplus: int,
    llama_cpp: Path,
    model: Path,
    rpc: str,
    tmp_path: Path,
) -> None:
    """Every number is equal, except that the output device may be some hidden states higher."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    candidate = Candidate(BASE).with_params(**changes)
    sizes = RuntimePlanner(runtime, model, rpc=rpc, cache=tmp_path).predict_memory(candidate)
    assert sizes is not None
    real = reported(runtime, model, candidate, rpc, tmp_path / "log")
    hidden_mib = candidate.get_int("ubatch", 0) * EMBD * 4 / 2**20
    logits_mib = candidate.get_int("ubatch", 0) * VOCAB * 4 / 2**20
    assert real.keys() == sizes.keys()
    for name, row in sizes.items():
        assert (row.model_mib, row.context_mib) == real[name][:2], name
        difference = row.compute_mib - real[name][2]
        if name == output:
            assert -1 < difference <= surplus * hidden_mib + 1, difference
            assert row.compute_mib < logits_mib
        else:
            assert difference == 0


@pytest.mark.runtime
def test_prediction_is_cached(llama_cpp: Path, model: Path, tmp_path: Path) -> None:
    """A prediction with a split is cached on disk, and used without the remote devices."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    with rpc_device(llama_cpp) as first, rpc_device(llama_cpp) as second:
        servers = f"{first},{second}"
        before = RuntimePlanner(runtime, model, rpc=servers, cache=tmp_path).predict_memory(
            Candidate(BASE)
        )
        loose = Candidate(BASE).with_params(tensor_split=None)
        assert RuntimePlanner(runtime, model, rpc=servers, cache=tmp_path).predict_memory(loose)
    after = RuntimePlanner(runtime, model, rpc=servers, cache=tmp_path)
    assert before is not None
    assert after.predict_memory(Candidate(BASE)) == before
    assert after.usage.runs == 0
    # Without a split the placement depends on the free memory, so nothing is cached.
    assert after.predict_memory(loose) is None
    assert after.usage.runs == 1
    assert after.usage.seconds > 0


@pytest.mark.runtime
def test_unplannable_candidate_has_no_prediction(
    llama_cpp: Path, model: Path, tmp_path: Path
) -> None:
    """A failure of the planner is not an error."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    planner = RuntimePlanner(runtime, model, cache=tmp_path)
    assert planner.predict_memory(Candidate({"devices": "CUDA7", "tensor_split": "1"})) is None


@pytest.mark.runtime
def test_extra_arguments_are_planned(llama_cpp: Path, model: Path, tmp_path: Path) -> None:
    """Extra arguments are passed to the planner if it has them."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    candidate = Candidate({"context": 2048, "kv_unified": True, "tensor_split": "1"})
    plain = RuntimePlanner(runtime, model, cache=tmp_path).predict_memory(candidate)
    extra = ["--jinja", "--alias", "a b", "-ctk", "q4_0", "-ctv", "q4_0"]
    narrow = RuntimePlanner(runtime, model, extra_args=extra, cache=tmp_path).predict_memory(
        candidate
    )
    assert plain is not None
    assert narrow is not None
    assert narrow["host"].context_mib < plain["host"].context_mib


def test_runtime_without_a_planner_has_no_prediction(model: Path, tmp_path: Path) -> None:
    """The embedded runtime has no planner."""
    runtime = find_runtime(dialect="embedded", cache=tmp_path)
    assert RuntimePlanner(runtime, model, cache=tmp_path).predict_memory(Candidate(BASE)) is None


def test_incomplete_line_of_the_cache_is_ignored(tmp_path: Path) -> None:
    """An incomplete last line is ignored, and the other predictions are used."""
    path = tmp_path / "deep" / "cache.jsonl"
    record = PredictionCache(path)
    sizes = {"host": ReportedMemory(1.0, 2.0, 3.5)}
    record.put("a", sizes, is_lasting=True)
    record.put("b", sizes, is_lasting=False)
    record.put("c", None, is_lasting=True)
    with path.open("a") as file:
        file.write('["d", {"host": {"model_mib": 1.0, "cont')
    again = PredictionCache(path)
    assert again.get("a") == sizes
    assert [key in again for key in "abcd"] == [True, False, False, False]
