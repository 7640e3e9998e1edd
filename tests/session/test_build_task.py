"""A task built from a user's options."""

from __future__ import annotations

import pytest
from session.task_sample import options
from tune_machine import TuneMachine

from autofit.session.build_task import build_task, suggest_device_names

PRESENT = ("CUDA0", "CUDA1", "RPC0")


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """A machine with one card."""
    return TuneMachine(tmp_path_factory.mktemp("task"), 2600.0)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, []),
        ({"context": 4096}, []),
        ({"context": 256}, [256]),  # requests are cut
        ({"context": 65536}, [65536, 32768]),  # more than the model was trained for
        ({"context": 65536, "parallel": 2}, []),
    ],
)
def test_a_notice_names_a_context_that_is_too_short_or_too_long(machine, changes, numbers):
    """A notice names the context of a slot if it cuts requests or exceeds the training context."""
    task = build_task(
        options(
            machine.model,
            machine.server,
            dialect=str(machine.dialect),
            space=str(machine.space),
            workload=str(machine.workload),
            **changes,
        )
    )

    assert len(task.notices) == bool(numbers)
    assert all(str(number) in task.notices[0] for number in numbers)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA00", "CUDA0"), ("cuda0", "CUDA0"), ("CUDA 0", "CUDA0"), ("CUDA:1", "CUDA1"),
        ("Cuda-1", "CUDA1"), ("CDUA0", "CUDA0"), ("rpc0", "RPC0"), ("VULKAN0", "Vulkan0"),
        ("rocm1", "ROCm1"), ("CUDA", "CUDA0"), ("cuda5", "CUDA5"),
    ],
)  # fmt: skip
def test_a_misspelt_device_leads_to_a_name(name, meant):
    """Case, blanks, marks, leading zeros and a slip lead to the name that was meant."""
    (notice,) = suggest_device_names([name], PRESENT)

    assert f"no device '{name}', but {meant} " in notice


@pytest.mark.parametrize("name", ["CUDA0", "CUDA2", "CUDA15", "Vulkan0", "MTL0", "gpu", "Card7"])
def test_other_device_names_have_no_suggestion(name):
    """A device that is here, one to be bought, and one that is like no other."""
    assert list(suggest_device_names([name], PRESENT)) == []


def test_names_of_backends_are_suggested_without_devices():
    """A plan on a machine without a card may be for any, but they have names."""
    (notice,) = suggest_device_names(["cuda0", "CUDA1"], ())

    assert "CUDA0 would be the usual name" in notice
