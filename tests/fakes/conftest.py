"""A simulated machine with two cards, and a model that is too large for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.machine import Device, Host, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.model import Model
from fakes.one_card import ONE_CARD, Start
from fakes.running import RunningServer
from fakes.synthetic_model import ModelShape, build_model

SHAPE = ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, heads=8, kv_heads=2,
                   head_dim=128, vocab=2048, context=32768)  # fmt: skip
CARD = Device("CUDA0", "NVIDIA GeForce RTX 3060", total_mib=2400, context_mib=200, reserve_mib=0)
SECOND = Device("CUDA1", "NVIDIA GeForce RTX 3060", total_mib=2000, context_mib=200, reserve_mib=0)


@pytest.fixture(scope="session")
def model() -> Model:
    """24 layers, 108 MiB of experts each."""
    return build_model(SHAPE)


@pytest.fixture
def machine() -> Machine:
    """Two cards, one a little smaller."""
    return Machine("two", (CARD, SECOND), Host(ram_mib=16000, other_mib=1000)).without_noise()


@pytest.fixture
def fake(tmp_path: Path, machine: Machine) -> FakeMachine:
    """The machine with its programs."""
    return FakeMachine(tmp_path, machine)


@pytest.fixture
def model_file(fake: FakeMachine, model: Model) -> Path:
    """The model on that machine."""
    return fake.write_model(model)


@pytest.fixture
def start(fake: FakeMachine, model_file: Path, tmp_path: Path) -> Iterator[Start]:
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
