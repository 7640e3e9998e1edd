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

from autofit.search.space_file import read_workload
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

    result = tune(
        machine,
        "layouts: [first_device]\nparameters:\n  ubatch: {values: [512]}\n"
        '  flash_attn: {values: ["on"]}\n',
        of,
    )

    assert result["winner"]["params"]["devices"] == "CUDA1,CUDA0"
    assert result["winner"]["proven"]
