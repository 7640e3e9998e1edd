"""Earlier studies of a task: how much each says, and which launches can be used."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.random_machine import random_case, random_machine
from knowledge.study_sample import known_study

from autofit.knowledge.study_knowledge import learn_study, past_studies
from autofit.session.task_setup import read_environment
from autofit.trial.purpose import Phase
from benchmarks.search_machine import SearchMachine

NOW = 1e9


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> SearchMachine:
    """A simulated machine with one CUDA card and a model."""
    made = random_machine(1, devices=1)
    return SearchMachine(random_case(1, machine=made), tmp_path_factory.mktemp("machine"))


@pytest.fixture
def environment(machine):
    """The environment of the task, with the build and driver of the sample."""
    return replace(read_environment(machine.task), build="b1", driver="570", model_digest="d1")


def launched(machine: SearchMachine, phase: Phase = "search", number: int = 1):
    """Return a trial of the machine, of the first point that runs."""
    problem = machine.problem(machine.memory_model())
    first = next(problem.space.points())
    for host_layers in range(problem.most_host_layers, 0, -1):
        point = {"layout": problem.layouts[0], "host_expert_layers": host_layers, **first}
        candidate = problem.candidate_of(point)
        if candidate is not None:
            trial = machine.launch(machine.simulation, candidate, number=number, phase=phase)
            if trial.is_completed:
                return trial
    raise AssertionError


def here(machine: SearchMachine, number: int = 1, **changes):
    """Return the sample study with launches on the machine's device."""
    name = machine.task.devices[0].name
    launch = {
        "settings": {"ubatch": 512},
        "devices": {name: {"layers": 41.0, "host_layers": 20.0}},
        "first_device": name,
        "prompt_s_per_token": 2e-3,
    }
    return known_study(number, **{"launches": [launch], **changes})


def test_a_launch_is_kept_as_it_was_measured(machine) -> None:
    """A launch keeps its settings, the layers of each device and its seconds per token."""
    trial = launched(machine)
    study = learn_study(machine.task, [trial], study_id="a", finished_at=1.0)

    assert study is not None
    (launch,) = study.launches
    (device,) = launch.devices.values()
    assert launch.settings["ubatch"] == trial.candidate.params["ubatch"]
    assert "n_cpu_moe" not in launch.settings
    assert device.host_layers > 0
    assert device.layers == machine.task.inventory.units
    prompt = min(s.prompt_s / s.prompt_tokens for s in trial.measurement.samples)
    assert launch.prompt_s_per_token == pytest.approx(prompt, rel=0.3)
    assert study.model.layers == len(machine.task.inventory.expert_blocks)


def test_a_launch_that_says_nothing_is_not_kept(machine) -> None:
    """Of a failed launch and of the runtime's own placement nothing is learned."""
    trial = launched(machine)
    failed = replace(trial, measurement=None)
    own = replace(trial, candidate=replace(trial.candidate, params={"context": 4096}))
    assert learn_study(machine.task, [failed, own], study_id="a", finished_at=1.0) is None


@pytest.mark.parametrize(
    "change",
    [
        {"build": "b2"},
        {"driver": "580"},
        {"model": known_study().model.model_copy(update={"digest": "d2"})},
        {"finished_at": NOW - 800 * 86400},
    ],
)
def test_a_study_under_other_conditions_says_less(machine, environment, change) -> None:
    """Another build, driver or model, and a year of age, each reduce the similarity."""
    same, other = (
        past_studies(machine.task, [here(machine, **fields)], environment, now=NOW)
        for fields in ({}, change)
    )
    assert 0 < other[0].similarity < same[0].similarity < 1


def test_the_most_similar_studies_are_used_and_come_last(machine, environment) -> None:
    """Of many studies some are used, the most similar at the end."""
    known = [here(machine, n, build="b1" if n % 2 else "b2") for n in range(20)]
    found = past_studies(machine.task, known, environment, now=NOW)
    assert 2 <= len(found) < 20
    assert [one.similarity for one in found] == sorted(one.similarity for one in found)
    weaker = past_studies(machine.task, known[::2], environment, now=NOW)
    assert found[0].similarity > max(one.similarity for one in weaker)


def test_launches_on_devices_that_the_task_does_not_use_are_left_out(machine, environment) -> None:
    """A study on another device of the machine says nothing about this one."""
    moved = (
        here(machine)
        .launches[0]
        .model_copy(update={"devices": {"CUDA7": here(machine).launches[0].devices.popitem()[1]}})
    )
    study = here(machine).model_copy(update={"launches": (moved,)})
    assert past_studies(machine.task, [study], environment, now=NOW) == ()
