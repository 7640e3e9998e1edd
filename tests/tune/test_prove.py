"""The proof of a winner, and the way back where it does not hold."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import problem_of, runner, task
from tune_machine import TuneMachine

from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.search.space_file import read_workload
from autofit.session.finalist import Finalist, Proof
from autofit.trial.outcome import Completed, Crashed, OutOfMemory
from autofit.tune.prove import prove, prove_or_step_back, spare_rooms


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> TuneMachine:
    """One card."""
    return TuneMachine(tmp_path_factory.mktemp("prove"), 2600.0)


@pytest.fixture(scope="module")
def about(machine):
    """What is known of the task."""
    workload = read_workload(str(machine.workload))
    return task(machine.model, machine.server, workload, space=str(machine.space))


@pytest.fixture(scope="module")
def problem(about) -> Problem:
    """The search problem of the task."""
    return problem_of(about)


@pytest.fixture
def finalist(problem):
    """A finalist with so many host layers."""

    def of(host_layers: int) -> Finalist:
        point = {
            LAYOUT_AXIS: problem.layouts[0], HOST_LAYERS_AXIS: host_layers,
            **next(problem.space.points()),
        }  # fmt: skip
        return Finalist(problem.candidate_of(point), problem.layouts[0], point)

    return of


@pytest.fixture
def proved(about, problem, tmp_path):
    """Proves a finalist on launches that a rule decides; the proof and all launches."""

    def of(finalist: Finalist, rule) -> tuple[Proof | None, SimulatedLaunching]:
        launching = SimulatedLaunching(outcome_of=lambda candidate, _: rule(candidate))
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        with running.study:
            launch = partial(prove, runner=running, task=about)
            return prove_or_step_back(finalist, launch, problem), launching

    return of


def host_layers(candidate) -> int:
    """How many layers have their experts on the host."""
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


def test_what_lacks_memory_steps_back_until_it_holds(finalist, proved):
    """Each step leaves one more layer's experts on the host."""
    proof, launching = proved(
        finalist(4), lambda c: Completed() if host_layers(c) >= 7 else NO_ROOM
    )

    assert [host_layers(candidate) for candidate, _ in launching.made] == [4, 5, 6, 7]
    assert proof.steps_back == 3
    assert host_layers(proof.finalist.candidate) == 7
    assert proof.finalist.point[HOST_LAYERS_AXIS] == 7


def test_want_of_host_memory_steps_nowhere(finalist, proved):
    """More layers in system RAM would want more of it."""
    no_ram = OutOfMemory("load", "SIGKILL", "host", "weights")
    proof, launching = proved(finalist(4), lambda _: no_ram)

    assert proof is None
    assert [host_layers(candidate) for candidate, _ in launching.made] == [4]


def test_the_way_back_has_an_end(finalist, proved):
    """After a few steps that lack memory, too, there is no proof."""
    proof, launching = proved(finalist(4), lambda _: NO_ROOM)

    assert proof is None
    assert len(launching.made) == 5


def test_the_way_back_ends_where_all_layers_are_on_the_host(finalist, proved):
    """There are no more layers than the model has."""
    proof, launching = proved(finalist(11), lambda _: NO_ROOM)

    assert proof is None
    assert [host_layers(candidate) for candidate, _ in launching.made] == [11, 12]


@pytest.mark.parametrize("at", [4, 6])
def test_another_failure_is_not_stepped_back_from(finalist, proved, at):
    """More memory does not mend a crash."""
    crash = Crashed("prompt", "segmentation fault")
    proof, launching = proved(finalist(4), lambda c: crash if host_layers(c) >= at else NO_ROOM)

    assert proof is None
    assert len(launching.made) == at - 3


def test_what_has_no_point_is_proven_or_not(finalist, proved):
    """A frozen baseline cannot step back."""
    proof, launching = proved(replace(finalist(4), point=None), lambda _: NO_ROOM)

    assert proof is None
    assert len(launching.made) == 1


@pytest.fixture
def rooms(about, finalist, tmp_path):
    """What is pointed out of a proof with so much left, so many host layers and such a loan."""

    def of(free_mib: float, host: int, limit_mib: float | None) -> list[str]:
        launching = SimulatedLaunching(free_mib=free_mib)
        running = replace(runner(about, tmp_path / "study"), launching=launching)
        with running.study:
            proof = Proof(finalist(host), prove(finalist(host), running, about))
        lent = about
        if limit_mib is not None:
            devices = tuple(replace(d, usable_mib=limit_mib) for d in about.devices)
            lent = replace(about, devices=devices, chooses_devices=True)
        found = spare_rooms(proof, about.memory_model().predict(finalist(host).candidate), lent)
        return [room.text for room in found]

    return of


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ((500.0, 4, None), "room for 2 more expert layers"),
        ((250.0, 4, None), "room for one more expert layer"),
        ((200.0, 4, None), None),
        ((500.0, 0, None), None),
        ((500.0, 4, 2100.0), None),
        ((500.0, 4, 2300.0), "room for one more expert layer"),
    ],
)
def test_room_that_is_left_is_pointed_out(rooms, left, told):
    """A device with room for an expert layer, within what it is lent, is named."""
    assert [told in text for text in rooms(*left)] == [True] * (told is not None)


def test_nothing_is_known_without_an_estimate(about, finalist, tmp_path):
    """Where layers lie must be known."""
    running = replace(runner(about, tmp_path / "study"), launching=SimulatedLaunching())
    with running.study:
        trial = prove(finalist(4), running, about)

    assert spare_rooms(Proof(finalist(4), trial), None, about) == []
