"""The fake llama-server does what it is asked, and says so as the real one does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fakes.machine import Device, Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.physics import Simulation
from fakes.running import RunningServer
from real_llama_cpp import free_port

ONE_CARD = ["-dev", "CUDA0", "-ncmoe", "16", "-c", "4096", "-np", "1", "-fit", "off", "-lv", "4"]
Start = Callable[..., RunningServer]


@pytest.fixture
def start(fake: FakeMachine, model_file: Path, tmp_path: Path):
    """Starts servers on the machine and ends them all."""
    running: list[RunningServer] = []

    def begin(*words: str, env: dict[str, str] | None = None, port: int | None = None):
        log = tmp_path / f"server-{len(running)}.log"
        running.append(RunningServer(fake.server, model_file, log, words or ONE_CARD, env=env,
                                     port=port))  # fmt: skip
        return running[-1]

    yield begin
    for server in running:
        server.__exit__()


def ask(fake: FakeMachine, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the fake with a question."""
    return subprocess.run([fake.server, *words], capture_output=True, text=True, timeout=20,
                          check=False)  # fmt: skip


def test_devices_are_listed_with_what_they_have_left(fake: FakeMachine):
    """Total and free memory by device, each opened and another program's share left out."""
    fake.hold("CUDA1", 300)
    done = ask(fake, "--list-devices")

    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Available devices:",
        "  CUDA0: NVIDIA GeForce RTX 3060 (2400 MiB, 2200 MiB free)",
        "  CUDA1: NVIDIA GeForce RTX 3060 (2000 MiB, 1500 MiB free)",
    ]


def test_rpc_devices_appear_when_their_server_is_named(tmp_path: Path):
    """A device of an RPC server is listed, first, only after --rpc."""
    remote = Device("RPC0", "remote", "RPC", endpoint="10.0.0.7:50052", context_mib=0)
    fake = FakeMachine(tmp_path, Machine("rpc", (Device("CUDA0"), remote)))

    assert "RPC0" not in ask(fake, "--list-devices").stdout
    listed = ask(fake, "--rpc", "10.0.0.7:50052", "--list-devices").stdout.splitlines()
    assert listed[1].startswith("  RPC0: 10.0.0.7:50052 (12288 MiB")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prefetch-experts-slots", "4"], "error: invalid argument: --prefetch-experts-slots"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "lots"], 'error while handling argument "-c": stoi'),
        (["-fa", "maybe"], "error: unknown value for --flash-attn: 'maybe'"),
        (["-ctk", "q9"], "Unsupported cache type: q9"),
        (["-np", "0"], "error: invalid value for n_parallel"),
        (["-lm", "fast"], 'error while handling argument "-lm": invalid value'),
        (["-dev", "CUDA9"], "invalid device: CUDA9"),
        (["-ot", "exps=GPU"], "unknown buffer type"),
        (["-ncmoe", "-1"], 'error while handling argument "-ncmoe": invalid value'),
    ],
)
def test_faulty_arguments_end_with_status_1(fake: FakeMachine, words: list[str], said: str):
    """Flags and values that the real one refuses are refused in its words."""
    done = ask(fake, *words)

    assert done.returncode == 1
    assert said in done.stderr


def test_buffer_names_are_listed_when_one_is_wrong(fake: FakeMachine):
    """A wrong override prints the names that there are, on stdout."""
    done = ask(fake, "-ot", "exps=GPU")

    assert done.stdout == "Available buffer types:\n  CPU\n  CUDA0\n  CUDA1\n"


@pytest.mark.parametrize(
    ("traits", "has", "lacks"),
    [
        (RuntimeTraits(), ["--load-mode", "--n-cpu-ffn"], ["--no-mmap", "--moe-cache-mib"]),
        (RuntimeTraits("old"), ["--load-mode", "--no-mmap"], ["--n-cpu-ffn", "--log-jsonl"]),
        (RuntimeTraits("old", has_load_mode=False), ["--no-mmap"], ["-lm, "]),
        (RuntimeTraits(prefetch="slots"), ["--prefetch-experts-slots N"], ["-pw"]),
        (RuntimeTraits(prefetch="weights"), ["-pw,   --prefetch-weights <0|1>"], []),
        (RuntimeTraits(has_moe_cache=True), ["(env: LLAMA_ARG_MOE_CACHE_MIB)"], []),
    ],
)
def test_help_lists_what_the_build_has(
    tmp_path: Path, traits: RuntimeTraits, has: list[str], lacks: list[str]
):
    """Old and new builds and forks list their own flags, and take them."""
    fake = FakeMachine(tmp_path, Machine("help", (Device("CUDA0"),), runtime=traits))
    text = ask(fake, "--help").stdout

    assert text.startswith("----- common params -----")
    assert all(flag in text for flag in has)
    assert not any(flag in text for flag in lacks)


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


def test_what_the_second_server_finds_left_can_be_too_little(start: Start, fake: FakeMachine):
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


def test_timings_are_those_of_the_simulation(start: Start, machine: Machine, model):
    """A request's timings equal what the physics says in-process, without noise."""
    server = start().wait_ready()
    prompt = [97 + i % 20 for i in range(2000)]
    timings = server.complete(prompt, 32)["timings"]
    params = {"devices": "CUDA0", "n_cpu_moe": 16, "context": 4096, "parallel": 1}
    sample = Simulation(machine, model).truth(params, [(2000, 32)]).samples[0]

    assert (timings["prompt_n"], timings["predicted_n"], timings["cache_n"]) == (2000, 32, 0)
    assert timings["prompt_ms"] == pytest.approx(1e3 * sample.prompt_s, abs=0.01)
    assert timings["predicted_per_second"] == pytest.approx(sample.tg_per_s, rel=1e-3)


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


def test_a_request_of_the_wrong_kind_is_an_error(start: Start):
    """A body with values of the wrong type is answered with 400."""
    server = start().wait_ready()

    assert server.post("/completion", {"prompt": 7}).status_code == 400
    assert server.post("/completion", {"prompt": "x", "n_predict": "many"}).status_code == 400


def test_time_can_really_pass(fake: FakeMachine, model_file: Path, tmp_path: Path):
    """With a time scale of 1 a stream's first token comes when the timings say."""
    with RunningServer(fake.server, model_file, tmp_path / "slow.log", ONE_CARD,
                       env={"FAKE_TIME_SCALE": "1"}) as server:  # fmt: skip
        server.wait_ready()
        began = time.monotonic()
        timings = server.complete([65] * 600, 8)["timings"]
        waited = 1e3 * (time.monotonic() - began)

    assert waited >= timings["prompt_ms"]


def test_greedy_text_does_not_depend_on_where_layers_lie(start: Start):
    """The same prompt gives the same tokens whatever the offload and the batches."""
    prompt = [65, 66, 67] * 30
    texts = set()
    for words in (ONE_CARD, ["-ncmoe", "20", "-ts", "10,15", "-ub", "64", *ONE_CARD[4:]]):
        server = start(*words).wait_ready()
        texts.add(server.complete(prompt, 40)["content"])
        server.stop()

    assert len(texts) == 1
    assert len(texts.pop()) > 20


def test_a_narrow_kv_type_can_change_some_tokens(tmp_path: Path, machine: Machine, model):
    """Where the machine says so, q4_0 answers differ a little from f16's, and q8_0's do not."""
    traits = RuntimeTraits(kv_text_change={"q4_0": 0.1}, kv_logprob_error={"q4_0": 0.02})
    fake = FakeMachine(tmp_path, replace(machine, runtime=traits))
    path = fake.write_model(model)
    tokens = {}
    for kind in ("f16", "q8_0", "q4_0"):
        words = [*ONE_CARD, "-ctk", kind, "-ctv", kind]
        with RunningServer(fake.server, path, tmp_path / f"{kind}.log", words) as server:
            answer = server.wait_ready().complete([65] * 50, 200, return_tokens=True)
            tokens[kind] = answer["tokens"]

    changed = sum(a != b for a, b in zip(tokens["f16"], tokens["q4_0"], strict=True))
    assert tokens["f16"] == tokens["q8_0"]
    assert 2 < changed < 60


def test_a_repeated_prompt_is_cached(start: Start):
    """An identical prompt reprocesses one token, unless the request or the flag forbids it."""
    server = start().wait_ready()
    ask = {"prompt": [65] * 100, "n_predict": 4}
    first, second = (server.post("/completion", ask).json()["timings"] for _ in range(2))
    forbidden = server.post("/completion", {**ask, "cache_prompt": False}).json()["timings"]

    assert (first["cache_n"], second["cache_n"], second["prompt_n"]) == (0, 99, 1)
    assert forbidden["cache_n"] == 0


def test_generation_ends_at_the_context(start: Start):
    """Asked for more than fits, a slot generates until its context is full."""
    server = start().wait_ready()
    answer = server.complete([65] * 4000, -1)

    assert answer["tokens_predicted"] == 96
    assert (answer["truncated"], answer["stop_type"]) == (True, "limit")


def test_a_prompt_beyond_the_context_is_refused(start: Start):
    """The error names both numbers, and the server lives on."""
    server = start().wait_ready()
    answer = server.post("/completion", {"prompt": [65] * 5000, "n_predict": 1})

    assert answer.status_code == 400
    assert answer.json()["error"]["n_ctx"] == 4096
    assert server.health() == 200


def test_a_stream_carries_tokens_then_the_result(start: Start):
    """Each token is an event; the last event has the timings and no text."""
    server = start().wait_ready()
    body = {"prompt": "hello", "n_predict": 5, "stream": True, "ignore_eos": True}
    with server.client.stream("POST", "/completion", json=body) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line]

    assert [event["stop"] for event in events] == [False] * 5 + [True]
    assert events[-1]["timings"]["predicted_n"] == 5


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


def test_a_port_in_use_is_told(start: Start):
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
def test_a_faulty_model_file_is_told(fake: FakeMachine, model_file: Path, tmp_path: Path, fault):
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


def test_fifty_starts_leave_nothing_behind(fake: FakeMachine):
    """Help and device questions hold no memory and no process."""
    for _ in range(5):
        ask(fake, "--list-devices")

    assert not fake.owners
    assert fake.launches == 0


def test_clients_that_go_away_do_no_harm(start: Start):
    """A client that closes in the middle of a stream leaves a server that still answers."""
    server = start().wait_ready()
    body = {"prompt": "x", "n_predict": 200, "stream": True, "ignore_eos": True}
    with httpx.Client() as client, client.stream(
        "POST", server.url + "/completion", json=body
    ) as answer:  # fmt: skip
        next(answer.iter_lines())

    assert server.complete("y", 3)["tokens_predicted"] == 3
    assert os.path.exists(f"/proc/{server.process.pid}")  # noqa: PTH110  # a process, not a file
