"""A winner that fails its proof: another takes its place, and the reason is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tune_machine import TuneMachine
from tuning.simulated_launching import SimulatedLaunching
from tuning.task_sample import runner, situation

from autofit.search.space_file import read_workload
from autofit.search.study import SearchStudy
from autofit.trial.outcome import Completed, Crashed
from autofit.tuning.candidates import CandidateMaker
from autofit.tuning.tune import Tune


@pytest.fixture
def about(tmp_path):
    """A task on one card."""
    machine = TuneMachine(tmp_path, 2600.0)
    workload = read_workload(str(machine.workload))
    return situation(machine.model, machine.server, workload, space=str(machine.space))


def _tuned(about, folder, outcome_of, max_launches):
    """The result of a tune whose launches end as told; fewer host layers are faster."""
    launching = SimulatedLaunching(
        outcome_of=outcome_of,
        seconds_of=lambda candidate: 1.0 + 0.1 * candidate.get_int("n_cpu_moe", 30),
    )
    running = replace(runner(about, folder), launching=launching)
    running.budget.max_launches = max_launches
    maker = CandidateMaker(about)
    tune = Tune(about, running, maker, SearchStudy(maker.problem(), seed=1), lambda _: None, 1)
    tune.checks_answers = False
    with running.study:
        return tune.run()


def test_a_winner_that_fails_its_proof_gives_way(about, tmp_path):
    """The next finalist is proven and recommended; the notes say why the first was not."""
    failed = []

    def outcome_of(candidate, effort):
        # Whatever is proven first crashes at full context, and only there.
        if effort.name == "prove" and "n_cpu_moe" in candidate.params:
            failed[:] = failed or [candidate]
            if candidate == failed[0]:
                return Crashed("prompt", "the GPU fell off the bus", "device_lost")
        return Completed()

    result = _tuned(about, tmp_path / "study", outcome_of, max_launches=6)

    assert len(failed) == 1
    assert result["winner"]["proven"] is True
    assert result["winner"]["params"] != dict(failed[0].params)
    assert (
        "a finalist does not hold at full context: crashed: the GPU fell off the bus"
        in (result["notes"])
    )


def test_the_baseline_is_kept_where_nothing_faster_holds(about, tmp_path):
    """With every finalist failing its proof, what runs without tuning is proven and written."""

    def outcome_of(candidate, effort):
        if effort.name == "prove" and "n_cpu_moe" in candidate.params:
            return Crashed("prompt", "the GPU fell off the bus", "device_lost")
        return Completed()

    result = _tuned(about, tmp_path / "study", outcome_of, max_launches=4)

    assert result["winner"]["proven"] is True
    assert "n_cpu_moe" not in result["winner"]["params"]
    assert result["gain"]["median"] == 1.0
    assert any(note.startswith("nothing that is faster can be") for note in result["notes"])
