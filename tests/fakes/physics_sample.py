"""One and two cards of a simulated machine, and what its physics truly says of a launch."""

from __future__ import annotations

from dataclasses import replace

from fakes.machine import Device, Host, Machine, Quirks, RuntimeTraits
from fakes.physics import Run, Simulation
from fakes.synthetic_model import ModelShape, build_model

MODEL = build_model(
    ModelShape(layers=40, experts=256, used=8, embd=2048, ff=512, heads=16, kv_heads=2,
               head_dim=256, vocab=32768, rest_type="q4_K", output_type="q8_0")
)  # fmt: skip
CARD = Device("CUDA0", total_mib=12288, context_mib=500, reserve_mib=0)
HOST = Host(ram_mib=64000)
ONE = Machine("one", (CARD,), HOST).without_noise()
TWO = Machine(
    "two", (CARD, replace(CARD, name="CUDA1", link_gb_s=6.0)), HOST
).without_noise()  # fmt: skip
BASE = {"context": 16384, "parallel": 1, "batch": 4096, "ubatch": 2048, "load_mode": "none",
        "flash_attn": "on"}  # fmt: skip
REQUESTS = [(8192, 64)]


def truth(machine: Machine, requests=REQUESTS, **params) -> Run:
    """A noise-free launch of the usual settings."""
    return Simulation(machine, MODEL).truth({**BASE, **params}, requests)


def prefetching(**quirks) -> Machine:
    """The machine with a runtime that prefetches."""
    return replace(
        ONE, runtime=RuntimeTraits(prefetch="slots"), quirks=Quirks(**quirks)
    )  # fmt: skip


def cached(**fields) -> Machine:
    """The machine with a runtime that caches experts, and a card of these fields."""
    card = replace(CARD, **fields)
    return replace(ONE, devices=(card,), runtime=RuntimeTraits(has_moe_cache=True))
