"""Layouts on the real llama.cpp with remote devices: the runtime places them as planned."""

from __future__ import annotations

import random
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from real_llama_cpp import clean_environment, rpc_device, server_log

from autofit.model.placement.layout import SINGLE, Layout, plan_layout
from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.model.sizes.tensor_placement import HOST, place_tensors
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device

pytestmark = pytest.mark.runtime

FLAGS = {
    "devices": "-dev",
    "n_gpu_layers": "-ngl",
    "tensor_split": "-ts",
    "override_tensor": "-ot",
    "n_cpu_moe": "-ncmoe",
    "n_cpu_ffn": "-ncffn",
    "context": "-c",
    "batch": "-b",
    "ubatch": "-ub",
    "flash_attn": "-fa",
}
SPECS = {
    "moe": SynthSpec(layers=14, experts=32, embd=512, ff=512, vocab=4000, header_only=True),
    "large": SynthSpec(
        layers=9, experts=128, used=8, embd=2048, ff=1536, vocab=4000, header_only=True
    ),
    "dense": SynthSpec(layers=12, experts=0, used=0, embd=1024, ff=8192, header_only=True),
}
BASE = Candidate({"context": 4096, "batch": 2048, "ubatch": 512, "flash_attn": "on"})
_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)
_ASSIGNED = re.compile(r"layer +(\d+) assigned to device (\w+)")
_OVERRIDDEN = re.compile(r"tensor (\S+) \(.*buffer type overridden to CPU")
_BUFFER = re.compile(r"RPC\d+\[127\.0\.0\.1:(\d+)\] (\w+) buffer size = +([\d.]+) MiB")


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, ModelInventory]:
    """Return header-only models with small expert layers, large ones, and none."""
    folder = tmp_path_factory.mktemp("models")
    for name, spec in SPECS.items():
        write_model(spec, folder / f"{name}.gguf")
    return {name: read_inventory(folder / f"{name}.gguf") for name in SPECS}


@pytest.fixture
def addresses(llama_cpp) -> list[str]:
    """Yield three remote devices of this machine."""
    with ExitStack() as stack:
        yield [stack.enter_context(rpc_device(llama_cpp)) for _ in range(3)]


def machine(addresses: list[str], usable_mib: list[float]) -> tuple[Device, ...]:
    """Return the remote devices with the runtime's names and a limit of memory."""
    return tuple(
        Device(f"RPC{index}", address, mib, mib)
        for index, (address, mib) in enumerate(zip(addresses, usable_mib, strict=True))
    )


def arguments(candidate: Candidate, addresses: list[str]) -> list[str]:
    """Return the command line of a candidate, in the order in which flags act."""
    words = ["--rpc", ",".join(addresses)]
    for name, value in candidate.params.items():
        words += [FLAGS[name], str(value)]
    return words


def random_layout(
    dice: random.Random, model: ModelInventory, addresses: list[str]
) -> tuple[Layout, tuple[Device, ...]]:
    """Return a layout on devices with memory for a third of the model up to all of it."""
    size = sum(block.total_bytes for block in model.blocks) / (1 << 20)
    usable = [dice.uniform(0.3, 1.1) * size / len(addresses) + 80 for _ in addresses]
    available = machine(addresses, usable)
    order = [device.name for device in available]
    dice.shuffle(order)
    some = ",".join(order[: dice.randint(2, len(order))])
    rules = ["balanced", "capacity", "first_device"]
    names = [*rules, *(f"{rule}:{some}" for rule in rules), f"{SINGLE}{order[0]}"]
    count = dice.choice([None, None, dice.randint(0, model.block_count)])
    return plan_layout(model, BASE, available, dice.choice(names), count), available


def planned_by_runtime(
    llama_cpp: Path, model: ModelInventory, words: list[str]
) -> subprocess.CompletedProcess[str]:
    """Return the rows and the log that the runtime's planner prints.

    It runs again if its connection failed or the end of its log is missing, which it
    writes in a separate thread.
    """
    argv = [str(llama_cpp / "llama-fit-params"), *words, "-m", str(model.path)]
    argv += ["--fit-print", "on", "-lv", "5", "--no-repack"]
    for _ in range(3):
        done = subprocess.run(
            argv, capture_output=True, text=True, env=clean_environment(), timeout=20, check=False
        )
        if done.returncode == 0 and "sched copies" in done.stderr:
            break
    assert done.returncode == 0, (argv, done.stderr[-500:])
    return done


def assert_runtime_agrees(
    llama_cpp: Path, model: ModelInventory, layout: Layout, available: tuple[Device, ...]
) -> None:
    """Assert that the runtime reports the planned place of each layer, tensor and device."""
    candidate = layout.candidate(BASE)
    done = planned_by_runtime(
        llama_cpp, model, arguments(candidate, [d.description for d in available])
    )
    placed = place_tensors(model, candidate, available)
    names = {HOST: "CPU"} | {i: device.name for i, device in enumerate(placed.devices)}
    assigned = dict(_ASSIGNED.findall(done.stderr))
    assert [assigned[str(unit)] for unit in range(model.units)] == [
        names[device] for device in placed.units
    ]
    hosted = {
        int(name.split(".")[1]) for name in _OVERRIDDEN.findall(done.stderr) if "blk." in name
    }
    planned = {block for piece in layout.slices for block in piece.host_experts}
    assert hosted == planned
    for piece in layout.slices:
        for block, part in piece.partial.items():
            moved = {n for n in _OVERRIDDEN.findall(done.stderr) if n.startswith(f"blk.{block}.")}
            assert all(("down" in name) == (part == "down") for name in moved)
    is_pipelined = "pipeline parallelism enabled" in done.stderr
    assert is_pipelined == layout.estimate.is_pipelined
    rows = {name: (int(m), int(c)) for name, m, c, _ in _ROW.findall(done.stdout)}
    for row in layout.estimate.devices:
        reported = rows[row.name]
        assert reported[0] == pytest.approx(row.weights_mib, rel=0.001, abs=1.01)
        assert reported[1] == pytest.approx(row.kv_mib, rel=0.001, abs=1.01)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [2, 3])
def test_random_layouts_are_placed_as_planned(count, seed, llama_cpp, models, addresses):
    """Layers, host experts, weights, cache and pipelining match the plan for ten layouts."""
    dice = random.Random(100 * count + seed)
    for _ in range(10):
        model = models[dice.choice(list(models))]
        layout, available = random_layout(dice, model, addresses[:count])
        assert_runtime_agrees(llama_cpp, model, layout, available)


def test_random_layouts_have_every_kind(models):
    """The random layouts include partial layers, overrides, counts and rules without effect."""
    seen = set()
    addresses = ["10.0.0.1:50052", "10.0.0.2:50052", "10.0.0.3:50052"]
    for count in (2, 3):
        for seed in range(3):
            dice = random.Random(100 * count + seed)
            for _ in range(10):
                model = models[dice.choice(list(models))]
                layout, _ = random_layout(dice, model, addresses[:count])
                seen |= set(layout.params)
                seen |= {"partial" for piece in layout.slices if piece.partial}
                seen |= {"pipelined" if layout.estimate.is_pipelined else "plain"}
    assert {"override_tensor", "n_cpu_moe", "n_cpu_ffn", "tensor_split"} <= seen
    assert {"partial", "pipelined", "plain"} <= seen


def estimated_by_port(estimate: MemoryEstimate, available: tuple[Device, ...]) -> dict:
    """Return the memory of each device, by its port and kind of buffer."""
    ports = {device.name: device.description.rsplit(":", 1)[1] for device in available}
    found = {}
    for row in estimate.devices:
        found[ports[row.name], "model"] = row.weights_mib
        found[ports[row.name], "KV"] = row.kv_mib
        found[ports[row.name], "compute"] = row.compute_mib
    return found


@pytest.mark.parametrize(
    ("name", "hosted", "count"),
    [("balanced", 4, 2), ("capacity", 3, 3), ("first_device", 5, 2), ("balanced", 0, 3)],
)
def test_a_servers_buffers_are_as_planned(name, hosted, count, llama_cpp, tmp_path):
    """A server's weights, cache and compute buffer on each device match the estimate."""
    path = tmp_path / "served.gguf"
    write_model(SynthSpec(layers=8, experts=32, used=4, embd=512, ff=256, vocab=8192), path)
    model = read_inventory(path)
    base = BASE.with_params(parallel=1)
    with ExitStack() as stack:
        served = [stack.enter_context(rpc_device(llama_cpp)) for _ in range(count)]
        available = machine(served, [900.0] * count)
        layout = plan_layout(model, base, available, name, hosted)
        candidate = layout.candidate(base)
        words = arguments(candidate.with_params(parallel=None), served)
        words += ["-np", "1", "-fit", "off", "-cram", "0", "-ctxcp", "0"]
        log = server_log(llama_cpp, path, tmp_path / "server.log", *words)
    reported: dict[tuple[str, str], float] = {}
    for port, kind, mib in _BUFFER.findall(log):
        reported[port, kind] = reported.get((port, kind), 0.0) + float(mib)
    assert estimate_memory(model, candidate, available) == layout.estimate
    for (port, kind), mib in estimated_by_port(layout.estimate, available).items():
        if kind == "compute":
            assert mib == pytest.approx(reported[port, kind], rel=0.15, abs=8)
        else:
            assert mib == pytest.approx(reported[port, kind], rel=0.001, abs=0.02)
