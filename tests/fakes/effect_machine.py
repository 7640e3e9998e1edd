"""Invents machines that each have one effect that decides which settings are best.

The seeds go through the kinds in turn, so that every kind is equally frequent. The same seed
gives the same case.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from fakes.machine import Device, Machine
from fakes.random_machine import Case, random_case, random_machine

# CUDA's compute capability of cards without matrix cores, and of all others here.
_OLD_CAPABILITY, _CAPABILITY = "6.1", "8.6"


def _plain(_: random.Random, machine: Machine) -> Machine:
    return machine


def _weak_device(rng: random.Random, machine: Machine) -> Machine:
    """One device, rarely the first, is far slower than the others, and smaller."""
    weak = rng.choice((len(machine.devices) - 1, len(machine.devices) - 1, 0))

    def weaken(device: Device) -> Device:
        return replace(
            device,
            total_mib=max(6144.0, device.total_mib * rng.choice((0.5, 0.75))),
            memory_gb_s=device.memory_gb_s * rng.uniform(0.2, 0.45),
            prompt_tflops=device.prompt_tflops * rng.uniform(0.12, 0.4),
            layer_us=device.layer_us * rng.uniform(1.0, 2.0),
            link_gb_s=device.link_gb_s * rng.choice((0.25, 0.5, 1.0)),
        )

    devices = [weaken(one) if at == weak else one for at, one in enumerate(machine.devices)]
    return replace(machine, devices=tuple(devices))


def _slow_first_link(rng: random.Random, machine: Machine) -> Machine:
    """The first device, which uploads all host experts, has the slowest link."""
    first, *others = machine.devices
    slow = replace(first, link_gb_s=rng.uniform(1.4, 3.4))
    fast = [replace(one, link_gb_s=rng.uniform(11.0, 26.0)) for one in others]
    return replace(machine, devices=(slow, *fast))


def _saturating_threads(rng: random.Random, machine: Machine) -> Machine:
    """Half of the cores use the whole memory bandwidth; more threads compete for it."""
    cores = rng.choice((8, 12, 16, 24, 32))
    host = replace(
        machine.host,
        cores=cores,
        logical=cores * 2,
        memory_gb_s=rng.uniform(35.0, 90.0),
        gflops_per_core=rng.uniform(40.0, 80.0),
        saturating_cores=cores * rng.uniform(0.08, 0.16),
        crowding_cores=cores // 2,
        crowded_share=rng.uniform(0.72, 0.93),
    )
    return replace(machine, host=host)


def _hybrid_cores(rng: random.Random, machine: Machine) -> Machine:
    """Efficiency cores are among the cores, and every thread waits for the slowest."""
    performance = rng.choice((4, 6, 8))
    efficiency = rng.choice((4, 8, 8, 16))
    host = replace(
        machine.host,
        cores=performance + efficiency,
        logical=2 * performance + efficiency,
        efficiency_cores=efficiency,
        efficiency_share=rng.uniform(0.35, 0.6),
        gflops_per_core=rng.uniform(40.0, 80.0),
        saturating_cores=performance * rng.uniform(0.25, 0.5),
        crowding_cores=performance,
        crowded_share=rng.uniform(0.7, 0.95),
    )
    return replace(machine, host=host)


def _two_sockets(rng: random.Random, machine: Machine) -> Machine:
    """The memory of two sockets is fast only where threads read their own socket's."""
    cores = rng.choice((16, 32, 48, 64))
    unplaced_share = rng.uniform(0.3, 0.7)
    host = replace(
        machine.host,
        cores=cores,
        logical=cores * 2,
        memory_gb_s=rng.uniform(120.0, 400.0),
        saturating_cores=cores * rng.uniform(0.15, 0.35),
        sockets=2,
        gflops_per_core=rng.uniform(30.0, 60.0),
        unplaced_share=unplaced_share,
        distributed_share=min(0.97, unplaced_share * rng.uniform(1.05, 1.7)),
    )
    return replace(machine, host=host)


def _fast_cpu(rng: random.Random, machine: Machine) -> Machine:
    """A processor with many memory channels computes batches sooner than the link uploads."""
    cores = rng.choice((32, 48, 64))
    host = replace(
        machine.host,
        cores=cores,
        logical=cores * 2,
        memory_gb_s=rng.uniform(220.0, 480.0),
        gflops_per_core=rng.uniform(20.0, 45.0),
        saturating_cores=cores * rng.uniform(0.15, 0.35),
    )
    devices = [replace(one, link_gb_s=rng.uniform(1.8, 4.0)) for one in machine.devices]
    return replace(machine, devices=tuple(devices), host=host)


def _old_cards(rng: random.Random, machine: Machine) -> Machine:
    """Cards without matrix cores compute attention faster without flash attention."""
    share, tflops = rng.uniform(0.006, 0.02), rng.uniform(3.0, 8.0)
    devices = [
        replace(
            one,
            flash_share=share,
            prompt_tflops=tflops,
            memory_gb_s=min(one.memory_gb_s, 350.0),
            description="NVIDIA Tesla P40" if one.backend == "CUDA" else "AMD Radeon Pro V340",
            capability=_OLD_CAPABILITY if one.backend == "CUDA" else "",
            kv_loss=max(1.1, one.kv_loss),
        )
        for one in machine.devices
    ]
    return replace(machine, devices=tuple(devices))


def _whole_model(rng: random.Random, machine: Machine) -> Machine:
    """The model lies on equal devices as a whole, and they exchange data quickly."""
    link, hop = rng.uniform(12.0, 50.0), rng.uniform(3.0, 12.0)
    devices = [replace(one, link_gb_s=link, hop_us=hop) for one in machine.devices]
    return replace(machine, devices=tuple(devices))


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of machine: its effect, its numbers of devices, and how large its model is."""

    effect: Callable[[random.Random, Machine], Machine]
    devices: tuple[int, ...]
    model: tuple[float, float] = (1.15, 2.6)


# The effects, each on one device or on several. The first two have none.
_KINDS = (
    _Kind(_plain, (1,)),
    _Kind(_plain, (2, 2, 3, 4)),
    _Kind(_weak_device, (2, 2, 3)),
    _Kind(_slow_first_link, (2, 2, 3)),
    _Kind(_saturating_threads, (1,)),
    _Kind(_saturating_threads, (2,)),
    _Kind(_hybrid_cores, (1,)),
    _Kind(_two_sockets, (1, 2)),
    _Kind(_fast_cpu, (1,)),
    _Kind(_fast_cpu, (2,)),
    _Kind(_old_cards, (1, 2)),
    _Kind(_whole_model, (2, 2, 4), (0.45, 0.7)),
)
KIND_COUNT = len(_KINDS)


def effect_case(seed: int) -> Case:
    """The case of a seed; `Case.effects` names what decides there."""
    kind = _KINDS[seed % KIND_COUNT]
    rng = random.Random(f"effect {seed}")
    machine = random_machine(
        seed,
        spill=False,
        unified=False,
        devices=rng.choice(kind.devices),
        odd=False,
        prefetch="",
        has_mixed_devices=False,
    )
    devices = [
        replace(one, capability=_CAPABILITY if one.backend == "CUDA" else "")
        for one in machine.devices
    ]
    machine = replace(machine, name=f"effect-{seed}", devices=tuple(devices))
    machine = kind.effect(rng, machine)
    name = kind.effect.__name__.strip("_")
    case = random_case(seed, machine=machine, model_share=kind.model)
    return replace(case, effects=(name,) if kind.effect is not _plain else ())


def effect_cases(count: int = KIND_COUNT, first_seed: int = 0) -> list[Case]:
    """Cases by consecutive seeds."""
    return [effect_case(seed) for seed in range(first_seed, first_seed + count)]
