"""The fake fails in every configured way, with the messages of every backend."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fakes.faults import Fault
from fakes.machine import Device, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.running import RunningServer

WORDS = ["-ncmoe", "20", "-c", "2048", "-np", "1", "-ngl", "99", "-fit", "off", "-lm", "none",
         "-lv", "4"]  # fmt: skip
BACKENDS = ("CUDA", "ROCm", "Vulkan", "SYCL", "Metal", "RPC")
NAMES = {"Metal": "MTL0"}
REFUSED = {
    "CUDA": r"allocating \d+\.\d\d MiB on device 0: cudaMalloc failed: out of memory",
    "ROCm": r"allocating \d+\.\d\d MiB on device 0: cudaMalloc failed: out of memory",
    "Vulkan": r"ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory",
    "SYCL": r"can't allocate \d+ Bytes of memory on device",
    "Metal": r"error: failed to allocate buffer, size = +\d+\.\d\d MiB",
    "RPC": r"failed to allocate RPC0\[10\.0\.0\.7:50052\] buffer of size \d+",
}
LOST = {
    "CUDA": "CUDA error: out of memory",
    "ROCm": "ROCm error: out of memory",
    "Vulkan": "vk::OutOfDeviceMemoryError",
    "SYCL": "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "RPC": "Remote RPC server crashed or returned malformed response",
}


def machine_of(backend: str) -> Machine:
    """One roomy card of a backend."""
    device = Device(NAMES.get(backend, f"{backend}0"), "A card", backend, total_mib=9000)
    if backend == "RPC":
        device = replace(device, endpoint="10.0.0.7:50052")
    return Machine(backend, (device,)).without_noise()


@pytest.fixture
def launch(tmp_path: Path, model):
    """Starts a server of a backend with a fault; all are ended at the end."""
    running: list[RunningServer] = []

    def begin(fault: str = "", backend: str = "CUDA", *words: str, **conditions):
        fake = FakeMachine(tmp_path / str(len(running)), machine_of(backend))
        name, _, value = fault.partition(":")
        if fault:
            fake.fail(name, value or None, **conditions)
        argv = [*WORDS, *words]
        if backend == "RPC":
            argv = ["--rpc", "10.0.0.7:50052", *argv]
        path = fake.write_model(model)
        server = RunningServer(fake.server, path, tmp_path / f"{len(running)}.log", argv)
        server.fake = fake
        running.append(server)
        return server

    yield begin
    for server in running:
        server.__exit__()


def prompt_fails(server: RunningServer) -> httpx.Response | None:
    """A large prompt; None where the connection breaks."""
    try:
        return server.wait_ready().post("/completion", {"prompt": [65] * 1500, "n_predict": 4})
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("oom-weights", "llama_model_load: error loading model: unable to allocate"),
        ("oom-kv", "failed to initialize the context: failed to allocate buffer for kv cache"),
        ("oom-compute", "failed to allocate compute pp buffers"),
    ],
)
def test_memory_refused_while_loading(launch, backend: str, fault: str, said: str):
    """The backend's line, the stage's line and status 1, for each buffer."""
    server = launch(fault, backend)
    status, log = server.ended(), server.log()

    assert status == 1
    if (backend, fault) == ("RPC", "oom-compute"):
        assert "ggml_gallocr_reserve_n_impl: failed to allocate RPC0[10.0.0.7:50052]" in log
    else:
        assert re.search(REFUSED[backend], log)
    assert said in log
    assert "exiting due to model loading error" in log


@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "Metal"])
def test_memory_runs_out_at_the_first_prompt(launch, backend: str):
    """The process is ready, then aborts in a large prompt with the backend's last words."""
    server = launch("oom-prompt", backend)

    assert prompt_fails(server) is None
    assert server.ended() == -signal.SIGABRT
    assert LOST[backend] in server.log()


def test_metal_answers_with_an_error_and_lives_on(launch):
    """Out of memory in a Metal command buffer is HTTP 500, not the end of the process."""
    server = launch("oom-prompt", "Metal")
    answer = prompt_fails(server)

    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "Compute error."
    assert "Insufficient Memory" in server.log()
    assert server.health() == 200


def test_cublas_dies_without_the_word_memory(launch):
    """The library's handle cannot be made; the log names resources only."""
    server = launch("oom-cublas")
    prompt_fails(server)

    assert server.ended() == -signal.SIGABRT
    words = server.log().split("processing task")[-1]
    assert "CUDA error: the resource allocation failed" in words
    assert "cublasCreate_v2" in words
    assert "out of memory" not in words


def test_memory_runs_out_in_mid_generation(launch):
    """The prompt was processed; the abort comes while tokens are generated."""
    server = launch("oom-generate")

    assert prompt_fails(server) is None
    assert server.ended() == -signal.SIGABRT


def test_a_failed_batch_is_an_error_that_the_server_survives(launch):
    """Decoding fails without an abort: HTTP 500, and the next request is answered."""
    server = launch("oom-decode", launches=[1])
    answer = prompt_fails(server)

    assert answer.status_code == 500
    assert "failed to allocate graph" in server.log()
    assert server.process.poll() is None


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ("silent:load", 1), ("silent:prompt", 1), ("killed:load", -9), ("killed:prompt", -9),
        ("segfault:context", -11), ("illegal:warmup", -4), ("illegal:prompt", -4),
        ("abort:generate", -6), ("bus:load", -7),
    ],
)  # fmt: skip
def test_the_process_ends_at_a_stage(launch, fault: str, status: int):
    """A signal or a silent exit strikes while loading, warming up, prompting or generating."""
    server = launch(fault)
    if fault.endswith(("prompt", "generate")):
        assert prompt_fails(server) is None

    assert server.ended() == status


def test_host_memory_is_refused_in_its_own_words(launch):
    """Plain host memory, and pinned memory that has no substitute."""
    plain, pinned = launch("host-oom"), launch("pinned-fatal")

    assert (plain.ended(), pinned.ended()) == (1, 1)
    assert "ggml_aligned_malloc: insufficient memory (attempted to allocate" in plain.log()
    assert "unable to allocate CUDA_Host buffer" in pinned.log()


def test_refused_pinning_is_a_warning_that_costs_speed(launch):
    """The runtime goes on with pageable memory; prompts are slower."""
    fine, slow = launch().wait_ready(), launch("pinned-refused").wait_ready()
    times = [server.complete([65] * 1500, 2)["timings"]["prompt_ms"] for server in (fine, slow)]

    assert times[1] > 1.1 * times[0]
    assert "MiB of pinned memory: out of memory" in slow.log()


def test_a_spill_is_silent(launch):
    """The launch answers, only slower, with device memory lower than it should be."""
    fine, spilling = launch().wait_ready(), launch("spill:900").wait_ready()
    speeds = [s.complete([65] * 300, 20)["timings"]["predicted_per_second"]
              for s in (fine, spilling)]  # fmt: skip
    used = [server.fake.memory()["CUDA0"][2] for server in (fine, spilling)]

    assert speeds[1] < 0.8 * speeds[0]
    assert used[0] - used[1] == pytest.approx(900)
    assert not re.search(r" [WE] .*(memory|spill)", spilling.log())


def test_settings_are_changed_silently(launch):
    """Another context and ubatch are applied than were asked for."""
    context = launch("context-reduced:1024").wait_ready()
    ubatch = launch("ubatch-reduced:128").wait_ready()

    assert context.get("/props")["default_generation_settings"]["n_ctx"] == 1024
    assert re.search(r"n_ubatch +=? *128", ubatch.log())


def test_a_device_can_be_missing(launch):
    """Without the device everything lies on the CPU, and nothing says so."""
    log = launch("device-missing:CUDA0").wait_ready().log()

    assert "CUDA0 model buffer" not in log


def test_an_unknown_flag_and_a_refused_context(launch):
    """A flag that the build lacks, and a combination that only the context refuses."""
    flag, combination = launch("reject-flag:-ncmoe"), launch("reject-line")

    assert (flag.ended(), combination.ended()) == (1, 1)
    assert flag.log() == "error: invalid argument: -ncmoe\n"
    assert "quantized V cache requires flash_attn to be enabled" in combination.log()


def test_a_port_can_be_in_use(launch):
    """As if another program had bound it between the choice and the start."""
    server = launch("port-in-use")

    assert server.ended() == 1
    assert "couldn't bind HTTP server socket" in server.log()


def test_loading_and_requests_can_hang(launch):
    """A server that never gets ready, and one that is ready and never answers."""
    loading, asking = launch("hang-load"), launch("hang-request").wait_ready()
    while loading.health() != 503:
        time.sleep(0.02)

    with pytest.raises(httpx.ReadTimeout):
        asking.client.post("/completion", json={"prompt": "x"}, timeout=0.3)
    assert (loading.health(), asking.health()) == (503, 200)


def test_a_server_can_ignore_term(launch):
    """Only KILL ends it, and its memory is free afterwards."""
    server = launch("ignore-term").wait_ready()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert server.process.poll() is None
    server.process.kill()
    server.ended()

    assert not server.fake.owners


def test_a_grandchild_can_keep_the_output_open(launch):
    """The server ends, a child of it lives on in its process group with our stderr."""
    server = launch("grandchild:30").wait_ready()
    assert server.stop() == 0
    os.killpg(server.process.pid, 0)  # raises if no process of the group is left
    os.killpg(server.process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("http-500", 500, "Compute error."),
        ("content-500", 500, "does not match the expected Content-only format"),
        ("bad-json", 200, '{"index":0,"content":"'),
        ("garbage", 200, "\\u0000"),
        ("wrong-text", 200, " wrong wrong"),
        ("empty-text", 200, '"content":""'),
    ],
)
def test_answers_can_be_nonsense(launch, fault: str, status: int, text: str):
    """Errors, broken JSON and text that is not what the model says."""
    answer = launch(fault).wait_ready().post("/completion", {"prompt": "x", "n_predict": 4})

    assert answer.status_code == status
    assert text in answer.text


def test_speeds_can_be_impossible(launch):
    """A million times too fast, or no time at all."""
    fast = launch("impossible-speed").wait_ready().complete([65] * 500, 8)["timings"]
    zero = launch("zero-timings").wait_ready().complete([65] * 500, 8)["timings"]

    assert fast["prompt_per_second"] > 1e6
    assert (zero["prompt_ms"], zero["prompt_per_second"]) == (0.0, 0.0)


def test_a_stream_can_break_off(launch):
    """The connection is reset after some tokens; the server lives on."""
    server = launch("drop:2").wait_ready()
    body = {"prompt": "x", "n_predict": 9, "stream": True, "ignore_eos": True}
    seen = []
    with pytest.raises(httpx.TransportError), server.client.stream(
        "POST", "/completion", json=body
    ) as answer:  # fmt: skip
        seen.extend(line for line in answer.iter_lines() if line)

    assert len(seen) <= 2
    assert server.health() == 200


def test_two_launches_of_one_candidate_can_differ(launch, tmp_path: Path, model):
    """A fault may strike certain launches only."""
    fake = FakeMachine(tmp_path / "again", machine_of("CUDA"))
    path = fake.write_model(model)
    fake.fail("speed", 8, launches=[2])
    speeds = []
    for number in range(3):
        with RunningServer(fake.server, path, tmp_path / f"again-{number}", WORDS) as server:
            answer = server.wait_ready().complete([65] * 100, 9)
            speeds.append(answer["timings"]["predicted_per_second"])

    assert speeds[0] == pytest.approx(speeds[2])
    assert speeds[1] == pytest.approx(speeds[0] / 8, rel=0.01)


@pytest.mark.parametrize("backend", ["CUDA", "Vulkan"])
def test_a_device_can_be_lost(launch, backend: str):
    """A driver that gives up: CUDA aborts, Vulkan answers with an error."""
    server = launch("device-lost", backend)
    answer = prompt_fails(server)

    if backend == "CUDA":
        assert server.ended() == -signal.SIGABRT
        assert "an illegal memory access was encountered" in server.log()
    else:
        assert answer.status_code == 500
        assert "ggml_vulkan: device lost on Vulkan0" in server.log()


@pytest.mark.parametrize("fault", ["retry-pipeline", "retry-prefetch"])
def test_some_refusals_are_harmless(launch, fault: str):
    """The words of a failure stand in the log of a launch that answers."""
    server = launch(fault).wait_ready()

    assert server.complete([65] * 500, 4)["tokens_predicted"] == 4
    assert "cudaMalloc failed: out of memory" in server.log()
    assert server.stop() == 0


def test_the_end_can_be_different(launch):
    """Without a memory table, with another status, or slow."""
    without, status = launch("no-table").wait_ready(), launch("exit-status:3").wait_ready()

    assert (without.stop(), status.stop()) == (0, 3)
    assert "memory breakdown" not in without.log()
    assert "memory breakdown" in status.log()


def test_a_fault_can_wait_for_parameters():
    """It strikes where every condition on the parameters holds, and nowhere else."""
    fault = Fault("killed", launches=(1, 2), when={"n_cpu_moe": ["<", 10]})

    assert fault.strikes(1, {"n_cpu_moe": 9})
    assert not fault.strikes(3, {"n_cpu_moe": 9})
    assert not fault.strikes(1, {"n_cpu_moe": 10})
    assert not fault.strikes(1, {})
