"""The boundary and search phases: they launch candidates as long as they expect a gain."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from autofit.memory.boundary_search import BoundarySearch
from autofit.memory.demand import Memory
from autofit.memory.memory_model import MemoryModel
from autofit.runtime.server.request_plan import RequestPlan, plan_fit_test, plan_measurement
from autofit.search.feasibility import fit_probability
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy, SearchStep, share_boundary
from autofit.search.problem import Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.budget_advice import first_shortage, tune_need
from autofit.session.candidate_factory import reported_host_layers
from autofit.session.events import BoundaryMoved, Incumbent, PhaseStarted
from autofit.session.finalist import Finalist
from autofit.session.requirement import total_shortfall
from autofit.session.runner import TrialRunner
from autofit.session.search_problem import token_seconds
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, Params
from autofit.trial.metric import Metric, cost, fastest_repeats, median_metric, time_ratio
from autofit.trial.outcome import Outcome, Rejected, is_memory_failure, lacks_device_memory
from autofit.trial.purpose import Phase, TrialPurpose
from autofit.trial.trial import Trial
from autofit.tune.baseline import find_baseline_point, without_flash_attention

if TYPE_CHECKING:  # the storage's libraries are heavy
    from autofit.fleet.shared_trials import SharedTrial
    from autofit.fleet.shared_tune import SharedTune

# A request is short compared with the load, so each is sent twice to show the spread.
_REPEATS = 2
# A missed requirement raises the cost: a miss by a tenth doubles it.
_SHORTFALL_WEIGHT = 10.0
# For a front each of these metrics gets a search of its own, with a few launches.
_FRONT_METRICS: tuple[Metric, ...] = ("pp", "tg")
_LAUNCHES_PER_FRONT_METRIC = 4
# A launch must have an expected gain of at least this share of the smallest effect that counts.
_LEAST_GAIN_SHARE = 1 / 3
_LIKELY = 0.5
_CONTRADICTION = (
    "the launches contradict what earlier studies showed about this machine, so the search goes "
    "on without that knowledge; if the machine has changed for good, delete the files that "
    "`autofit doctor` names"
)


def least_gain(task: Task) -> float:
    """Return the smallest expected decrease of log cost that is worth a launch."""
    return task.min_effect * _LEAST_GAIN_SHARE


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The evaluation of a point: the point and its trial.

    A trial does not store its point, because it outlives the search space of its run.
    """

    point: Point
    trial: Trial

    @property
    def candidate(self) -> Candidate:
        """The candidate of the point."""
        return self.trial.candidate

    @property
    def line(self) -> tuple[str, str]:
        """The layout and the cache type, which identify a boundary for users."""
        cache_type = self.point.get("cache_type") or self.candidate.get_str("cache_type_k", "")
        return str(self.point.get(LAYOUT_AXIS, "")), str(cache_type)


@dataclass(frozen=True, slots=True)
class Boundary:
    """A fit boundary in the result: the fewest host layers that fit, and the most that do not.

    It is valid for one `ubatch`: a smaller ubatch may need fewer host layers, and a larger one
    more. `params` are the settings of the candidate that fits. `proven` means that launches
    showed both sides.
    """

    layout: str
    cache_type: str
    ubatch: int
    fits: int | None
    fails: int | None
    outcome: str | None
    proven: bool
    params: Params | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the boundary as `tune --json` prints it."""
        return {
            "layout": self.layout,
            "cache_type": self.cache_type,
            "ubatch": self.ubatch,
            "n_cpu_moe": self.fits,
            "fits": self.fits,
            "fails": self.fails,
            "outcome": self.outcome,
            "proven": self.proven,
            "source": "launch" if self.proven else "estimate",
            "params": dict(self.params) if self.params is not None else None,
        }


@dataclass(slots=True)
class Exploration:
    """The exploration of the search space by the boundary and search phases.

    Attributes:
        task: the task.
        runner: launches the candidates.
        memory: predicts which launches should also fill the context.
        search: the points, and the observations of them.
        baseline: the trial of the baseline, which need not be a point of the space; None until
            it is measured. Only workers of a shared tune search without it.
        policy: decides what to launch next, and when the search ends.
        evaluations: the launches of both phases, in order.
        proofs: the launches of points of the space at full context.
    """

    task: Task
    runner: TrialRunner
    memory: MemoryModel
    search: SearchStudy
    baseline: Trial | None = None
    policy: SearchPolicy = field(init=False)
    evaluations: list[Evaluation] = field(default_factory=list)
    proofs: list[Evaluation] = field(default_factory=list)
    _incumbent_cost: float = math.inf
    _is_reopened: bool = False
    _has_dropped_knowledge: bool = False
    _shown_phase: Phase | None = None
    _trials_before: int = 0

    def __post_init__(self) -> None:
        self.policy = SearchPolicy(self.search, least_gain(self.task))

    @property
    def problem(self) -> Problem:
        """The search problem."""
        return self.search.problem

    # ---- launches

    def begin(self, baseline: Trial) -> None:
        """Exclude what the baseline excludes, and add it if it is a point of the space."""
        self.baseline = baseline
        self.task = without_flash_attention(self.task, baseline)
        if self.shared is None:
            self.search.search_in(self.task.space)
        else:  # other workers have launched points of the whole space
            axes = {axis.name: axis.values for axis in self.task.space.axes}
            self._restrict_to(lambda point: all(point[name] in axes[name] for name in axes))
        point = find_baseline_point(self.task, self.problem, baseline)
        if baseline.is_completed and point is not None:
            self.add(point, baseline)

    def search_until(self, share: float) -> None:
        """Launch what the policy proposes, until it ends or a share of the budget is used."""
        while self.launch_next(share):
            pass

    def launch_next(self, share: float = 1.0) -> bool:
        """Make the next launch of the search; return False at its end, or if none may be made."""
        budget = self.runner.budget
        if self._is_reopened:
            self._is_reopened = False
            self.policy.restart()
        if len(self.runner.trials) != self._trials_before:
            self._shown_phase = None  # another phase has made launches since then
        step = self._next_step()
        if step is None:
            return False
        is_used = budget.share_used >= share or self._is_used_by_pending()
        if is_used or not budget.allows(step.phase, self._expected_launch_s()):
            self.search.cancel()
            return False
        if step.phase != self._shown_phase:
            self._shown_phase = step.phase
            self.runner.emit(PhaseStarted(step.phase, budget.max_launches))
        self._launch(step)
        self._trials_before = len(self.runner.trials)
        return True

    def _next_step(self) -> SearchStep | None:
        """Return the next launch; wait if launches of other workers can show that one is worth it.

        None is the end of the search.
        """
        step = self.policy.next_step() if self.shared is None else None
        while self.shared is not None:
            self.take_shared()
            step = self.policy.next_step()
            if step is not None or not self.shared.pending:
                break
            while not self.take_shared():
                self.shared.wait("the launches of other workers")
        return step

    def _is_used_by_pending(self) -> bool:
        """Return whether other workers make all launches that the budget still has."""
        budget, pending = self.runner.budget, len(self.search.pending)
        return budget.max_launches is not None and budget.launches + pending >= budget.max_launches

    def search_front(self, seed: int) -> None:
        """Search for the best prompt speed, then for the best generation speed."""
        for metric in _FRONT_METRICS:
            self._search_for(metric, seed)

    def _search_for(self, metric: Metric, seed: int) -> None:
        """Search for the best value of another metric, with all observations so far."""
        problem = replace(self.problem, goal=replace(self.problem.goal, objective=metric))
        search = SearchStudy(problem, seed=seed)
        for one in self.evaluations:
            if not one.trial.shows_fit_only:
                self._observe(search, one.point, one.trial, metric)
        for one in self.proofs:
            if lacks_device_memory(one.trial.outcome):
                search.add(Observation(one.point, None, "device"))
        policy = SearchPolicy(search, self.policy.least_gain)
        for _ in range(_LAUNCHES_PER_FRONT_METRIC):
            step = policy.next_step()
            if step is None or policy.is_over:
                return
            if not self.runner.budget.allows("search", self._expected_launch_s()):
                return
            proposal = replace(step.proposal, why=f"for {metric}: {step.proposal.why}")
            trial = self._launch(SearchStep("search", proposal))
            if trial is None and self.problem.candidate_of(proposal.point) is None:
                search.add(Observation(step.proposal.point, None))
            elif trial is not None:
                self._observe(search, step.proposal.point, trial, metric)

    def _launch(self, step: SearchStep) -> Trial | None:
        """Launch the candidate of a step.

        Return None if the runtime refuses the combination, or another worker launches it.
        """
        point = step.proposal.point
        candidate = self.problem.candidate_of(point)
        if candidate is None:
            self.search.add(Observation(point, None))
            return None
        purpose = TrialPurpose(step.phase, "explore", reason=step.proposal.why)
        if self.shared is not None and not self.shared.claim(point, purpose):
            self.search.cancel()
            return None
        trial = self.runner.run(
            purpose,
            candidate,
            self._request_plan(candidate, is_fit_test=step.fit_only),
            layout=str(point.get(LAYOUT_AXIS, "")),
        )
        self._warn_of_small_budget()
        self._evaluate(point, trial)
        return trial

    def _evaluate(self, point: Point, trial: Trial) -> None:
        self._report_incumbent(trial)
        self.add(point, trial)
        if not self._has_dropped_knowledge and self.search.contradicts_knowledge:
            self._has_dropped_knowledge = True
            self.runner.note(_CONTRADICTION)
        self.evaluations.append(Evaluation(point, trial))
        if trial.phase == "boundary" and HOST_LAYERS_AXIS in point:
            self._report_boundary(self.evaluations[-1])

    def _request_plan(self, candidate: Candidate, *, is_fit_test: bool) -> RequestPlan:
        workload, ubatch = self.task.workload, candidate.get_int("ubatch", 512)
        if is_fit_test:
            plan = plan_fit_test(workload, ubatch)
        else:
            plan = plan_measurement(
                workload,
                ubatch,
                repeats=_REPEATS,
                is_short=True,
                enough_s=self.runner.budget.repeat_limit_s,
            )
        return replace(plan, full_context_check=self.memory.full_context_check(candidate))

    def _expected_launch_s(self) -> float:
        seconds = [trial.seconds for trial in self.runner.trials]
        return median(seconds) if seconds else 0.0

    # ---- other workers of a shared tune

    @property
    def shared(self) -> SharedTune | None:
        """The trials of other workers, or None if the tune is not shared."""
        return self.runner.shared

    def take_shared(self) -> bool:
        """Take what other workers have measured; return whether anything is new."""
        shared, before = self.runner.shared, self.search.pending
        if shared is None:
            return False
        shared.read()
        is_new = False
        for one in shared.take():
            is_new = True
            self._take(one, is_own=one.worker == shared.worker)
        for point in shared.take_crashed():
            self.search.add(Observation(point, None))
        self.search.pending = shared.pending
        self.policy.workers = shared.worker_count
        return is_new or before != shared.pending

    def _take(self, one: SharedTrial, *, is_own: bool) -> None:
        """Take a trial of another worker, or of an earlier run of this one."""
        trial = one.trial
        if trial.purpose.role == "explore" and one.point:
            self.runner.take(trial, earlier_s=trial.spent_s if is_own else 0.0)
            self._evaluate(one.point, trial)
        elif trial.purpose.role == "baseline" and self.baseline is None:
            self.begin(trial)
        elif trial.purpose.role == "proof" and not is_own:
            known = (e.point for e in self.evaluations if e.candidate == trial.candidate)
            self.add_proof(Finalist(trial.candidate, trial.layout, next(known, None)), trial)

    # ---- observations

    def add(self, point: Point, trial: Trial) -> None:
        """Add the launch of a point to the observations."""
        if trial.shows_fit_only:
            self.policy.add_fitting(point)
        else:
            self._observe(self.search, point, trial, self.task.objective)

    def add_proof(self, finalist: Finalist, trial: Trial) -> None:
        """Add the proof of a finalist to the observations, if it is a point of the space.

        A point that ran before may run out of device memory at full context. A continued search
        then excludes this point and all points that need at least as much. A lack of host memory
        may be due to other programs, so it excludes no other point.
        """
        point = finalist.point
        if point is None:
            return
        self.proofs.append(Evaluation(point, trial))
        if trial.is_completed:
            self.policy.add_fitting(point)
        elif lacks_device_memory(trial.outcome):
            self.search.add(Observation(point, None, "device", trial.seconds))
            self._is_reopened = True

    def exclude(self, is_excluded: Callable[[Candidate], bool]) -> None:
        """Exclude some candidates and continue the search, even if it had ended."""
        space = self.problem.space
        self._restrict_to(lambda point: not is_excluded(Candidate(space.params_of(point))))
        self.policy.restart()

    def _restrict_to(self, is_eligible: Callable[[Point], bool]) -> None:
        before = self.problem.is_eligible
        self.search.restrict_to(lambda point: before(point) and is_eligible(point))

    def _observe(self, search: SearchStudy, point: Point, trial: Trial, metric: Metric) -> None:
        workload = self.task.workload
        measured = trial.measurement if trial.is_completed else None
        fastest = fastest_repeats(measured, workload) if measured else None
        prompt_s, predicted_s = token_seconds(fastest, workload)
        search.add(
            Observation(
                point,
                self._trial_cost(trial, metric),
                lacking_memory(trial.outcome),
                trial.seconds,
                prompt_s,
                predicted_s,
                is_refused_combination(trial.outcome),
            )
        )

    def _trial_cost(self, trial: Trial, metric: Metric) -> float | None:
        """Return the cost of a trial in a metric, or None if it failed or measured nothing."""
        if trial.measurement is None or not trial.is_completed:
            return None
        workload = self.task.workload
        value = median_metric(fastest_repeats(trial.measurement, workload), workload, metric)
        return None if value is None else cost(value, metric)

    # ---- results

    def is_ruled_out(self, finalist: Finalist) -> bool:
        """Return whether a finalist needs at least as much device memory as one that failed."""
        return finalist.point is not None and self.search.is_ruled_out(finalist.point)

    def finalists(self) -> list[Finalist]:
        """Return the candidates that ran and may be recommended, the best first.

        Of near copies only the best is a finalist: rounds could not distinguish them, and would
        take a launch of each.
        """
        found: list[Evaluation] = []
        for one in self.ranked():
            if not any(self.search.is_near_copy(one.point, other.point) for other in found):
                found.append(one)
        return [
            Finalist(one.candidate, str(one.point.get(LAYOUT_AXIS, "")), one.point)
            for one in found
        ]

    def ranked(self) -> list[Evaluation]:
        """Return the launches of permitted candidates, the best first; requirements count most."""
        order = {
            tuple(sorted(seen.point.items())): rank
            for rank, seen in reversed(list(enumerate(self.search.ranked())))
        }
        ran = [
            (order[key], one)
            for one in self.evaluations
            if (key := tuple(sorted(one.point.items()))) in order
            and self._trial_cost(one.trial, self.task.objective) is not None
        ]
        ran.sort(key=lambda pair: (self._shortfall(pair[1].trial) * _SHORTFALL_WEIGHT, pair[0]))
        return [one for _, one in ran]

    def _shortfall(self, trial: Trial) -> float:
        task = self.task
        return total_shortfall(task.requirements, trial.measurement, task.workload)

    @property
    def ending(self) -> dict[str, object]:
        """The reason why the search ended, and the expected gain of one more launch.

        `expected_gain` is a share of the objective's time, in which failures count as no gain. It
        is None if no launch was left. `ended_by` is `gain` (hardly any gain expected), `stalled`
        (some, but too little after that many launches), `space` (nothing left) or `budget`.
        """
        proposal = self.policy.declined or self.policy.last
        is_known = proposal is not None and math.isfinite(proposal.expected_gain)
        if not self.problem.has_points:
            ended_by = "space"  # all remaining points were excluded
        elif not self.policy.is_over:
            ended_by = "budget"
        elif self.policy.has_stalled:
            ended_by = "stalled"
        else:
            ended_by = "gain" if self.policy.declined is not None else "space"
        return {
            "ended_by": ended_by,
            "expected_gain": -math.expm1(-proposal.expected_gain)
            if proposal is not None and is_known and ended_by != "space"
            else None,
            "least_gain": -math.expm1(-self.policy.least_gain),
        }

    @property
    def boundaries(self) -> list[Boundary]:
        """The boundaries that launches approached, one for each layout and cache type."""
        found: dict[tuple[str, str], Boundary] = {}
        for one in (*self.ranked(), *self.evaluations):
            if HOST_LAYERS_AXIS in one.point and one.line not in found:
                found[one.line] = self._boundary(one)
        return list(found.values())

    def _boundary(self, one: Evaluation) -> Boundary:
        walk = self.policy.boundary_of(one.point)
        fails = walk.fails
        if fails is None:
            fails = self._expected_to_fail(one.point, walk)
        failure = next(
            (
                other.trial.outcome.kind
                for other in (*self.proofs, *self.evaluations)
                if share_boundary(other.point, one.point)
                and other.point[HOST_LAYERS_AXIS] == fails
                and lacking_memory(other.trial.outcome)
            ),
            None,
        )
        fitting = None
        if walk.fits is not None:
            fitting = self.problem.candidate_of({**one.point, HOST_LAYERS_AXIS: walk.fits})
        return Boundary(
            *one.line,
            ubatch=one.candidate.get_int("ubatch", 512),
            fits=self._reported_layers(one.point, walk.fits),
            fails=self._reported_layers(one.point, fails, fits=False),
            outcome=failure,
            proven=walk.is_closed,
            params=fitting.params if fitting else None,
        )

    def _reported_layers(
        self, point: Point, host_layers: int | None, *, fits: bool = True
    ) -> int | None:
        """Convert a count of host layers to the value in the settings of launches."""
        return reported_host_layers(
            str(point.get(LAYOUT_AXIS, "")),
            host_layers,
            lambda n: self.problem.candidate_of({**point, HOST_LAYERS_AXIS: n}),
            self.task.inventory.units,
            fits=fits,
        )

    def _expected_to_fail(self, point: Point, walk: BoundarySearch) -> int | None:
        """Return the most host layers that probably do not fit, or None if all probably fit."""
        highest = walk.fits if walk.fits is not None else walk.most + 1
        for host_layers in range(highest - 1, -1, -1):
            if self.search.success_probability({**point, HOST_LAYERS_AXIS: host_layers}) < _LIKELY:
                return host_layers
        return None

    def expected_boundaries(self) -> list[Candidate]:
        """Return the candidate at the predicted fit boundary of each layout."""
        rest = next(self.problem.space.points(), None)
        if rest is None:
            return []
        found = [self._fewest({LAYOUT_AXIS: layout, **rest}) for layout in self.problem.layouts]
        return [candidate for candidate in found if candidate is not None]

    def _fewest(self, partial: Point) -> Candidate | None:
        """Return the candidate with the fewest host layers that probably fits, or the last."""
        last = None
        for host_layers in range(self.problem.most_host_layers + 1):
            candidate = self.problem.candidate_of({**partial, HOST_LAYERS_AXIS: host_layers})
            if candidate is None:
                continue
            if fit_probability(self.problem.fit_of(candidate)) >= _LIKELY:
                return candidate
            last = candidate
        return last

    # ---- messages to the user

    def report_best_remaining(self) -> None:
        """Report the best launch that remains after the best so far was excluded."""
        self._incumbent_cost = math.inf
        for one in self.ranked()[:1]:
            self._report_incumbent(one.trial)

    def _report_incumbent(self, trial: Trial) -> None:
        """Report a launch that is better than all earlier ones."""
        task, metric = self.task, self.task.objective
        value = median_metric(trial.measurement, task.workload, metric)
        if not trial.is_completed or value is None or cost(value, metric) >= self._incumbent_cost:
            return
        self._incumbent_cost = cost(value, metric)
        measured = self.baseline.measurement if self.baseline else None
        reference = median_metric(measured, task.workload, metric)
        gain = time_ratio(reference, value, metric) if reference else None
        self.runner.emit(Incumbent(trial.number, trial.candidate, metric, value, gain))

    def _report_boundary(self, one: Evaluation) -> None:
        walk = self.policy.boundary_of(one.point)
        fits = self._reported_layers(one.point, walk.fits)
        fails = self._reported_layers(one.point, walk.fails, fits=False)
        ubatch = one.candidate.get_int("ubatch", 512)
        self.runner.emit(BoundaryMoved(*one.line, fits, fails, ubatch))

    def _warn_of_small_budget(self) -> None:
        """Warn of a small budget after the first completed launch, usually the baseline."""
        budget, workload = self.runner.budget, self.task.workload
        text = first_shortage(
            self.runner.trials,
            budget,
            lambda first: tune_need(first, workload, budget.max_launches),
        )
        if text:
            self.runner.note(text)


def is_refused_combination(outcome: Outcome) -> bool:
    """Return whether the runtime accepts the settings of a launch, but not together."""
    return isinstance(outcome, Rejected) and outcome.reason == "combination"


def lacking_memory(outcome: Outcome) -> Memory | None:
    """Return the memory that a launch lacked, or None for any other outcome."""
    if lacks_device_memory(outcome):
        return "device"
    return "host" if is_memory_failure(outcome) else None
