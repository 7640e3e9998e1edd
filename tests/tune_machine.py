"""Simulated machines for whole tunes: real fake servers, models that do not fit, small spaces."""

from __future__ import annotations

from pathlib import Path

from fakes.machine import Device, Host, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

# 12 layers with experts of 216 MiB each.
MODEL = build_model(
    ModelShape(layers=12, experts=64, used=4, embd=2048, ff=1024, heads=8, kv_heads=2,
               head_dim=128, vocab=2048, context=32768)
)  # fmt: skip
HOST = Host(ram_mib=16000, other_mib=1000)

# One layout and few values, so that a whole tune takes some seconds.
SPACE = """\
layouts: [{layout}]
parameters:
  ubatch:
    values: [512, 256]
  cache_type:
    sets: [cache_type_k, cache_type_v]
    values: [q8_0, f16]
  flash_attn:
    values: ["on"]
"""
WORKLOAD = """\
name: brief
context: 2048
parallel: {parallel}
requests:
  - {{prompt_tokens: 384, predicted_tokens: 33}}
"""


def card(index: int, total_mib: float) -> Device:
    """A card of that size."""
    return Device(f"CUDA{index}", "Fake Card", total_mib=total_mib)


class TuneMachine(FakeMachine):
    """A machine with a model, a small space, a short workload and counters for its memory."""

    def __init__(self, folder: Path, *sizes_mib: float, **options: object) -> None:
        devices = tuple(card(index, size) for index, size in enumerate(sizes_mib))
        machine = Machine(f"{len(sizes_mib)}-cards", devices, HOST).without_noise()
        super().__init__(folder, machine, **options)  # type: ignore[arg-type]
        self.model = self.write_model(MODEL)
        self.space = self.folder / "small.yaml"
        self.space.write_text(SPACE.format(layout="single" if len(devices) == 1 else "balanced"))
        self.workload = self.write_workload()

    def write_workload(self, *, parallel: int = 1, more: str = "") -> Path:
        """A workload of one short request."""
        path = self.folder / "brief.yaml"
        path.write_text(WORKLOAD.format(parallel=parallel) + more)
        return path

    def words(self, study: Path | str | None = "study", **changed: object) -> list[str]:
        """The words of a short tune of this machine; None leaves an option out."""
        options: dict[str, object] = {
            "runtime": self.server,
            "dialect": "llama_server",  # `self.dialect` also reports the memory of devices
            "space": self.space,
            "workload": self.workload,
            "budget": "60s",
            "max-launches": 4,
            "study": study,
            **changed,
        }
        words = [word for name, value in options.items() if value is not None
                for word in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
        return ["tune", str(self.model), *words]
