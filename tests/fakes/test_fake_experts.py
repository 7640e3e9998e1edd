"""The fake llama-server with prefetch slots and expert caches: what it takes, and what it logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes.machine import RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.running import RunningServer

WORDS = ["-dev", "CUDA0", "-ncmoe", "20", "-c", "2048", "-np", "1", "-fit", "off", "-lm", "none",
         "-lv", "4"]  # fmt: skip
SLOT_MIB = 36.0  # 64 experts of 1024 x 1024 weights in q4_K
Serve = Callable[..., RunningServer]


@pytest.fixture
def serve(fake: FakeMachine, model_file: Path, tmp_path: Path) -> Iterator[Serve]:
    """Starts the server of a build with these traits; all are ended at the end."""
    running: list[RunningServer] = []

    def start(*words: str, env: dict[str, str] | None = None, **traits) -> RunningServer:
        fake.change(runtime=RuntimeTraits(**traits))
        log = tmp_path / f"server-{len(running)}.log"
        running.append(RunningServer(fake.server, model_file, log, [*WORDS, *words], env=env))
        return running[-1]

    yield start
    for server in running:
        server.__exit__()


def test_slots_come_with_the_first_large_batch(serve: Serve, fake: FakeMachine):
    """A variable turns them on; loading and a short prompt take nothing for them."""
    used = {}
    for slots in ("0", "3"):
        env = {"GGML_SCHED_PREFETCH_EXPERTS": slots}
        server = serve(env=env, prefetch="env").wait_ready()
        seen = [fake.memory()["CUDA0"][2]]
        for prompt in ([65] * 16, [65] * 500):
            server.complete(prompt, 4)
            seen.append(fake.memory()["CUDA0"][2])
        used[slots] = seen
        assert server.stop() == 0

    grown = [on - off for on, off in zip(used["3"], used["0"], strict=True)]
    assert grown == pytest.approx([0, 0, 3 * SLOT_MIB])


def test_refused_slots_are_one_line_in_the_log(serve: Serve, fake: FakeMachine):
    """The server goes on with fewer, and says nothing but the backend's line."""
    env = {"GGML_SCHED_PREFETCH_EXPERTS": "8"}
    server = serve(env=env, prefetch="env").wait_ready()
    fake.hold("CUDA0", fake.memory()["CUDA0"][1] - 250)
    for _ in range(2):
        server.complete([65] * 500, 4)
    left = fake.memory()["CUDA0"][1]

    assert server.stop() == 0
    assert left < SLOT_MIB
    assert server.log().count("cudaMalloc failed: out of memory") == 1
    assert "allocating 36.00 MiB on device 0" in server.log()


def test_some_builds_die_of_refused_slots(serve: Serve, fake: FakeMachine):
    """The line that others go on after is followed by an abort."""
    words = ["--prefetch-experts-slots", "8"]
    server = serve(*words, prefetch="slots", prefetch_dies=True).wait_ready()
    fake.hold("CUDA0", fake.memory()["CUDA0"][1] - 250)
    with pytest.raises(Exception, match=r"disconnected|reset"):
        server.complete([65] * 500, 4)

    assert server.ended() == -6
    assert "GGML_ASSERT(slot->buffer != NULL) failed" in server.log()


def test_an_expert_cache_is_logged(serve: Serve, fake: FakeMachine):
    """The log has its size, the layers that it leaves out, and its hits at the end."""
    server = serve("--moe-cache-mib", "300", has_moe_cache=True).wait_ready()
    server.complete([65] * 500, 9)
    small = serve("--moe-cache-mib", "50", has_moe_cache=True).wait_ready()

    assert (server.stop(), small.stop()) == (0, 0)
    assert "CUDA0 MoE cache size =   298.69 MiB for 2160.00 MiB of host experts" in server.log()
    assert "20 layers, q4_K:   177 slots (13.8%)" in server.log()
    assert "hit rate = " in server.log()
    assert "MoE cache budget is too small for 13 layers, they are not cached" in small.log()


@pytest.mark.parametrize(
    ("words", "said", "status"),
    [
        (["--moe-cache-mib", "1"], "MoE cache is too small to hold the experts of one token", 1),
        (["--moe-cache-mib", "99", "--no-op-offload"], "MoE cache requires a GPU backend", 1),
        (["--moe-cache-mib", "99", "-ncmoe", "0", "-ngl", "4"], "MoE cache is disabled", 0),
    ],
)
def test_an_expert_cache_that_cannot_be(serve: Serve, words: list[str], said: str, status: int):
    """Refused with the context, or warned of and left out."""
    server = serve(*words, has_moe_cache=True)
    if not status:
        server.wait_ready().stop()

    assert server.ended() == status
    assert said in server.log()
