"""Invented machines differ widely, and every one of them has something to find."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.gguf_header import read_model, write_model
from fakes.machine import Machine
from fakes.physics import Simulation
from fakes.random_machine import Case, random_case, random_cases, random_machine
from gguf import GGUFReader

CASES = random_cases(36)
IDS = [case.machine.name for case in CASES]


def candidate(case: Case, layers: int) -> dict:
    """Equal slices, and this many host expert layers from the first on."""
    count = len(case.machine.devices)
    share, rest = divmod(case.model.units, count)
    split = ",".join(str(share + (i >= count - rest)) for i in range(count))
    return {"context": case.context, "parallel": 1, "batch": 2048, "ubatch": 512,
            "n_gpu_layers": case.model.units, "tensor_split": split, "n_cpu_moe": layers,
            "cache_type_k": "q8_0", "cache_type_v": "q8_0", "load_mode": "mmap"}  # fmt: skip


def test_machines_differ_widely():
    """Devices, links, policies, noise and oddities spread over what people own."""
    devices = [device for case in CASES for device in case.machine.devices]
    links = [device.link_gb_s for device in devices]
    noise = [case.machine.noise.launch_decode for case in CASES]

    assert {len(case.machine.devices) for case in CASES} == {1, 2, 3, 4}
    assert {case.machine.policy for case in CASES} == {"hard", "spill", "unified"}
    assert min(links) < 4
    assert max(links) > 40
    assert min(noise) < 0.01
    assert max(noise) > 0.1
    assert sum(bool(case.machine.effects) for case in CASES) >= len(CASES) / 3


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_each_machine_has_settings_that_run_and_settings_that_do_not(case: Case):
    """All experts on the host run; fewer help or fail; the runtime's own fit never fails."""
    simulation = Simulation(case.machine, case.model)
    all_hosted = simulation.truth(candidate(case, case.model.n_layer), case.requests)
    none_hosted = simulation.truth(candidate(case, 0), case.requests)
    fitted = simulation.truth({"context": case.context, "parallel": 1}, case.requests, fit=True)

    assert all_hosted.is_completed, all_hosted.failure
    assert all_hosted.spilled_mib == 0
    assert fitted.failure is None or fitted.failure.stage in ("prompt", "generate")
    if not case.machine.is_unified:
        assert none_hosted.failure or none_hosted.spilled_mib > 300


def test_the_same_seed_gives_the_same_machine():
    """Machines, models and requests are functions of the seed, and survive JSON."""
    assert random_machine(7) == random_machine(7) != random_machine(8)
    assert random_case(7).model.tensors == random_case(7).model.tensors
    for case in CASES:
        assert Machine.from_json(case.machine.to_json()) == case.machine


def test_requested_effects_are_drawn():
    """Policy, number of devices, oddities and prefetch can be fixed."""
    for seed in range(12):
        assert random_machine(seed, spill=True, unified=False).policy == "spill"
        assert random_machine(seed, unified=True).is_unified
        assert len(random_machine(seed, devices=3).devices) == 3
        assert not random_machine(seed, odd=False, spill=False, unified=False).effects
        assert random_machine(seed, odd=True, unified=False).effects
        assert random_machine(seed, unified=False, prefetch="env").runtime.prefetch == "env"


@pytest.mark.parametrize("case", CASES[:6], ids=IDS[:6])
def test_a_written_header_is_read_as_it_was(case: Case, tmp_path: Path):
    """Tensors and sizes of a written model are the same to us and to the gguf package."""
    path = tmp_path / "model.gguf"
    write_model(str(path), case.model)
    ours = read_model(str(path))
    theirs = GGUFReader(path)

    assert ours.tensors == case.model.tensors
    assert (ours.blocks, ours.n_vocab) == (case.model.blocks, case.model.n_vocab)
    assert [tensor.n_bytes for tensor in theirs.tensors] == [t.nbytes for t in ours.tensors]
