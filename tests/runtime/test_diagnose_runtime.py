"""Failures of the real llama-server, diagnosed from its own logs."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from real_llama_cpp import clean_environment, free_port, rpc_device

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.runtime.diagnosis.diagnose import Diagnosis, diagnose, diagnosis_to_dict
from autofit.runtime.diagnosis.exit_status import normalize_status
from autofit.runtime.dialect.dialect_file import load_dialect

pytestmark = pytest.mark.runtime
_READY_S = 30.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of three MiB."""
    path = tmp_path_factory.mktemp("model") / "moe.gguf"
    write_model(
        SynthSpec(layers=4, experts=8, used=2, embd=256, ff=256, heads=4, vocab=1024), path
    )
    return path


@dataclass
class Running:
    """A running server and its log."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def is_ready(self) -> bool:
        """Wait until the server answers or has ended; return whether it answers."""
        until = time.monotonic() + _READY_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def send_prompt(self, tokens: int) -> None:
        """Send a prompt with this number of tokens; ignore a failure."""
        body = {"prompt": [i % 90 for i in range(tokens)], "n_predict": 4}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own
                answer.read()
        except (OSError, urllib.error.HTTPError):
            pass

    def diagnose(self, ends_by: signal.Signals | None = None) -> Diagnosis:
        """End the server, and diagnose its log and exit status."""
        if ends_by is not None and self.process.poll() is None:
            self.process.send_signal(ends_by)
        status = normalize_status(self.process.wait(30))
        lines = self.log.read_text(errors="replace").splitlines()
        return diagnose(lines, load_dialect("llama_server"), exit_status=status)


Run = Callable[..., Running]


@pytest.fixture
def run(llama_cpp: Path, model: Path, tmp_path: Path) -> Iterator[Run]:
    """Start servers; none is left running."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, port: int | None = None) -> Running:
        port = port or free_port()
        log = tmp_path / f"{len(started)}.log"
        argv = [str(llama_cpp / "llama-server"), "--port", str(port), "--host", "127.0.0.1"]
        argv += ["-m", str(model), "-np", "1", "-t", "1", *arguments]
        argv += [] if "-fit" in arguments else ["-fit", "off", "-lv", "4"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                argv, env=clean_environment(), stdout=output, stderr=subprocess.STDOUT
            )
        started.append(process)
        return Running(process, port, log)

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def test_stopped_server_is_completed(run: Run):
    """A server that answered and was stopped has completed, and its facts are read."""
    server = run("-c", "1024")
    assert server.is_ready()
    server.send_prompt(300)

    diagnosis = server.diagnose(signal.SIGTERM)

    assert diagnosis.kind == "completed"
    assert diagnosis.log.integer("context") == 1024
    assert diagnosis.log.reported["Host"].model_mib > 0


@pytest.mark.parametrize(
    ("arguments", "reason", "stage"),
    [
        (["--no-such-flag"], "unknown_flag", "plan"),
        (["-ctk", "q9_0"], "bad_value", "plan"),
        (["-fa", "off", "-ctv", "q4_0"], "combination", "context"),
    ],
)
def test_refused_settings_are_rejected(run: Run, arguments: list[str], reason: str, stage: str):
    """Refused settings are rejected with reason and stage."""
    diagnosis = run(*arguments).diagnose()

    assert (diagnosis.kind, diagnosis.reason, diagnosis.stage) == ("rejected", reason, stage)


def test_port_in_use_is_diagnosed(run: Run):
    """A server that cannot listen crashed because of its port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        diagnosis = run(port=taken.getsockname()[1]).diagnose()

    assert (diagnosis.kind, diagnosis.reason) == ("crashed", "port_in_use")


def test_exceeded_context_is_rejected(run: Run):
    """A prompt longer than the context is rejected, with advice."""
    server = run("-c", "512")
    assert server.is_ready()
    server.send_prompt(2000)

    diagnosis = server.diagnose(signal.SIGTERM)

    assert (diagnosis.kind, diagnosis.reason) == ("rejected", "context_exceeded")
    assert diagnosis.advice[0].startswith("raise context from 512 to 2048")


def test_kill_is_attributed_to_host_memory(run: Run):
    """A server that gets SIGKILL was out of host memory, as far as its log shows."""
    server = run("-c", "512")
    assert server.is_ready()

    diagnosis = server.diagnose(signal.SIGKILL)

    assert (diagnosis.kind, diagnosis.reason) == ("out_of_memory", "killed")


def test_full_device_is_named(run: Run, llama_cpp: Path):
    """A failed KV allocation on the second RPC device has device and size."""
    with rpc_device(llama_cpp) as large, rpc_device(llama_cpp, 400) as small:
        server = run("--rpc", f"{large},{small}", "-ngl", "99", "-ts", "3,2", "-c", "1000000")
        diagnosis = server.diagnose()

    found = diagnosis_to_dict(diagnosis)
    assert (found["kind"], found["where"], found["buffer"]) == ("out_of_memory", "device", "kv")
    assert (found["stage"], found["device"]) == ("context", "RPC1")
    # One of four layers, 2 heads of 64, keys and values in f16, 1000192 cells.
    assert found["requested_mib"] == pytest.approx(1000192 * 2 * 64 * 2 * 2 / 2**20, abs=0.1)


def test_lost_rpc_server_is_diagnosed(run: Run, llama_cpp: Path):
    """A remote device that ends during a run is a lost device."""
    with rpc_device(llama_cpp) as endpoint:
        server = run("--rpc", endpoint, "-ngl", "99", "-c", "512")
        assert server.is_ready()
    server.send_prompt(300)

    diagnosis = server.diagnose(signal.SIGTERM)

    assert (diagnosis.kind, diagnosis.reason) == ("crashed", "device_lost")
    assert diagnosis.stage == "prompt"


def test_values_of_fitting_are_not_applied_values(run: Run, llama_cpp: Path):
    """Of the many contexts in a detailed log, the allocated one counts."""
    with rpc_device(llama_cpp) as endpoint:
        free_mib = psutil.virtual_memory().total >> 20
        fit = ["-fit", "on", "-lv", "5", "-fitt", str(free_mib - 40)]
        server = run("--rpc", endpoint, "-ngl", "auto", *fit)
        assert server.is_ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/props") as answer:
            props = json.load(answer)
        diagnosis = server.diagnose(signal.SIGTERM)

    log = diagnosis.log
    assert diagnosis.kind == "completed"
    assert log.values["fit_context_from"] == 32768
    assert log.integer("context_per_slot") == props["default_generation_settings"]["n_ctx"]
    assert log.integer("context") == log.values["fit_context_to"]
    row = log.reported["RPC0"]
    assert log.mib("compute", "RPC0") == pytest.approx(row.compute_mib, abs=1)
    assert log.mib("kv", "RPC0") == pytest.approx(row.context_mib, abs=1)
