"""Whole tunes of builds that can prefetch or cache experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from expert_machine import SLOT_MIB, ExpertMachine
from fakes.machine import Quirks
from fakes.physics import Simulation
from session.physical_launching import PhysicalLaunching
from session.task_sample import runner, task
from tune.whole_tune import tune as tune_task
from tune_machine import MODEL

from autofit.search.space_file import read_workload
from autofit.trial.candidate import Candidate


@dataclass
class Tuned:
    """The result of a tune, and its launches."""

    result: dict[str, Any]
    launching: PhysicalLaunching

    @property
    def params(self) -> dict[str, Any]:
        """The winner's settings."""
        return self.result["winner"]["params"]

    @property
    def cost(self) -> dict[str, Any]:
        """The cost of the space's one setting for experts."""
        (cost,) = self.result["expert_memory"]
        return cost

    def truth(self, **changes: Any) -> Any:
        """The winner, with some settings changed, without noise."""
        params = {**self.params, **changes}
        workload = self.launching.simulation
        return workload.truth(params, [(1500, 33)])

    def taken_mib(self, **off: Any) -> float:
        """The memory that a setting of the winner takes in truth."""
        with_it, without = self.truth().devices[0], self.truth(**off).devices[0]
        return with_it.used_mib - without.used_mib


@pytest.fixture
def tune(tmp_path) -> Callable[..., Tuned]:
    """A function that tunes a machine of a kind."""

    def run(kind: str, launches: int = 10, **fields: Any) -> Tuned:
        machine = ExpertMachine(tmp_path, kind, **fields)
        workload = read_workload(str(machine.workload))
        about = task(
            machine.model, machine.server, workload,
            space=str(machine.space), dialect=str(machine.dialect),
        )  # fmt: skip
        launching = PhysicalLaunching(Simulation(machine.machine, MODEL), workload.context)
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        running.budget.max_launches = launches
        launching.expected_slots = running.memory.expected_slots
        return Tuned(tune_task(about, running), launching)

    return run


@pytest.mark.parametrize(
    ("kind", "name"),
    [("slots", "prefetch_slots"), ("env", "prefetch_slots"), ("weights", "prefetch_weights")],
)
def test_useful_prefetch_is_chosen(tune, kind, name):
    """Its memory in the result is the true one, whatever the build's switch."""
    tuned = tune(kind)

    slots = tuned.params[name] if name == "prefetch_slots" else 3
    assert slots >= 3
    assert tuned.cost["mib"] == {"CUDA0": slots * SLOT_MIB}
    assert tuned.taken_mib(**{name: 0}) == pytest.approx(slots * SLOT_MIB)
    assert (tuned.cost["source"], tuned.cost["slots_taken"]) == ("memory", slots)
    assert tuned.cost["time_ratio"] < 1


def test_slow_prefetch_is_off(tune):
    """If whole tensors fill the link, no slot is used, and the result has its cost."""
    tuned = tune("slots", quirks=Quirks(prefetch_link_share=0.3))

    assert tuned.params["prefetch_slots"] == 0
    assert tuned.cost["mib"] == {}
    assert tuned.cost["launches"] > 0
    assert tuned.cost["time_ratio"] > 1


@pytest.mark.parametrize("dies", [True, False])
def test_slots_that_do_not_fit_are_not_recommended(tune, dies):
    """The server dies or has fewer slots: the winner has all of its slots."""
    tuned = tune("env", card_mib=2600.0, prefetch_dies=dies)

    ended = tuned.result["outcomes"]
    refused = [c for c, run in tuned.launching.made if run.refused_slot_mib]
    assert len(refused) == ended["out_of_memory"] > 0
    assert Candidate(tuned.params) not in refused
    slots = tuned.params["prefetch_slots"]
    assert tuned.cost["slots_taken"] == slots > 0
    assert tuned.taken_mib(prefetch_slots=0) == pytest.approx(slots * SLOT_MIB)


@pytest.mark.parametrize(("prompt", "chosen"), [(40, False), (1500, True)])
def test_the_workload_decides_on_prefetch(tune, prompt, chosen):
    """Short prompts wait longer for whole tensors than for the experts that they use."""
    tuned = tune("slots", prompt=prompt, quirks=Quirks(prefetch_link_share=0.6))

    slots = tuned.params["prefetch_slots"]
    first = {
        on: tuned.launching.simulation.truth(
            {**tuned.params, "n_cpu_moe": 6, "prefetch_slots": on}, [(prompt, 2)]
        ).samples[0].ttft_s
        for on in (0, 4)
    }  # fmt: skip
    assert (first[4] < first[0]) == chosen
    assert (slots > 0) == chosen


def test_a_useful_expert_cache_is_chosen(tune):
    """System RAM is slow; a cache has whole experts, so a little less than its budget."""
    tuned = tune("cache", card_mib=2600.0, prompt=200, predicted=200, host={"memory_gb_s": 12.0})

    budget = tuned.params["moe_cache_mib"]
    assert budget - 4 < tuned.cost["mib"]["CUDA0"] <= budget
    assert tuned.taken_mib(moe_cache_mib=0) == pytest.approx(tuned.cost["mib"]["CUDA0"], abs=0.1)
    assert (tuned.cost["source"], tuned.cost["slots_asked"]) == ("log", None)
    assert tuned.cost["time_ratio"] < 0.9


def test_a_slow_expert_cache_is_off(tune):
    """Over a slow link every miss costs more than the CPU's reading."""
    tuned = tune(
        "cache", card_mib=2600.0, prompt=200, predicted=200, card={"link_gb_s": 2.0}
    )  # fmt: skip

    assert tuned.params["moe_cache_mib"] == 0
    assert tuned.cost["mib"] == {}
    slow = tuned.launching.simulation.truth(
        {**tuned.params, "n_cpu_moe": 8, "moe_cache_mib": 400}, [(200, 200)]
    )
    assert slow.samples[0].tg_per_s < 0.5 * tuned.truth().samples[0].tg_per_s
