"""Invents machines whose physics differ widely; the same seed gives the same machine."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

from fakes.machine import Device, Host, Machine, Noise, Quirks, RuntimeTraits
from fakes.model import Model
from fakes.physics import Simulation
from fakes.synthetic_model import random_model

# (description, VRAM GiB, memory GB/s, prompt Tflop/s, half ubatch) of cards people own.
_CARDS = (
    ("GTX 1070", 8, 220, 3.0, 90), ("RTX 2070", 8, 400, 7.0, 120),
    ("RTX 3060", 12, 310, 11.0, 160), ("RTX 4060 Ti", 16, 250, 19.0, 220),
    ("RTX 3090", 24, 800, 30.0, 260), ("RTX 5080", 16, 850, 52.0, 420),
    ("RTX 4090", 24, 900, 70.0, 500), ("MI25", 16, 380, 4.0, 700),
    ("MI50", 32, 850, 9.0, 500), ("RX 6700 XT", 12, 330, 6.5, 140),
    ("RX 9070 XT", 16, 560, 26.0, 300), ("Arc A770", 16, 420, 9.0, 380),
    ("Tesla T4", 15, 250, 9.0, 130), ("RTX PRO 4000", 24, 600, 45.0, 480),
)  # fmt: skip
# What host to device copies reach, GB/s: PCIe 3 x4, 3 x8, 3 x16, 4 x16, 5 x16.
_LINKS = (3.2, 6.4, 12.6, 24.5, 50.0)
_MAKERS = {"CUDA": "NVIDIA GeForce", "ROCm": "AMD Radeon", "Vulkan": "AMD Radeon",
           "SYCL": "Intel(R)"}  # fmt: skip


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _device(rng: random.Random, backend: Any, index: int, card: Any, link: float) -> Device:
    description, gib, memory, tflops, half = card
    has_screen = index == 0 and rng.random() < 0.5
    return Device(
        name=f"{backend}{index}",
        description=f"{_MAKERS[backend]} {description}",
        backend=backend,
        total_mib=gib * 1024.0,
        other_mib=round(rng.uniform(250, 1400)) if has_screen else round(rng.uniform(0, 60)),
        reserve_mib=round(rng.uniform(20, 160)),
        context_mib=round(rng.uniform(180, 620)),
        link_gb_s=link * rng.uniform(0.85, 1.0),
        pageable_share=rng.uniform(0.3, 0.8),
        readback_us=rng.uniform(20, 90),
        hop_us=rng.uniform(20, 120),
        prompt_tflops=tflops * rng.uniform(0.6, 1.1),
        half_ubatch=half * rng.uniform(0.6, 1.6),
        expert_prompt_share=rng.uniform(0.3, 0.9),
        expert_half_rows=rng.uniform(3, 40),
        memory_gb_s=memory * rng.uniform(0.8, 1.0),
        expert_decode_share=rng.uniform(0.35, 0.85),
        layer_us=rng.uniform(12, 70),
        pool_mib=round(rng.uniform(40, 260)),
        pool_kib_per_token=rng.uniform(2, 48),
        pipeline_growth=rng.uniform(0.6, 2.6),
        kv_loss=rng.choice((1.0, 1.0, rng.uniform(1.05, 1.8))),
    )


def _host(rng: random.Random, vram_mib: float) -> Host:
    cores = rng.choice((4, 6, 8, 8, 12, 16, 24, 32, 64))
    has_siblings = rng.random() < 0.7
    bandwidth = rng.choice((20.0, 34.0, 42.0, 60.0, 85.0, 160.0, 300.0)) * rng.uniform(0.8, 1.0)
    ram = max(24576.0, vram_mib * rng.choice((2.5, 3.0, 4.0, 6.0)))
    return Host(
        cores=cores,
        logical=cores * 2 if has_siblings else cores,
        memory_gb_s=bandwidth,
        gflops_per_core=rng.uniform(12, 60),
        saturating_cores=max(1.5, cores * rng.uniform(0.15, 0.7)),
        beyond_cores_share=rng.uniform(0.55, 1.04),
        ram_mib=ram,
        other_mib=round(rng.uniform(1500, 6000)),
        pinned_mib=ram * (rng.uniform(0.3, 0.5) if rng.random() < 0.1 else 0.9),
        pinned_share=rng.uniform(0.4, 0.9) if rng.random() < 0.25 else 1.0,
        refuses=rng.random() < 0.5,
    )


def _noise(rng: random.Random) -> Noise:
    level = _log_uniform(rng, 0.01, 0.3)
    is_busy = rng.random() < 0.3
    return Noise(
        launch_prompt=level * rng.uniform(0.1, 0.5),
        launch_decode=level * rng.uniform(0.3, 0.9),
        within_prompt=level * rng.uniform(0.05, 0.3),
        within_decode=level * rng.uniform(0.1, 0.5),
        drift_share=level * rng.uniform(0.0, 0.6),
        drift_launches=rng.randint(5, 30),
        burst_probability=rng.uniform(0.02, 0.12) if is_busy else 0.0,
        burst_share=rng.uniform(0.3, 2.5) if is_busy else 0.0,
        first_prompt_share=rng.uniform(0.0, 0.3),
        first_prompt_s=rng.choice((0.0, 0.0, 0.2, 1.5)),
        edge_launch=rng.choice((0.0, 0.0, 0.4)),
    )


# Each effect as the fields it sets; drawn again for every machine.
def _ubatch_knee(rng: random.Random) -> dict[str, Any]:
    return {"ubatch_knee": rng.choice((512, 1024, 2048)), "knee_loss": rng.uniform(1.15, 1.9)}


def _ubatch_grain(rng: random.Random) -> dict[str, Any]:
    return {"ubatch_grain": rng.choice((768, 1024, 2048)), "grain_loss": rng.uniform(1.1, 1.5)}


def _numa(rng: random.Random, model_mib: float) -> dict[str, Any]:
    return {"numa_mib": model_mib * rng.uniform(0.2, 0.6), "numa_share": rng.uniform(0.3, 0.6)}


def _slow_kv(rng: random.Random) -> dict[str, Any]:
    kinds = rng.choice((("q4_0",), ("q8_0",), ("q8_0", "q4_0"), ("q5_1", "q5_0", "q4_1")))
    return {"slow_kv": {kind: rng.uniform(2.0, 9.0) for kind in kinds}}


def _edge(rng: random.Random) -> dict[str, Any]:
    return {"edge_mib": rng.uniform(80, 500), "edge_loss": rng.uniform(1.2, 4.0)}


def _graph_limit(rng: random.Random) -> dict[str, Any]:
    return {"graph_layers": rng.randint(4, 24), "graph_loss_us": rng.uniform(40, 250)}


def _ripple(rng: random.Random) -> dict[str, Any]:
    return {"ripple_layers": rng.randint(3, 9), "ripple_share": rng.uniform(0.04, 0.2)}


def _wide_kv(rng: random.Random) -> dict[str, Any]:
    return {"wide_kv_ms": rng.uniform(0.5, 6.0)}


def _throttle(rng: random.Random) -> dict[str, Any]:
    return {"throttle_layers": rng.randint(3, 16), "throttle_loss": rng.uniform(1.3, 3.0)}


def _cpu_cache(rng: random.Random) -> dict[str, Any]:
    return {"cached_mib": rng.uniform(16, 128)}


_EFFECTS = (
    _ubatch_knee, _ubatch_grain, _slow_kv, _edge, _graph_limit, _ripple, _wide_kv, _throttle,
    _cpu_cache,
)  # fmt: skip


def _quirks(rng: random.Random, vram_mib: float, count: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for effect in rng.sample(_EFFECTS, count):
        fields |= effect(rng)
    if count and rng.random() < 0.25:
        fields |= _numa(rng, vram_mib)
    return fields


def _hurting(rng: random.Random, devices: list[Device], fields: dict[str, Any]) -> list[Device]:
    """Every device beyond the first hangs on a bad link and costs more than it gives."""
    fields |= {
        "device_sync_ms": rng.uniform(4, 40),
        "device_token_ms": rng.uniform(2, 12),
        "shared_link": rng.random() < 0.5,
    }
    slow = {"link_gb_s": 0.8, "prompt_tflops": 2.0, "half_ubatch": 600.0, "memory_gb_s": 110.0}
    return [devices[0], *(replace(device, **slow) for device in devices[1:])]


def _unified(rng: random.Random, seed: int) -> Machine:
    ram = 1024.0 * rng.choice((32, 48, 64, 96, 128))
    is_apple = rng.random() < 0.5
    bandwidth = rng.choice((90.0, 210.0, 380.0, 520.0))
    device = Device(
        name="MTL0" if is_apple else "Vulkan0",
        description="Apple M4 Max" if is_apple else "AMD Radeon 890M Graphics (RADV GFX1150)",
        backend="Metal" if is_apple else "Vulkan",
        total_mib=ram * 0.75,
        context_mib=120.0,
        memory_gb_s=bandwidth,
        prompt_tflops=rng.uniform(3, 22),
        half_ubatch=rng.uniform(60, 300),
        expert_decode_share=rng.uniform(0.2, 0.8),
        readback_us=rng.uniform(10, 40),
        pool_mib=80.0,
    )
    host = replace(
        _host(rng, ram / 4), ram_mib=ram, other_mib=4000.0, memory_gb_s=bandwidth * 0.5,
        pinned_mib=ram,
    )  # fmt: skip
    return Machine(f"unified-{seed}", (device,), host, "unified", noise=_noise(rng))


def random_machine(
    seed: int,
    *,
    spill: bool | None = None,
    unified: bool | None = None,
    devices: int | None = None,
    odd: bool | None = None,
    prefetch: str | None = None,
    has_mixed_devices: bool | None = None,
) -> Machine:
    """A machine drawn by seed; arguments fix what would be drawn.

    `odd` asks for effects that a linear model of bytes and operations has no term for;
    left open, every other seed has some. Without `unified`, one seed in twelve is so.
    `prefetch` names how the runtime prefetches experts.
    """
    rng = random.Random(f"machine {seed}")
    is_unified = seed % 12 == 10 if unified is None else unified
    if is_unified and devices in (None, 1) and not spill:
        return _unified(rng, seed)
    backend = rng.choice(("CUDA", "CUDA", "CUDA", "Vulkan", "ROCm", "SYCL"))
    count = devices or rng.choice((1, 1, 1, 2, 2, 3, 4))
    is_mixed = rng.random() < 0.4 if has_mixed_devices is None else has_mixed_devices
    card, link = rng.choice(_CARDS), rng.choice(_LINKS)
    made = [
        _device(
            rng, backend, i,
            rng.choice(_CARDS) if is_mixed else card,
            rng.choice(_LINKS) if is_mixed else link,
        )
        for i in range(count)
    ]  # fmt: skip
    vram = sum(device.total_mib for device in made)
    is_odd = seed % 2 == 0 if odd is None else odd
    fields = _quirks(rng, vram, rng.randint(1, 3) if is_odd else 0)
    if count > 1 and is_odd and rng.random() < 0.6:
        made = _hurting(rng, made, fields)
    if is_odd and rng.random() < 0.25:
        share = rng.uniform(0.025, 0.09)
        made = [replace(device, expert_decode_share=share) for device in made]
    is_spilling = rng.random() < 0.2 if spill is None else spill
    if is_spilling:
        fields |= {
            "spill_touch": rng.uniform(0.15, 0.9),
            "free_spill_mib": rng.choice((0.0, 0.0, 150.0)),
        }
    fields["prefetch_link_share"] = rng.uniform(0.3, 0.6) if rng.random() < 0.4 else 1.0
    fields["mapped_decode_share"] = rng.uniform(0.75, 1.0)
    host = _host(rng, vram)
    if is_odd and rng.random() < 0.3:
        host = replace(host, collapse_threads=host.logical, collapse_share=rng.uniform(0.1, 0.4))
    slots = rng.choice(("", "slots", "env", "weights")) if prefetch is None else prefetch
    return Machine(
        name=f"machine-{seed}",
        devices=tuple(made),
        host=host,
        policy="spill" if is_spilling else "hard",
        quirks=Quirks(**fields),
        noise=_noise(rng),
        runtime=RuntimeTraits(
            prefetch=slots,  # type: ignore[arg-type]
            has_moe_cache=rng.random() < 0.3,
            moe_cache_locality=rng.uniform(0.25, 0.7),
            keeps_pipeline=rng.random() < 0.15,
            fit_params_share=rng.uniform(0.85, 1.15),
        ),
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A machine, a model that is too large for its devices, and what is asked of it."""

    seed: int
    machine: Machine
    model: Model
    context: int
    requests: tuple[tuple[int, int], ...]
    effects: tuple[str, ...] = ()  # those that decide here, of an `effect_case`


def usable_mib(machine: Machine) -> float:
    """Device memory that launches can have, all devices together."""
    return sum(d.total_mib - d.reserve_mib - d.other_mib - d.context_mib for d in machine.devices)


def random_case(
    seed: int,
    *,
    machine: Machine | None = None,
    model_share: tuple[float, float] = (1.15, 2.6),
    **fixed: Any,
) -> Case:
    """A random machine, or this one, with a model and requests that suit it."""
    machine = machine or random_machine(seed, **fixed)
    rng = random.Random(f"case {seed}")
    context = rng.choice((8192, 16384, 32768, 65536))
    prompt = int(context * _log_uniform(rng, 0.03, 0.6))
    vram = usable_mib(machine)
    if machine.is_unified:
        vram /= 3.0  # the model must still fit the machine's only memory
    least, most = model_share
    model = random_model(seed, vram, least=least, most=most)
    share = prompt / context
    while context > 4096 and not _holds(machine, model, context):
        context //= 2
    return Case(
        seed=seed,
        machine=machine,
        model=model,
        context=context,
        requests=((int(context * share), rng.choice((128, 256, 512, 1024))),),
    )


def _holds(machine: Machine, model: Model, context: int) -> bool:
    """Return whether the context leaves the smallest device some room for experts."""
    params = {"context": context, "parallel": 1, "n_cpu_moe": model.n_layer, "ubatch": 2048,
              "n_gpu_layers": model.units, "load_mode": "none"}  # fmt: skip
    run = Simulation(machine, model).truth(params, [(context - 64, 8)])
    return run.is_completed and all(
        device.free_mib > 0.1 * known.total_mib
        for device, known in zip(run.devices, machine.devices, strict=True)
    )


def random_cases(count: int = 30, first_seed: int = 0, **fixed: Any) -> list[Case]:
    """Cases by consecutive seeds."""
    return [random_case(seed, **fixed) for seed in range(first_seed, first_seed + count)]
