"""The choice of finalists for the rounds, as the time allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from quality.simulated_answers import KvChanges
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import problem_of, runner
from trial.purpose_sample import purpose_of

from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.optuna_study import SearchStudy
from autofit.search.problem import Observation
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.session.budget import Budget
from autofit.session.events import PhaseStarted
from autofit.session.finalist import Finalist, baseline_finalist
from autofit.trial.outcome import Completed, Crashed
from autofit.trial.purpose import Role
from autofit.tune.explore import Exploration
from autofit.tune.prove import Prover
from autofit.tune.screen import SearchAgain, screen_leader, select_finalists

LAUNCH_S = 10.0
CRASH = Crashed("prompt", "the GPU was lost", "device_lost")


class Run:
    """A run whose launches take ten seconds each, and what chooses its finalists."""

    def __init__(self, about, folder, *, total_s=None, outcome_of=None, free_mib=900.0):
        self.problem = problem_of(about)
        self.launching = SimulatedLaunching(
            outcome_of=outcome_of or (lambda *_: Completed()),
            free_mib=free_mib,
            client_of=KvChanges({"q8_0": 0.3}),
        )
        self.runner = replace(runner(about, folder), launching=self.launching)
        self.runner.budget = Budget(self._now_s, total_s)
        self.events: list[object] = []
        self.runner.emit = self._on_event
        self.about = about
        evaluator = OutputEvaluator(self.runner, about, baseline_finalist(about))
        self.gate = QualityGate(evaluator, self.runner.note)
        search = SearchStudy(self.problem, seed=1)
        self.exploration = Exploration(about, self.runner, self.runner.memory, search, None)
        self.prover = Prover(about, self.runner, self.exploration)

    @property
    def notes(self) -> list[str]:
        """The notes for the user."""
        return self.runner.notes

    def _on_event(self, event: object) -> None:
        if isinstance(event, PhaseStarted):
            self.events.append(event)

    def select(self, finalists: list[Finalist]) -> list[Finalist] | SearchAgain:
        """Choose who enters the rounds."""
        return select_finalists(finalists, self.prover, self.gate)

    def screen_leader(self, finalists: list[Finalist]) -> SearchAgain | None:
        """Score the KV type of the first finalist."""
        return screen_leader(finalists, self.prover, self.gate)

    def _now_s(self) -> float:
        return LAUNCH_S * len(self.launching.made)

    def finalist(self, host_layers: int, kind: str) -> Finalist:
        """A finalist that the search has launched."""
        rest = next(p for p in self.problem.space.points() if p["cache_type"] == kind)
        layout = self.problem.layouts[0]
        point = {LAYOUT_AXIS: layout, HOST_LAYERS_AXIS: host_layers, **rest}
        found = Finalist(self.problem.candidate_of(point), layout, point)
        request_plan = plan_measurement(self.about.workload, 512, repeats=1)
        self.runner.run(purpose_of("search"), found.candidate, request_plan, layout=layout)
        return found

    def roles(self) -> list[Role]:
        """The roles of the launches after the search."""
        return [t.purpose.role for t in self.runner.trials if t.phase == "prove"]


@pytest.fixture
def run(about, tmp_path) -> Callable[..., Run]:
    """A run in a new study."""
    return lambda **options: Run(about, tmp_path / "study", **options)


def test_a_poor_kv_type_asks_to_search_again(run):
    """Once it is excluded, the wide type is left."""
    here = run()
    finalists = [here.finalist(4, "q8_0"), here.finalist(5, "f16"), here.finalist(5, "q8_0")]

    assert here.select(finalists) == SearchAgain(poor_kv=(("q8_0", "q8_0"),))
    assert here.select(finalists) == [finalists[1]]
    assert here.roles() == ["reference_answers", "answers"]
    assert here.events == [PhaseStarted("prove")]


def test_only_what_would_enter_the_rounds_is_scored(run):
    """A narrow type that is far behind costs no launch."""
    here = run()
    finalists = [here.finalist(n, "f16") for n in (4, 5)] + [here.finalist(6, "q8_0")]

    assert here.select(finalists) == finalists
    assert here.roles() == []


@pytest.mark.parametrize(("total_s", "is_scored"), [(200.0, True), (80.0, False)])
def test_no_score_takes_the_time_of_rounds(run, total_s, is_scored):
    """If time is short the winner's KV type is scored with its answers."""
    here = run(total_s=total_s)
    finalists = [here.finalist(4, "q8_0"), here.finalist(5, "f16")]

    selected = here.select(finalists)

    assert isinstance(selected, SearchAgain) is is_scored
    assert is_scored or selected == finalists
    assert bool(here.gate.scored) is is_scored


@pytest.mark.parametrize(("total_s", "is_scored"), [(400.0, True), (120.0, False)])
def test_an_early_score_takes_no_more_than_the_search_has_left(run, total_s, is_scored):
    """The search keeps time for launches."""
    here = run(total_s=total_s)
    finalists = [here.finalist(n, "q8_0") for n in (4, 5, 6, 7)]

    assert (here.screen_leader(finalists) is not None) is is_scored


def test_only_the_leaders_kv_type_is_scored_early(run):
    """A narrow type that does not lead is scored later."""
    here = run()

    assert here.screen_leader([]) is None
    assert here.screen_leader([here.finalist(4, "f16"), here.finalist(4, "q8_0")]) is None
    assert here.roles() == []


def test_a_tight_leader_is_not_scored_early(run):
    """It may die at full context."""
    here = run(free_mib=8.0)

    assert here.screen_leader([here.finalist(4, "q8_0")]) is None
    assert here.roles() == []


def _dies_below(host_layers: int):
    """Only proofs with fewer host layers fail."""

    def outcome_of(candidate, request_plan):
        is_small = candidate.get_int("n_cpu_moe", 99) < host_layers
        return NO_ROOM if request_plan.name == "prove" and is_small else Completed()

    return outcome_of


def test_the_best_out_of_memory_asks_to_search_again(run):
    """The search may find better than a step back; it is no finalist any more."""
    here = run(free_mib=8.0, outcome_of=_dies_below(12))
    finalists = [here.finalist(4, "f16"), here.finalist(12, "f16")]

    assert here.select(finalists) == SearchAgain()
    assert [(one.candidate, one.trial.outcome.kind) for one in here.exploration.proofs] == [
        (finalists[0].candidate, "out_of_memory")
    ]
    assert here.select(finalists) == here.select(finalists) == finalists[1:]
    assert len(here.roles()) == 2
    (note,) = here.notes
    assert "the fastest so far does not run at full context (out of memory" in note


@pytest.mark.parametrize("total_s", [None, 15.0])
def test_with_nothing_else_the_best_steps_back_until_it_runs(run, total_s):
    """It does at once if no time is left to search; its proof is launched once."""
    here = run(free_mib=8.0, outcome_of=_dies_below(6), total_s=total_s)
    first = here.finalist(4, "f16")

    if total_s is None:
        assert here.select([first]) == SearchAgain()
    for _ in range(2):
        (settled,) = here.select([first])
        assert settled.candidate.get_int("n_cpu_moe", 0) == 6
    assert here.prover.prove(settled).finalist == settled
    assert len(here.roles()) == 3
    assert here.notes[-1] == "stepped back 2 layers to run at full context"


def test_no_proof_is_launched_twice(run):
    """Without time to search, the best and its steps back fail before the next one."""
    here = run(free_mib=8.0, outcome_of=_dies_below(12), total_s=25.0)
    finalists = [here.finalist(4, "f16"), here.finalist(12, "f16")]

    assert here.select(finalists) == here.select(finalists) == finalists[1:]
    # The first and four steps back, then the one that runs.
    assert len(here.roles()) == 6
    (note,) = here.notes
    assert "a finalist does not run at full context, nor with more layers in system RAM" in note


def test_a_crash_at_full_context_is_noted(run):
    """It has no step back: more layers in system RAM would not help."""

    def outcome_of(candidate, request_plan):
        is_small = candidate.get_int("n_cpu_moe", 99) < 12
        return CRASH if request_plan.name == "prove" and is_small else Completed()

    here = run(free_mib=8.0, outcome_of=outcome_of)
    finalists = [here.finalist(4, "f16"), here.finalist(5, "f16"), here.finalist(12, "f16")]

    assert here.select(finalists) == here.select(finalists) == finalists[2:]
    assert here.notes == [
        f"#{number}: a finalist does not run at full context: crashed: the GPU was lost"
        for number in (4, 5)
    ]


def test_only_the_best_steps_back(run):
    """A slower finalist out of memory is dropped."""
    here = run(free_mib=8.0, outcome_of=_dies_below(7), total_s=60.0)
    finalists = [here.finalist(n, "f16") for n in (9, 4, 5)]

    assert here.select(finalists) == here.select(finalists) == finalists[:1]
    assert here.events == [PhaseStarted("prove")] * 3
    # The one that runs, and each of the others once.
    assert len(here.roles()) == 3
    assert len(set(here.notes)) == len(here.notes) == 2


def test_a_finalist_ruled_out_by_a_failure_is_not_launched(run):
    """The best steps back at once."""
    here = run(free_mib=8.0, outcome_of=_dies_below(6), total_s=25.0)
    finalists = [here.finalist(n, "f16") for n in (4, 5)]
    here.exploration.search.add(Observation(finalists[1].point, None, "device"))

    (settled,) = here.select(finalists)
    assert settled.candidate.get_int("n_cpu_moe", 0) == 6
    assert len(here.roles()) == 1
    assert here.notes == ["stepped back 2 layers to run at full context"]
