"""The embedded runtime as a program."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from real_llama_cpp import clean_environment, free_port

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.runtime.command.argv_writer import make_launch_plan
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.runtime.embedded.__main__ import FLAGS
from autofit.runtime.embedded.settings import SETTINGS
from autofit.trial.candidate import Candidate, LaunchPlan, ParamValue

COMMAND = [sys.executable, "-m", "autofit.runtime.embedded"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small mixture-of-experts model."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(
        SynthSpec(layers=3, experts=8, used=2, embd=256, heads=4, vocab=600, ctx=4096), path
    )
    return path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env=clean_environment(),
    )


@contextmanager
def serving(argv: list[str], log: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server; yield its address and process once it answers."""
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in argv]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, env=clean_environment())
    try:
        address = f"http://127.0.0.1:{port}"
        for _ in range(400):
            assert process.poll() is None, log.read_text()[-2000:]
            if is_ready(address):
                break
            time.sleep(0.05)
        yield address, process
    finally:
        process.kill()
        process.wait(10)


def is_ready(address: str) -> bool:
    """Return whether the server reports that it is ready."""
    try:
        return httpx.get(f"{address}/health").json() == {"status": "ok"}
    except httpx.TransportError:
        return False


def test_every_listed_flag_has_an_effect() -> None:
    """Each flag of the help prints information or sets a parameter."""
    printing = {"--help", "--version", "--list-devices"}
    flags = set(FLAGS.values())
    unused = [f for f in flags if not {*SETTINGS, *printing} & set(f.spellings)]
    assert unused == []
    assert all(name in FLAGS for name in SETTINGS)


def test_output_has_the_format_of_llama_server(tmp_path: Path) -> None:
    """Version, parameters and devices can be read as those of llama-server."""
    runtime = find_runtime(dialect="embedded", cache=tmp_path)
    assert runtime.version.version is not None
    assert re.fullmatch(r"\d{4}\.\d+\.\d+", runtime.version.version)
    assert {"n_cpu_moe", "cache_type_k", "load_mode", "override_tensor"} < set(runtime.parameters)
    assert "devices" not in runtime.parameters
    assert list_devices(runtime) is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prefetch-experts-slots", "3"], "error: invalid argument: --prefetch-experts-slots"),
        (["stray"], "error: invalid argument: stray"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "many"], 'error while handling argument "-c"'),
        (["--cache-type-k", "q7"], "unknown value: 'q7'"),
        (["-ot", "a=NOWHERE"], "unknown buffer type"),
        (["-c", "512"], "model.path is required"),
        (["-m", "/nowhere.gguf", "--port", "0"], "failed to load model"),
    ],
)
def test_faulty_command_exits_with_1(words: list[str], message: str) -> None:
    """The error is on stderr, as with llama-server, without a traceback."""
    done = run(*words)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_port_in_use_exits_with_1(model: Path) -> None:
    """The runtime's own line reports that the port is in use."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        done = run("-m", str(model), "-c", "256", "--port", str(other.getsockname()[1]))
    assert done.returncode == 1
    assert "couldn't bind HTTP server socket" in done.stderr


def test_refused_combination_exits_with_1(model: Path) -> None:
    """The runtime's own line reports the reason of a failed start."""
    words = ["-m", str(model), "-c", "256", "-fa", "off", "-ctv", "q4_0", "-lv", "4"]
    done = run(*words, "--port", str(free_port()))
    assert done.returncode == 1
    assert "quantized V cache requires flash_attn to be enabled" in done.stderr


def test_settings_of_a_candidate_are_applied(model: Path, tmp_path: Path) -> None:
    """Settings are applied, requests are answered, and SIGTERM ends the server with 0."""
    runtime = find_runtime(dialect="embedded", cache=tmp_path / "cache")
    params: dict[str, ParamValue] = {
        "context": 1000,
        "parallel": 3,
        "batch": 300,
        "ubatch": 600,
        "n_gpu_layers": 4,
        "tensor_split": "1,2",
        "n_cpu_moe": 1,
        "override_tensor": r"blk\.2\.attn_q=CPU",
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
        "flash_attn": "on",
        "load_mode": "none",
        "threads": 1,
        "threads_batch": 1,
        "repack": False,
    }
    plan = make_launch_plan(runtime, model, Candidate(params), purpose="measure")
    assert isinstance(plan, LaunchPlan)
    log = tmp_path / "log"
    with serving(list(plan.argv), log) as (address, process):
        props = httpx.get(f"{address}/props").json()
        assert props["total_slots"] == 3
        assert props["default_generation_settings"]["n_ctx"] == 512
        body = {"prompt": [*range(300, 340)], "n_predict": 4, "cache_prompt": False}
        reply = httpx.post(f"{address}/completion", json=body, timeout=30).json()
        assert reply["timings"]["prompt_n"] == 40
        assert reply["timings"]["cache_n"] == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    text = log.read_text()
    for applied in (
        "load_mode = none",
        r"n_ctx +=\ 1536",
        r"n_batch +=\ 300",
        r"n_ubatch +=\ 300",
        r"K \(q8_0\)",
        "prompt cache is disabled",
        "context checkpoints disabled",
        "memory breakdown",
    ):
        assert re.search(applied, text), applied
    assert "CPU_REPACK" not in text


def test_server_can_be_stopped_at_any_time(model: Path, tmp_path: Path) -> None:
    """A signal ends the server at once while it loads, and with status 0 when it serves."""
    argv = [*COMMAND, "-m", str(model), "-c", "256", "--port", "{port}", "-t", "1"]
    with serving(argv, tmp_path / "log") as (address, process):
        assert httpx.post(f"{address}/completion", json={"prompt": [1], "n_predict": 1}).is_success
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    for pause_s in (0.05, 0.2, 0.4):
        words = [word.replace("{port}", str(free_port())) for word in argv]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_environment()
        )
        time.sleep(pause_s)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(20) in (0, -signal.SIGTERM)
