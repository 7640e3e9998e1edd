"""The document of a tune, from the findings of its phases."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import jsonschema
import pytest
from cli.tune_document import RESULT
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import runner, task
from trial.purpose_sample import purpose_of
from tune_machine import TuneMachine

from autofit.runtime.server.request_plan import plan_measurement, plan_proof
from autofit.search.space_file import read_workload
from autofit.session.finalist import FROZEN, RUNTIME_FIT, Finalist, Proof
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.statistics.estimate import Estimate
from autofit.trial.candidate import Candidate
from autofit.tune.explore import Boundary
from autofit.tune.recommend import Recommendation
from autofit.tune.result import TuneResult

GAIN = Estimate(1.6, 1.5, 1.7, 3)


@pytest.fixture(scope="module")
def about(tmp_path_factory):
    """One card, with arguments and variables of the user."""
    machine = TuneMachine(tmp_path_factory.mktemp("result"), 2600.0)
    workload = read_workload(str(machine.workload))
    found = task(machine.model, machine.server, workload, space=str(machine.space))
    return replace(found, extra_args=("--mine",), env={"GGML_X": "1"}, wrapper=("nice",))


@pytest.fixture
def running(about, tmp_path):
    """Launches in which the baseline takes 1.6 times as long as all others."""

    def seconds(candidate: Candidate) -> float:
        return 1.6 if candidate == about.baseline else 1.0

    made = replace(runner(about, tmp_path / "study"), launching=SimulatedLaunching())
    made.launching.seconds_of = seconds
    with made.study:
        yield made


class Tuned:
    """A tune made step by step: baseline, one search launch, three rounds, a proof."""

    def __init__(self, about, running) -> None:
        self.about, self.running = about, running
        self.winner = Candidate({"n_gpu_layers": 13, "n_cpu_moe": 5, **about.task_params})
        self.request_plan = plan_measurement(about.workload, 512, repeats=2)
        self.baseline = self.launch(purpose_of("baseline"), about.baseline, RUNTIME_FIT)
        self.launch(purpose_of("search"), self.winner, "single:CUDA0")
        self.ranking = run_rounds(
            [self.contender(about.baseline, RUNTIME_FIT), self.contender(self.winner, "single")],
            workload=about.workload, metric="request_s", rng=random.Random(1),
        )  # fmt: skip

    def launch(self, purpose, candidate, layout, request_plan=None):
        """One trial."""
        return self.running.run(
            purpose,
            candidate,
            request_plan or self.request_plan,
            layout=layout,
            is_verbatim=layout == RUNTIME_FIT,
        )

    def contender(self, candidate, layout):
        """A contender of the rounds."""
        return Contender(
            candidate.key,
            lambda number: self.launch(round_purpose(number), candidate, layout),
        )

    def recommended(self, candidate=None, layout="single:CUDA0", gain=GAIN) -> Recommendation:
        """A candidate that was proven."""
        candidate = candidate or self.winner
        request_plan = plan_proof(self.about.workload, 2048)
        finalist = Finalist(candidate, layout, is_baseline=layout == FROZEN)
        trial = self.launch(purpose_of("prove"), candidate, layout, request_plan)
        return Recommendation(Proof(finalist, trial), gain)

    def document(self, **changes) -> dict:
        """The document, checked against its schema."""
        parts = {
            "task": self.about, "study": self.running.study, "baseline": self.baseline,
            "ranking": self.ranking, "recommendation": None, "boundaries": [],
            "seconds": 12.345, "notes": ["a note"], **changes,
        }  # fmt: skip
        made = TuneResult(trials=self.running.trials, **parts).to_dict()
        jsonschema.validate(made, RESULT)
        return json.loads(json.dumps(made))


@pytest.fixture
def tuned(about, running) -> Tuned:
    """A tune, up to its proof."""
    return Tuned(about, running)


def test_a_winner_has_what_starts_it(tuned):
    """Its arguments include the user's, and it has the memory that the proof left free."""
    winner = tuned.document(recommendation=tuned.recommended())["winner"]

    assert winner["params"] == dict(tuned.winner.params)
    assert winner["argv"][0] == "nice"
    assert winner["argv"][-1] == "--mine"
    assert "--port" not in winner["argv"]
    assert winner["env"]["GGML_X"] == "1"
    assert winner["free_mib"] == {"CUDA0": 900.0, "host": 9000.0}
    assert winner["survives"] == ["another 900 MiB taken on CUDA0"]
    assert winner["trial"] == tuned.running.trials[-1].number


def test_estimates_are_those_of_the_rounds(tuned):
    """There is one value per launch; the proof does not count."""
    document = tuned.document(recommendation=tuned.recommended())

    rounds = tuned.ranking.rounds
    for side, seconds in (("baseline", 1.6), ("winner", 1.0)):
        found = document[side]["estimates"]["request_s"]
        assert found["n"] == rounds
        assert found["median"] == pytest.approx(seconds)
    assert document["gain"] == {"median": 1.6, "low": 1.5, "high": 1.7, "n": 3}
    assert document["seconds"] == 12.3
    assert document["notes"] == ["a note"]


def test_launches_and_outcomes_are_counted(tuned):
    """They are counted by phase and by outcome."""
    tuned.running.launching.outcome_of = lambda *_: NO_ROOM
    tuned.launch(purpose_of("boundary"), tuned.winner.with_params(n_cpu_moe=1), "single:CUDA0")
    document = tuned.document()

    rounds = 2 * tuned.ranking.rounds
    assert document["launches_by_phase"] == {
        "baseline": 1, "boundary": 1, "search": 1, "confirm": rounds, "prove": 0,
    }  # fmt: skip
    assert document["launches"] == 3 + rounds
    assert document["outcomes"] == {"completed": 2 + rounds, "out_of_memory": 1}


def test_without_a_proof_there_is_neither_winner_nor_gain(tuned):
    """Whatever was measured."""
    document = tuned.document()

    assert (document["winner"], document["gain"], document["tie"]) == (None, None, False)
    assert document["baseline"]["outcome"]["kind"] == "completed"


def test_a_winner_that_is_faster_is_no_tie(tuned):
    """The rounds decided so."""
    assert tuned.document(recommendation=tuned.recommended())["tie"] is False


def test_a_winner_as_fast_as_the_baseline_is_a_tie(about, running):
    """The rounds show that the times are equal."""
    running.launching.seconds_of = lambda _: 1.0
    tuned = Tuned(about, running)

    assert tuned.document(recommendation=tuned.recommended())["tie"] is True


def test_an_explicit_baseline_has_the_baselines_estimates(about, running):
    """It has new flags alone; a tie is one with a contender."""
    running.launching.seconds_of = lambda c: 1.0 if c == about.baseline else 1.3
    tuned = Tuned(about, running)
    frozen = about.baseline.with_params(n_gpu_layers=13, n_cpu_moe=6)
    document = tuned.document(recommendation=tuned.recommended(frozen, FROZEN))

    assert document["winner"]["estimates"] == document["baseline"]["estimates"]
    assert document["winner"]["params"]["n_cpu_moe"] == 6
    assert document["tie"] is False


def test_without_rounds_all_launches_count(tuned):
    """Those of search and baseline are used."""
    tuned.running.trials[:] = [t for t in tuned.running.trials if t.phase != "confirm"]
    document = tuned.document(ranking=None, recommendation=tuned.recommended(gain=None))

    assert document["winner"]["estimates"]["request_s"]["n"] == 1
    assert (document["gain"], document["tie"], document["confirmation"]) == (None, False, None)


@pytest.mark.parametrize(("proven", "source"), [(True, "launch"), (False, "estimate")])
def test_a_boundary_has_its_source(tuned, proven, source):
    """Both sides were launched, or one is estimated."""
    boundary = Boundary(
        "single:CUDA0", "q8_0", 2048, 5, 4, "out_of_memory", proven, {"ubatch": 2048}
    )
    (row,) = tuned.document(boundaries=[boundary])["boundary"]

    assert row == {
        "layout": "single:CUDA0", "cache_type": "q8_0", "ubatch": 2048, "n_cpu_moe": 5,
        "fits": 5, "fails": 4, "outcome": "out_of_memory", "proven": proven, "source": source,
        "params": {"ubatch": 2048},
    }  # fmt: skip
