"""One search of a simulated machine, counted launch by launch."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field, replace

from fakes.physics import Simulation

from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Observation, PastStudy
from autofit.search.space import Point
from autofit.session.rounds import Contender, run_rounds
from autofit.session.search_problem import token_seconds
from autofit.statistics.stopping_rule import StoppingRule
from autofit.trial.candidate import Candidate
from autofit.trial.metric import fastest_repeats, median_metric
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial
from autofit.tune.explore import is_refused_combination, lacking_memory
from benchmarks.search_machine import SearchMachine
from benchmarks.search_rivals import STRATEGIES

GOOD_ENOUGH = 0.98
MOST_LAUNCHES = 200
# Contenders of the rounds without the baseline, as in a tune.
_CONTENDERS = 2


@dataclass(slots=True)
class Outcome:
    """The result of a search.

    Attributes:
        reached: launches until the pick was within 2% of the optimum, None if never.
        launches: all of them, the baseline included.
        failures: those that failed for lack of memory, until then.
        share: the optimum's time over that of the last pick.
        confirmed: the same of the pick after the confirmation.
        equal: launches that were equal to an earlier one, the search's and the boundary's.
        same_placement: those at a placement that was launched before, with whatever settings.
        contradicted: launches of the search until it dropped what earlier studies had shown.
        seconds: own computing for each proposal; of the first seed, which knows nothing of
            the machine from searches before, and of no other.
    """

    reached: int | None = None
    launches: int = 0
    failures: int = 0
    share: float = 0.0
    confirmed: float = 0.0
    equal: int = 0
    same_placement: int = 0
    contradicted: int | None = None
    seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Session:
    """The launches of one search, from the baseline on."""

    machine: SearchMachine
    best_s: float
    seed: int
    outcome: Outcome = field(default_factory=Outcome)
    simulation: Simulation = field(init=False)
    baseline_cost: float | None = field(init=False)
    baseline_truth: float | None = field(init=False)
    _seen: set[tuple] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.simulation = self.machine.simulation.with_seed(self.seed)
        trial = self.launch(self.machine.task.baseline, "baseline")
        self.baseline_cost = self.cost(trial)
        self.baseline_truth = self.machine.fitted_truth()
        self.pick(None, None)

    def launch(self, candidate: Candidate, phase: Phase, *, asks_fit_only: bool = False) -> Trial:
        """Launch and count."""
        self.outcome.launches += 1
        if phase != "baseline":
            self._count_repeats(candidate, asks_fit_only=asks_fit_only)
        trial = self.machine.launch(
            self.simulation,
            candidate,
            number=self.outcome.launches,
            phase=phase,
            asks_fit_only=asks_fit_only,
        )
        if self.outcome.reached is None and lacking_memory(trial.outcome) is not None:
            self.outcome.failures += 1
        return trial

    def _count_repeats(self, candidate: Candidate, *, asks_fit_only: bool) -> None:
        """Count a launch that repeats a placement, or an earlier launch as a whole."""
        placement = self.machine.placement_key(candidate)
        others = {k: v for k, v in candidate.params.items() if k not in PLACEMENT_PARAMS}
        whole = (placement, asks_fit_only, *sorted(others.items()))
        self.outcome.same_placement += placement in self._seen
        self.outcome.equal += whole in self._seen
        self._seen |= {placement, whole}

    def cost(self, trial: Trial) -> float | None:
        """Return the seconds of a request as a tune's search gets them, None if it failed."""
        if trial.measurement is None or not trial.is_completed:
            return None
        workload = self.machine.task.workload
        return median_metric(fastest_repeats(trial.measurement, workload), workload, "request_s")

    def pick(self, candidate: Candidate | None, cost: float | None) -> None:
        """Record the current pick: this candidate, or the baseline where it was faster."""
        truth = self.machine.truth(candidate) if candidate is not None else None
        if self.baseline_cost is not None and (cost is None or self.baseline_cost < cost):
            truth = self.baseline_truth
        self.outcome.share = self.best_s / truth if truth else 0.0
        if self.outcome.reached is None and self.outcome.share >= GOOD_ENOUGH:
            self.outcome.reached = self.outcome.launches


def run_autofit(
    machine: SearchMachine,
    best_s: float,
    seed: int,
    past_studies: tuple[PastStudy, ...] = (),
    trials: list[Trial] | None = None,
) -> Outcome:
    """The search of a tune: it ends by its own rule; then the confirmation.

    Its launches are added to `trials`.
    """
    session = Session(machine, best_s, seed)
    is_timed = seed == 0
    memory = machine.memory_model(is_cold=is_timed)
    problem = machine.problem(memory, is_cold=is_timed)
    problem = replace(problem, past_studies=past_studies)
    study = SearchStudy(problem, seed=seed)
    course = SearchPolicy(study)
    workload = machine.task.workload
    while session.outcome.launches < MOST_LAUNCHES:
        began = time.process_time()
        step = course.next_step()
        if is_timed:
            session.outcome.seconds.append(time.process_time() - began)
        if step is None:
            break
        point = step.proposal.point
        candidate = problem.candidate_of(point)
        assert candidate is not None
        trial = session.launch(candidate, step.phase, asks_fit_only=step.fit_only)
        memory.observe(trial)
        if trials is not None:
            trials.append(trial)
        if trial.shows_fit_only:
            course.add_fitting(point)
            continue
        measured = trial.measurement if trial.is_completed else None
        fastest = fastest_repeats(measured, workload) if measured else None
        prompt_s, predicted_s = token_seconds(fastest, workload)
        study.add(
            Observation(
                point,
                session.cost(trial),
                lacking_memory(trial.outcome),
                trial.seconds,
                prompt_s,
                predicted_s,
                is_refused_combination(trial.outcome),
            )
        )
        if session.outcome.contradicted is None and study.contradicts_knowledge:
            session.outcome.contradicted = len(study.observations)
        ranked = study.ranked()
        if ranked:
            session.pick(problem.candidate_of(ranked[0].point), ranked[0].cost)
    session.outcome.confirmed = _confirmed(session, study)
    return session.outcome


def _confirmed(session: Session, study: SearchStudy) -> float:
    """Return the speed of the rounds' winner as a share of the optimum."""
    finalists: list[Observation] = []
    for seen in study.ranked():
        if not any(study.is_near_copy(seen.point, other.point) for other in finalists):
            finalists.append(seen)
    candidates: dict[str, Candidate] = {}
    for seen in finalists:
        candidate = study.problem.candidate_of(seen.point)
        candidates.setdefault(candidate.key, candidate)
    machine = session.machine
    contenders = []
    if session.baseline_cost is not None:
        contenders.append(machine.task.baseline)
    contenders += list(candidates.values())[:_CONTENDERS]
    if not contenders:
        return 0.0

    def contender(candidate: Candidate) -> Contender:
        phase: Phase = "baseline" if candidate == machine.task.baseline else "confirm"
        return Contender(
            candidate.key,
            lambda number: machine.launch(
                session.simulation, candidate, number=number, phase=phase
            ),
        )

    found = run_rounds(
        [contender(candidate) for candidate in contenders],
        workload=machine.task.workload,
        metric="request_s",
        rng=random.Random(session.seed),
        rule=StoppingRule(min_effect=machine.task.min_effect),
        has_baseline=session.baseline_cost is not None,
    )
    if found.winner == machine.task.baseline.key:
        truth = session.baseline_truth
    else:
        truth = machine.truth(candidates[found.winner]) if found.winner else None
    return session.best_s / truth if truth else 0.0


def run_rival(machine: SearchMachine, best_s: float, seed: int, name: str) -> Outcome:
    """A rival's search until it is good enough; it picks what it measured as the fastest."""
    session = Session(machine, best_s, seed)
    memory = machine.memory_model()
    problem = machine.problem(memory)
    search = STRATEGIES[name](problem, seed)
    best: tuple[float, Point] = (math.inf, {})
    point = next(search, None)
    while (
        point is not None
        and session.outcome.reached is None
        and session.outcome.launches < MOST_LAUNCHES
    ):
        candidate = problem.candidate_of(point)
        assert candidate is not None
        trial = session.launch(candidate, "search")
        memory.observe(trial)
        cost = session.cost(trial)
        if cost is not None and cost < best[0]:
            best = (cost, point)
            session.pick(candidate, cost)
        try:
            point = search.send(cost)
        except StopIteration:
            break
    return session.outcome
