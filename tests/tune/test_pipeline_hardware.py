"""Whole tunes on fake servers whose hardware rewards one setting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from session.task_sample import runner, task
from tune.whole_tune import tune as run_tune
from tune_machine import TuneMachine

from autofit.machine.cpu import Cores
from autofit.search.space_file import read_space, read_workload
from autofit.session.relevant_space import relevant_space
from autofit.session.task import Task


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A function that tunes a machine with a space, and returns the result."""

    def run(machine: TuneMachine, space: str, of: Callable[[Task], Task], launches: int = 7):
        machine.space.write_text(space)
        workload = read_workload(str(machine.workload))
        about = of(task(machine.model, machine.server, workload, space=str(machine.space)))
        running = runner(about, tmp_path / "study")
        running.budget.max_launches = launches
        return run_tune(about, running)

    return run


FIXED = "layouts: [{layout}]\nparameters:\n  ubatch: {{values: [512]}}\n{more}"


def space(layout: str, more: str = '  flash_attn: {values: ["on"]}\n') -> str:
    """A space with one ubatch."""
    return FIXED.format(layout=layout, more=more)


def test_the_card_with_the_fast_link_comes_first(tune, tmp_path):
    """The first card in the list has a slow link, so the winner names the other one first."""
    links = (1.5, 24.0)
    machine = TuneMachine(tmp_path, 1700.0, 1600.0)
    machine.change(
        devices=tuple(
            replace(card, link_gb_s=link)
            for card, link in zip(machine.machine.devices, links, strict=True)
        )
    )

    def of(about: Task) -> Task:
        known = zip(about.devices, links, strict=True)
        devices = tuple(replace(device, link_gb_s=link) for device, link in known)
        return replace(about, devices=devices)

    result = tune(machine, space("first_device"), of)

    assert result["winner"]["params"]["devices"] == "CUDA1,CUDA0"
    assert result["winner"]["proven"]


def test_a_fast_processor_computes_what_a_slow_link_would_upload(tune, tmp_path):
    """The winner leaves large batches of host experts to the processor."""
    machine = TuneMachine(tmp_path, 1500.0)
    (card,) = machine.machine.devices
    host = replace(machine.machine.host, gflops_per_core=400.0, memory_gb_s=300.0, cores=32)
    machine.change(devices=(replace(card, link_gb_s=0.3),), host=host)

    def of(about: Task) -> Task:
        devices = tuple(replace(device, link_gb_s=0.3) for device in about.devices)
        cores = Cores(logical=64, usable=64, physical=32, performance=32)
        found = read_space(str(machine.space), cores=32)
        found = relevant_space(found, about.inventory, about.workload, devices, cores)
        return replace(about, devices=devices, cores=cores, space=found)

    result = tune(machine, space("single", "  op_offload: {values: [true, false]}\n"), of)

    assert result["winner"]["params"]["op_offload"] is False
    assert "--no-op-offload" in result["winner"]["argv"]
    assert result["winner"]["proven"]


@pytest.mark.parametrize(("capability", "values"), [("6.1", {"on", "off"}), ("8.6", {"on"})])
def test_cards_without_matrix_cores_are_recognized_by_their_list(tmp_path, capability, values):
    """The runtime prints the compute capability of CUDA cards when it lists its devices."""
    machine = TuneMachine(tmp_path, 1500.0)
    (card,) = machine.machine.devices
    machine.change(devices=(replace(card, capability=capability),))
    workload = read_workload(str(machine.workload))

    about = task(machine.model, machine.server, workload, space="moe")

    assert about.devices[0].compute_capability == float(capability)
    assert {point["flash_attn"] for point in about.space.points()} == values


def test_attention_without_flash_attention_is_tuned_on_old_cards(tune, tmp_path):
    """Such cards compute it sooner, and the winner has it off with an f16 cache."""
    machine = TuneMachine(tmp_path, 1500.0)
    (card,) = machine.machine.devices
    old = replace(card, capability="6.1", flash_share=0.0005)
    machine.change(devices=(old,))

    result = tune(machine, space("single", '  flash_attn: {values: ["on", "off"]}\n'), lambda t: t)

    assert result["winner"]["params"]["flash_attn"] == "off"
    assert result["winner"]["proven"]


def test_attention_stays_off_where_the_runtime_switched_it_off(tune, tmp_path):
    """A card has no kernel for the model, so no launch after the baseline asks for it."""
    machine = TuneMachine(tmp_path, 1500.0)
    (card,) = machine.machine.devices
    machine.change(devices=(replace(card, has_flash_kernel=False),))
    more = '  flash_attn: {values: ["on"]}\n  cache_type: {values: [q8_0, f16]}\n'

    result = tune(machine, space("single", more), lambda about: about)

    assert result["baseline"]["params"].get("flash_attn", "auto") == "auto"
    assert result["winner"]["params"]["flash_attn"] == "off"
    assert result["winner"]["proven"]
    assert {"rejected", "failed"}.isdisjoint(result["outcomes"])


def test_layers_are_divided_over_equal_cards(tune, tmp_path):
    """The model has room on two cards as a whole, and both compute every layer at once."""
    machine = TuneMachine(tmp_path, 6000.0, 6000.0)
    cards = [replace(card, hop_us=2.0, memory_gb_s=60.0) for card in machine.machine.devices]
    machine.change(devices=tuple(cards))

    result = tune(machine, space("balanced, tensor"), lambda about: about)

    params = result["winner"]["params"]
    assert params.get("split_mode") == "tensor", result
    assert params["devices"] == "CUDA0,CUDA1"
    assert params["tensor_split"] == "1,1"
    assert {"--split-mode", "tensor"} <= set(result["winner"]["argv"])
    assert result["winner"]["proven"]


def test_a_variable_of_the_environment_is_searched_like_a_flag(tune, tmp_path):
    """Two cards in a pipeline are faster with a longer launch queue, which a variable sets."""
    machine = TuneMachine(tmp_path, 6000.0, 6000.0)
    machine.workload.write_text(
        "context: 4096\nrequests:\n  - {prompt_tokens: 3000, predicted_tokens: 2}\n"
    )
    more = """\
  batch: {values: [2048]}
  flash_attn: {values: ["on"]}
  cuda_scale_launch_queues: {values: [default, 4x]}
"""

    result = tune(machine, space("balanced", more), lambda about: replace(about, objective="pp"))

    assert result["winner"]["params"]["cuda_scale_launch_queues"] == "4x"
    assert result["winner"]["env"] == {"CUDA_SCALE_LAUNCH_QUEUES": "4x"}
