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
    """A model of three MiB."""
    path = tmp_path_factory.mktemp("model") / "moe.gguf"
    write_model(
        SynthSpec(layers=4, experts=8, used=2, embd=256, ff=256, heads=4, vocab=1024), path
    )
    return path


@dataclass
class Ran:
    """A server that runs, and the log it writes."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def is_ready(self) -> bool:
        """Wait until it answers or has ended."""
        until = time.monotonic() + _READY_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return True
            except OSError:
                time.sleep(0.05)
        return False

    def ask(self, tokens: int) -> None:
        """Send a prompt of that many tokens, whatever comes of it."""
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

    def told(self, ends_by: signal.Signals | None = None) -> Diagnosis:
        """End it, and diagnose it by its log and exit status."""
        if ends_by is not None and self.process.poll() is None:
            self.process.send_signal(ends_by)
        status = normalize_status(self.process.wait(30))
        lines = self.log.read_text(errors="replace").splitlines()
        return diagnose(lines, load_dialect("llama_server"), exit_status=status)


Run = Callable[..., Ran]


@pytest.fixture
def run(llama_cpp: Path, model: Path, tmp_path: Path) -> Iterator[Run]:
    """Starts the server with these arguments; none is left."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, port: int | None = None) -> Ran:
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
        return Ran(process, port, log)

    yield start
    for process in started:
        process.kill()
        process.wait(10)


def test_a_good_run_is_completed(run: Run):
    """A server that answered and was told to stop has completed, and told its facts."""
    server = run("-c", "1024")
    assert server.is_ready()
    server.ask(300)

    diagnosis = server.told(signal.SIGTERM)

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
def test_refused_settings_are_told(run: Run, arguments: list[str], reason: str, stage: str):
    """The runtime's own words say why it refused."""
    diagnosis = run(*arguments).told()

    assert (diagnosis.kind, diagnosis.reason, diagnosis.stage) == ("rejected", reason, stage)


def test_a_port_in_use_is_told(run: Run):
    """A server that cannot listen is not taken for one that cannot load."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        diagnosis = run(port=taken.getsockname()[1]).told()

    assert (diagnosis.kind, diagnosis.reason) == ("crashed", "port_in_use")


def test_an_exceeded_context_is_told(run: Run):
    """A prompt longer than the context is refused, and the server lives on."""
    server = run("-c", "512")
    assert server.is_ready()
    server.ask(2000)

    diagnosis = server.told(signal.SIGTERM)

    assert (diagnosis.kind, diagnosis.reason) == ("rejected", "context_exceeded")
    assert diagnosis.advice[0].startswith("raise context from 512 to 2048")


def test_a_kill_is_told(run: Run):
    """A server that gets SIGKILL wanted the host's memory, as far as its log can tell."""
    server = run("-c", "512")
    assert server.is_ready()

    diagnosis = server.told(signal.SIGKILL)

    assert (diagnosis.kind, diagnosis.reason) == ("out_of_memory", "killed")


def test_a_full_device_is_told_by_its_name(run: Run, llama_cpp: Path):
    """KV that the second of two RPC devices cannot hold is told with its size."""
    with rpc_device(llama_cpp) as roomy, rpc_device(llama_cpp, 400) as small:
        server = run("--rpc", f"{roomy},{small}", "-ngl", "99", "-ts", "3,2", "-c", "1000000")
        diagnosis = server.told()

    found = diagnosis_to_dict(diagnosis)
    assert (found["kind"], found["where"], found["buffer"]) == ("out_of_memory", "device", "kv")
    assert (found["stage"], found["device"]) == ("context", "RPC1")
    # One of four layers, 2 heads of 64, keys and values in f16, 1000192 cells.
    assert found["requested_mib"] == pytest.approx(1000192 * 2 * 64 * 2 * 2 / 2**20, abs=0.1)


def test_a_lost_rpc_server_is_told(run: Run, llama_cpp: Path):
    """A device that goes away in the middle is a lost device."""
    with rpc_device(llama_cpp) as endpoint:
        server = run("--rpc", endpoint, "-ngl", "99", "-c", "512")
        assert server.is_ready()
    server.ask(300)

    diagnosis = server.told(signal.SIGTERM)

    assert (diagnosis.kind, diagnosis.reason) == ("crashed", "device_lost")
    assert diagnosis.stage == "prompt"


def test_what_fitting_tried_is_not_taken_for_what_was_applied(run: Run, llama_cpp: Path):
    """The log of all details tells of many contexts; the one that was made counts."""
    with rpc_device(llama_cpp) as endpoint:
        free_mib = psutil.virtual_memory().total >> 20
        fit = ["-fit", "on", "-lv", "5", "-fitt", str(free_mib - 40)]
        server = run("--rpc", endpoint, "-ngl", "auto", *fit)
        assert server.is_ready()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/props") as answer:
            props = json.load(answer)
        diagnosis = server.told(signal.SIGTERM)

    log = diagnosis.log
    assert diagnosis.kind == "completed"
    assert log.values["fit_context_from"] == 32768
    assert log.integer("context_per_slot") == props["default_generation_settings"]["n_ctx"]
    assert log.integer("context") == log.values["fit_context_to"]
    row = log.reported["RPC0"]
    assert log.mib("compute", "RPC0") == pytest.approx(row.compute_mib, abs=1)
    assert log.mib("kv", "RPC0") == pytest.approx(row.context_mib, abs=1)
