"""A task built from a user's options."""

from __future__ import annotations

import pytest
from session.task_sample import options
from tune_machine import TuneMachine

from autofit.session.build_task import build_task


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
