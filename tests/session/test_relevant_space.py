"""Values that cannot matter on a machine are not searched there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.task_sample import task
from tune_machine import TuneMachine

from autofit.machine.cpu import Cores
from autofit.search.space import Axis, Space
from autofit.search.space_file import read_space
from autofit.session.relevant_space import relevant_space
from autofit.session.task import Task
from autofit.trial.device import Device
from autofit.trial.workload import Request, Workload

DESKTOP, SERVER = Cores(16, 16, 8, 8), Cores(128, 128, 64, 64, nodes=2)
NEW = Device("CUDA0", "RTX 3090", 24576, 24000, link_gb_s=24.5, compute_capability=8.6)
CHAT = Workload("chat", 16384, 1, (Request(4096, 256),))


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task, for its model."""
    machine = TuneMachine(tmp_path_factory.mktemp("relevant"), 2600.0)
    return task(machine.model, machine.server, CHAT, space="moe")


def values(about: Task, name: str, *devices: Device, cores: Cores = DESKTOP) -> tuple:
    """The values of an axis of the space for mixtures of experts that are left."""
    axis = relevant_space(read_space("moe", cores=8), about.inventory, CHAT, devices, cores).axis(
        name
    )
    return axis.values if axis else ()


def test_numa_needs_several_memory_nodes(about):
    """With one node nothing is placed."""
    assert values(about, "numa", NEW) == ()
    assert values(about, "numa", NEW, cores=SERVER) == ("off", "distribute", "isolate")


@pytest.mark.parametrize(
    ("capabilities", "is_searched"),
    [((8.6,), False), ((6.1,), True), ((None,), True), ((8.6, 6.1), True), ((8.6, 7.0), False)],
)
def test_flash_attention_is_questioned_without_matrix_cores(about, capabilities, is_searched):
    """Any card that has none, or of which it is not known, may be faster without."""
    devices = [
        replace(NEW, name=f"CUDA{at}", compute_capability=capability)
        for at, capability in enumerate(capabilities)
    ]

    assert ("off" in values(about, "flash_attn", *devices)) == is_searched


def test_the_processor_computes_batches_only_where_it_may_be_faster(about):
    """A fast link or a slow processor rules it out; unified memory has no link."""
    slow = replace(NEW, link_gb_s=1.5)

    assert values(about, "op_offload", slow, cores=SERVER) == (True, False)
    assert values(about, "op_offload", NEW, cores=DESKTOP) == ()
    assert values(about, "op_offload", replace(slow, is_unified=True), cores=SERVER) == ()
    assert values(about, "op_offload", cores=SERVER) == ()


def test_the_only_value_of_a_user_stays(about):
    """A space with one value does not search it, so nothing is saved."""
    space = Space("own", "moe", (Axis("flash_attn", ("off",)), Axis("numa", ("isolate",))))

    assert relevant_space(space, about.inventory, CHAT, [NEW], DESKTOP).axes == space.axes


def test_combinations_that_the_runtime_refuses_are_no_points(about):
    """A quantized cache needs flash attention."""
    points = list(about.space.points())

    assert {point["flash_attn"] for point in points} == {"on"}  # the fake cards are new
    space = replace(about.space, axes=(*about.space.axes,)).with_values("ubatch", (512).__eq__)
    off = Axis("flash_attn", ("on", "off"))
    axes = tuple(off if axis.name == "flash_attn" else axis for axis in space.axes)
    types = {
        point["cache_type"]
        for point in replace(space, axes=axes).points()
        if point["flash_attn"] == "off"
    }
    assert types == {"f16"}
