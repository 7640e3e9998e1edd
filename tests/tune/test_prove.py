"""Proofs of finalists, and the steps back where they are out of memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import runner

from autofit.search.optuna_study import SearchStudy
from autofit.search.space import HOST_LAYERS_AXIS
from autofit.session.finalist import Finalist, Proof
from autofit.trial.outcome import Completed, Crashed, OutOfMemory
from autofit.tune.explore import Exploration
from autofit.tune.prove import Prover


@pytest.fixture
def proved(about, problem, tmp_path):
    """A function that proves a finalist; it returns the proof and all launches."""

    def of(finalist: Finalist, rule) -> tuple[Proof | None, SimulatedLaunching]:
        launching = SimulatedLaunching(outcome_of=lambda candidate, _: rule(candidate))
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        with running.study:
            search = SearchStudy(problem, seed=1)
            exploration = Exploration(about, running, running.memory, search, None)
            return Prover(about, running, exploration).prove(finalist), launching

    return of


def host_layers(candidate) -> int:
    """The layers with experts on the host."""
    return int(candidate.params["n_cpu_moe"])


def test_a_proof_fills_the_context_as_served(about, finalist, proved):
    """The very settings, twice, with prompt and generation that fill a slot."""
    proof, launching = proved(finalist(4), lambda _: Completed())

    ((candidate, request_plan),) = launching.made
    assert proof.finalist.candidate == candidate == finalist(4).candidate
    assert launching.served == [True]
    assert proof.steps_back == 0
    first, second = request_plan.requests
    assert first == second
    assert first.prompt_tokens + first.predicted_tokens + 64 == about.workload.context


def test_a_finalist_out_of_memory_steps_back_until_it_runs(finalist, proved):
    """Each step leaves one more layer's experts on the host."""
    proof, launching = proved(
        finalist(4), lambda c: Completed() if host_layers(c) >= 7 else NO_ROOM
    )

    assert [host_layers(candidate) for candidate, _ in launching.made] == [4, 5, 6, 7]
    assert proof.steps_back == 3
    assert host_layers(proof.finalist.candidate) == 7
    assert proof.finalist.point[HOST_LAYERS_AXIS] == 7


def test_a_lack_of_host_memory_has_no_step_back(finalist, proved):
    """More layers in system RAM would need more of it."""
    no_ram = OutOfMemory("load", "SIGKILL", "host", "weights")
    proof, launching = proved(finalist(4), lambda _: no_ram)

    assert proof is None
    assert [host_layers(candidate) for candidate, _ in launching.made] == [4]


def test_there_are_few_steps_back(finalist, proved):
    """After a few steps that are out of memory, too, there is no proof."""
    proof, launching = proved(finalist(4), lambda _: NO_ROOM)

    assert proof is None
    assert len(launching.made) == 5


def test_steps_back_end_where_all_layers_are_on_the_host(finalist, proved):
    """There are no more layers than the model has."""
    proof, launching = proved(finalist(11), lambda _: NO_ROOM)

    assert proof is None
    assert [host_layers(candidate) for candidate, _ in launching.made] == [11, 12]


@pytest.mark.parametrize("at", [4, 6])
def test_another_failure_has_no_step_back(finalist, proved, at):
    """More memory does not prevent a crash."""
    crash = Crashed("prompt", "segmentation fault")
    proof, launching = proved(finalist(4), lambda c: crash if host_layers(c) >= at else NO_ROOM)

    assert proof is None
    assert len(launching.made) == at - 3


def test_a_candidate_without_a_point_has_no_step_back(finalist, proved):
    """A baseline in explicit settings is proven or not."""
    proof, launching = proved(replace(finalist(4), point=None), lambda _: NO_ROOM)

    assert proof is None
    assert len(launching.made) == 1
