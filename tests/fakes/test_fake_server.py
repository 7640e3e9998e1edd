"""The fake llama-server starts, holds memory, logs and ends as the real one does."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fakes.machine import Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.one_card import ONE_CARD, Start
from fakes.physics import Simulation
from fakes.running import RunningServer
from real_llama_cpp import free_port


def test_a_server_answers_503_until_it_is_ready(start: Start, fake: FakeMachine):
    """The socket opens first, then everything says that the model is loading, then ok."""
    fake.fail("slow-load", 0.6)
    server = start()
    seen = []
    while not seen or seen[-1] != 200:
        seen.append(server.health())
        time.sleep(0.02)

    assert list(dict.fromkeys(seen)) in ([None, 503, 200], [503, 200])


def test_memory_is_shared_and_given_back(start: Start, fake: FakeMachine):
    """Two servers add up in the memory command; ended and killed ones hold nothing."""
    before = fake.memory()["CUDA0"]
    words = ["-dev", "CUDA0", "-cmoe", "-c", "1024", "-np", "1", "-fit", "off"]
    first, second = start(*words).wait_ready(), start(*words, "-ub", "64").wait_ready()
    both = fake.memory()["CUDA0"]
    table = subprocess.run(
        [fake.memory_command], capture_output=True, text=True, check=True
    ).stdout
    second.process.kill()
    second.ended()
    one = fake.memory()["CUDA0"]

    assert first.stop() == 0
    assert before[2] < one[2] < both[2]
    assert fake.memory()["CUDA0"] == before
    assert table.splitlines()[0] == f"CUDA0 2400 {both[1]:.0f} {both[2]:.0f}"


def test_memory_can_come_back_late(start: Start, fake: FakeMachine):
    """With a release time, memory stays taken for a while after the end."""
    fake.change(release_s=0.8)
    server = start().wait_ready()
    server.stop()
    still = fake.memory()["CUDA0"]
    time.sleep(1.0)

    assert still[2] > fake.memory()["CUDA0"][2]


def test_a_second_server_can_be_out_of_memory(start: Start, fake: FakeMachine):
    """A launch fails for memory that another process holds."""
    start(*ONE_CARD[:2], "-ncmoe", "8", *ONE_CARD[4:]).wait_ready()
    second = start(*ONE_CARD[:2], "-ncmoe", "8", *ONE_CARD[4:])

    assert second.ended() == 1
    assert "cudaMalloc failed: out of memory" in second.log()


def test_the_memory_table_adds_up(start: Start):
    """Self is model + context + compute, and total is free + self + unaccounted."""
    server = start().wait_ready()
    assert server.stop() == 0
    row = re.search(
        r"- CUDA0 \(RTX 3060\)\s*\|\s*(\d+) = (\d+)\s*\+ "
        r"\(\s*(\d+) =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\) \+\s*(-?\d+)", server.log(),
    )  # fmt: skip
    total, free, own, *parts, unaccounted = map(int, row.groups())

    assert own == sum(parts)
    assert total == free + own + unaccounted


def test_the_boundary_is_that_of_the_simulation(start: Start, machine: Machine, model):
    """The last layer count that runs in-process runs as a process, and one fewer fails there."""
    simulation = Simulation(machine, model)

    def fits(layers: int) -> bool:
        params = {"devices": "CUDA0", "n_cpu_moe": layers, "context": 4096, "parallel": 1}
        return simulation.fits(params, [(2000, 8)])

    edge = next(layers for layers in range(24) if fits(layers))
    words = [*ONE_CARD[:2], "-c", "4096", "-np", "1", "-fit", "off", "-ncmoe"]
    running = start(*words, str(edge)).wait_ready()
    assert running.complete([65] * 2000, 8)["tokens_predicted"] == 8
    running.stop()
    failing = start(*words, str(edge - 1))
    while failing.process.poll() is None and failing.health() != 200:
        time.sleep(0.02)
    if failing.process.poll() is None:
        with pytest.raises(httpx.TransportError):
            failing.complete([65] * 2000, 8)

    assert failing.ended() in (1, -signal.SIGABRT)


def test_the_environment_and_the_users_file_change_settings(start: Start, tmp_path: Path):
    """LLAMA_ARG_* and llama.cpp/config.ini count before the command line, as they do there."""
    folder = tmp_path / "config" / "llama.cpp"
    folder.mkdir(parents=True)
    (folder / "config.ini").write_text("[*]\nubatch-size = 128\n")
    env = {"LLAMA_ARG_CTX_SIZE": "2048", "XDG_CONFIG_HOME": str(tmp_path / "config")}
    server = start("-dev", "CUDA0", "-ncmoe", "16", "-np", "1", "-fit", "off", "-lv", "4",
                   env=env).wait_ready()  # fmt: skip

    assert "using config file" in server.log()
    assert re.search(r"n_ubatch +\| *|n_ubatch +=\s+128", server.log())
    assert server.get("/props")["default_generation_settings"]["n_ctx"] == 2048


def test_without_fit_off_layers_are_placed_by_the_runtime(start: Start, fake: FakeMachine):
    """The runtime's own fit leaves its margin on every device and says what it did."""
    server = start("-c", "4096", "-np", "1", "-lv", "4").wait_ready()

    assert "successfully fit params to free device memory" in server.log()
    assert all(fake.memory()[name][1] >= 1024 - 120 for name in ("CUDA0", "CUDA1"))


def test_the_companion_prints_what_the_server_then_takes(
    start: Start, fake: FakeMachine, model_file: Path
):
    """--fit-print agrees with the memory table but for logits of a whole ubatch."""
    words = ["-dev", "CUDA0", "-ncmoe", "16", "-c", "4096"]
    done = subprocess.run([fake.fit_params, "-m", model_file, *words, "--fit-print", "on"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    weights, context, compute = map(int, done.stdout.split()[1:4])
    server = start().wait_ready()
    server.stop()

    own = re.search(r"- CUDA0 .*\(\s*\d+ =\s*(\d+) \+\s*(\d+) \+\s*(\d+)\)", server.log())
    assert (weights, context) == (int(own.group(1)), int(own.group(2)))
    assert 0 <= compute - int(own.group(3)) <= 8


def test_a_second_signal_forces_the_end(start: Start, fake: FakeMachine):
    """One TERM ends in order with status 0, two end at once with status 1."""
    fake.fail("slow-stop", 5)
    server = start().wait_ready()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    server.process.send_signal(signal.SIGTERM)

    assert server.ended() == 1
    assert "memory breakdown" not in server.log()


def test_a_signal_while_loading_kills_at_once(start: Start, fake: FakeMachine):
    """Before the model is loaded there is no handler."""
    fake.fail("hang-load")
    server = start()
    while server.health() != 503:
        time.sleep(0.02)

    assert server.stop() == -signal.SIGTERM
    assert not fake.owners


def test_a_port_in_use_is_reported(start: Start):
    """The socket is bound before the model is read; a taken port ends with status 1."""
    port = free_port()
    start(port=port).wait_ready()
    second = start(port=port)

    assert second.ended() == 1
    assert f"couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}" in second.log()


def test_log_lines_follow_the_verbosity(start: Start):
    """At the default level only the server's own lines are there; -lv 4 adds the library's."""
    quiet = start(*[word for word in ONE_CARD if word not in ("-lv", "4")]).wait_ready()
    assert quiet.stop() == 0
    jsonl = start(*ONE_CARD, "--log-jsonl").wait_ready().log()

    assert "listening on" in quiet.log()
    assert "buffer size" not in quiet.log()
    assert all(line.startswith("{") for line in jsonl.splitlines())


def test_an_old_build_logs_in_its_own_words(tmp_path: Path, machine: Machine, model):
    """Graph lines, flags and the warning about the map are those of b10434."""
    fake = FakeMachine(tmp_path, replace(machine, runtime=RuntimeTraits("old")))
    words = [*ONE_CARD, "--mmap"]
    with RunningServer(fake.server, fake.write_model(model), tmp_path / "log", words) as server:
        log = server.wait_ready().log()

    assert "consider using --no-mmap for better performance" in log
    assert re.search(r"graph splits = \d+ \(with bs=512\), \d+ \(with bs=1\)", log)


@pytest.mark.parametrize("fault", ["missing", "cut", "other"])
def test_a_faulty_model_file_is_reported(
    fake: FakeMachine, model_file: Path, tmp_path: Path, fault
):
    """A missing, truncated or foreign file ends with status 1 and the loader's words."""
    path = tmp_path / "bad.gguf"
    if fault == "cut":
        with model_file.open("rb") as whole:
            path.write_bytes(whole.read(3000))
    elif fault == "other":
        path.write_bytes(b"PK\x03\x04" + bytes(100))
    with RunningServer(fake.server, path, tmp_path / "log", ONE_CARD) as server:
        assert server.ended() == 1
        log = server.log()

    assert "llama_model_load: error loading model" in log
    assert "exiting due to model loading error" in log
