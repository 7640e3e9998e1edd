"""The boundary and search phases: which candidates are launched before the best are confirmed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

from autofit.memory.boundary_search import BoundarySearch
from autofit.memory.demand import Memory
from autofit.runtime.server.request_plan import (
    FullContextCheck,
    RequestPlan,
    plan_fit_test,
    plan_measurement,
)
from autofit.search.feasibility import fit_probability
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy, SearchStep, share_boundary
from autofit.search.problem import Observation, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.events import BoundaryMoved, Listener, PhaseStarted
from autofit.session.layer_count import reported_host_layers
from autofit.session.requirement import total_shortfall
from autofit.session.runner import TrialRunner
from autofit.session.search_problem import token_seconds
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, Params
from autofit.trial.metric import Metric, cost, fastest_repeats, median_metric
from autofit.trial.outcome import Outcome, is_memory_failure, lacks_device_memory
from autofit.trial.purpose import Phase, TrialPurpose
from autofit.trial.trial import Trial

# Requests of one launch are cheap beside its load; two of each kind show their spread.
_REPEATS = 2
# How heavily a missed requirement weighs: twice the cost at a tenth missed.
_SHORTFALL_WEIGHT = 10.0
# Launches spent on what is best by one metric beside the objective.
_MOST_FOR_AN_END = 4
# A launch must promise this share of the smallest effect that counts.
_LEAST_GAIN_SHARE = 1 / 30


@dataclass(frozen=True, slots=True)
class Boundary:
    """One fit boundary: the fewest host layers that fit beside the most that do not.

    It holds for one `ubatch`: a smaller one may fit with fewer, a larger one need more.
    `params` are those of the candidate that fits.
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
        """The boundary as `tune --json` prints it."""
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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A point that was launched, its candidate and what came of it."""

    point: Point
    candidate: Candidate
    trial: Trial

    @property
    def line(self) -> tuple[str, str]:
        """Layout and cache type, by which boundaries are told."""
        cache_type = self.point.get("cache_type") or self.candidate.get_str("cache_type_k", "")
        return str(self.point.get(LAYOUT_AXIS, "")), str(cache_type)


@dataclass(slots=True)
class Explorer:
    """Launches points of a problem and remembers what they cost.

    `fill_of` tells when a launch of a candidate fills its context.
    """

    task: Task
    search: SearchStudy
    runner: TrialRunner
    emit: Listener
    fill_of: Callable[[Candidate], FullContextCheck | None] = lambda _: None
    launched: list[Evaluation] = field(default_factory=list)
    course: SearchPolicy = field(init=False)
    _proved: list[Evaluation] = field(default_factory=list)
    _has_fallen: bool = False
    _phase: Phase | None = None
    _seen: int = 0

    def __post_init__(self) -> None:
        self.course = SearchPolicy(self.search, self.task.min_effect * _LEAST_GAIN_SHARE)

    @property
    def problem(self) -> Problem:
        """What is searched."""
        return self.search.problem

    def want_only(self, is_wanted: Callable[[Point], bool]) -> None:
        """Go on with such points alone, whether the search was over or not."""
        self.search.restrict_to(is_wanted)
        self.course.restart()

    def trial_cost(self, trial: Trial, metric: Metric | None = None) -> float | None:
        """What a trial costs by a metric, None for the objective; None when it failed."""
        task = self.task
        metric = metric or task.objective
        if trial.measurement is None or not trial.is_completed:
            return None
        value = median_metric(
            fastest_repeats(trial.measurement, task.workload), task.workload, metric
        )
        return None if value is None else cost(value, metric)

    def tell(self, point: Point, trial: Trial) -> None:
        """Tell the search what a launch of a point showed."""
        if trial.shows_fit_only:
            self.course.add_fitting(point)
        else:
            self._tell(self.search, point, trial, self.task.objective)

    def _tell(self, search: SearchStudy, point: Point, trial: Trial, metric: Metric) -> None:
        workload = self.task.workload
        measured = trial.measurement if trial.is_completed else None
        fastest = fastest_repeats(measured, workload) if measured else None
        prompt_s, predicted_s = token_seconds(fastest, workload)
        search.add(
            Observation(
                point,
                self.trial_cost(trial, metric),
                lacked_memory(trial.outcome),
                trial.seconds,
                prompt_s,
                predicted_s,
            )
        )

    def tell_proof(self, point: Point, candidate: Candidate, trial: Trial) -> None:
        """Tell the search what a proof at full context showed of a point.

        One that ran may want memory of a device there; the search, if it goes on, does so
        without it and whatever needs as much. Of the host's memory others may have taken what
        was wanted: that tells of this one launch.
        """
        self._proved.append(Evaluation(point, candidate, trial))
        if trial.is_completed:
            self.course.add_fitting(point)
        elif lacks_device_memory(trial.outcome):
            self.search.add(Observation(point, None, "device", trial.seconds))
            self._has_fallen = True

    def expected_s(self) -> float:
        """How long the next launch will take, by those before."""
        seconds = [trial.seconds for trial in self.runner.trials]
        return median(seconds) if seconds else 0.0

    def explore(self, *, share: float = 1.0) -> None:
        """Follow the course of the search until it ends or that share of the budget does."""
        budget = self.runner.budget
        if self._has_fallen:
            self._has_fallen = False
            self.course.restart()
        if len(self.runner.trials) != self._seen:
            self._phase = None  # other phases came between
        while (step := self.course.next_step()) is not None:
            is_used = budget.share_used >= share
            if is_used or not budget.allows(step.phase, self.expected_s()):
                self.search.cancel()
                return
            if step.phase != self._phase:
                self._phase = step.phase
                self.emit(PhaseStarted(step.phase, budget.max_launches))
            self._launch(step)
            self._seen = len(self.runner.trials)

    def explore_end(self, metric: Metric, *, seed: int) -> None:
        """Look for what is best by another metric, knowing all launches before."""
        problem = replace(self.problem, goal=replace(self.problem.goal, objective=metric))
        search = SearchStudy(problem, seed=seed)
        for one in self.launched:
            if not one.trial.shows_fit_only:
                self._tell(search, one.point, one.trial, metric)
        for one in self._proved:
            if lacks_device_memory(one.trial.outcome):
                search.add(Observation(one.point, None, "device"))
        course = SearchPolicy(search, self.course.least_gain)
        for _ in range(_MOST_FOR_AN_END):
            step = course.next_step()
            if step is None or course.is_over:
                return
            if not self.runner.budget.allows("search", self.expected_s()):
                return
            before = len(self.launched)
            proposal = replace(step.proposal, why=f"for {metric}: {step.proposal.why}")
            self._launch(SearchStep("search", proposal))
            if len(self.launched) > before:
                self._tell(search, step.proposal.point, self.launched[-1].trial, metric)
            else:
                search.add(Observation(step.proposal.point, None))

    @property
    def ending(self) -> dict[str, object]:
        """Why the search ended, and what one more launch was expected to bring.

        `expected_gain` is the share by which the objective's time would fall, failure counted
        as none; None where no launch was left. `ended_by` is `gain` (not worth it any more),
        `stalled` (nothing better for long, whatever was promised), `space` (nothing left) or
        `budget`.
        """
        proposal = self.course.declined or self.course.last
        is_known = proposal is not None and math.isfinite(proposal.expected_gain)
        if not self.problem.has_points:
            ended_by = "space"  # all that is left was ruled out
        elif not self.course.is_over:
            ended_by = "budget"
        elif self.course.has_stalled:
            ended_by = "stalled"
        else:
            ended_by = "gain" if self.course.declined is not None else "space"
        return {
            "ended_by": ended_by,
            "expected_gain": -math.expm1(-proposal.expected_gain)
            if proposal is not None and is_known and ended_by != "space"
            else None,
            "least_gain": -math.expm1(-self.course.least_gain),
        }

    def _launch(self, step: SearchStep) -> None:
        point = step.proposal.point
        candidate = self.problem.candidate_of(point)
        if candidate is None:
            # The runtime refuses this combination: the search learns it without a launch.
            self.search.add(Observation(point, None))
            return
        trial = self.runner.run(
            TrialPurpose(step.phase, "explore", reason=step.proposal.why),
            candidate,
            self._effort(candidate, asks_fit_only=step.fit_only),
            layout=str(point.get(LAYOUT_AXIS, "")),
        )
        self.tell(point, trial)
        self.launched.append(Evaluation(point, candidate, trial))
        if step.phase == "boundary" and HOST_LAYERS_AXIS in point:
            walk = self.course.boundary_of(point)
            fits = self._told(point, walk.fits)
            fails = self._told(point, walk.fails, fits=False)
            ubatch = candidate.get_int("ubatch", 512)
            self.emit(BoundaryMoved(*self.launched[-1].line, fits, fails, ubatch))

    def _effort(self, candidate: Candidate, *, asks_fit_only: bool) -> RequestPlan:
        workload, ubatch = self.task.workload, candidate.get_int("ubatch", 512)
        if asks_fit_only:
            request_plan = plan_fit_test(workload, ubatch)
        else:
            request_plan = plan_measurement(
                workload,
                ubatch,
                repeats=_REPEATS,
                is_short=True,
                enough_s=self.runner.budget.repeat_limit_s,
            )
        return replace(request_plan, full_context_check=self.fill_of(candidate))

    def ranked(self) -> list[Evaluation]:
        """Every launch that may be picked, the best first, requirements kept before all others."""
        order = {
            tuple(sorted(seen.point.items())): place
            for place, seen in reversed(list(enumerate(self.search.ranked())))
        }
        ran = [
            (order[key], one)
            for one in self.launched
            if (key := tuple(sorted(one.point.items()))) in order
            and self.trial_cost(one.trial) is not None
        ]
        ran.sort(key=lambda at: (self._missed(at[1].trial) * _SHORTFALL_WEIGHT, at[0]))
        return [one for _, one in ran]

    def _missed(self, trial: Trial) -> float:
        task = self.task
        return total_shortfall(task.requirements, trial.measurement, task.workload)

    @property
    def boundaries(self) -> list[Boundary]:
        """The boundaries that launches touched, one for each layout and cache type."""
        found: dict[tuple[str, str], Boundary] = {}
        for one in (*self.ranked(), *self.launched):
            if HOST_LAYERS_AXIS in one.point and one.line not in found:
                found[one.line] = self._boundary(one)
        return list(found.values())

    def _boundary(self, one: Evaluation) -> Boundary:
        walk = self.course.boundary_of(one.point)
        fails = walk.fails
        if fails is None:
            fails = self._expected_to_fail(one.point, walk)
        failure = next(
            (
                other.trial.outcome.kind
                for other in (*self._proved, *self.launched)
                if share_boundary(other.point, one.point)
                and other.point[HOST_LAYERS_AXIS] == fails
                and lacked_memory(other.trial.outcome)
            ),
            None,
        )
        fitting = None
        if walk.fits is not None:
            fitting = self.problem.candidate_of({**one.point, HOST_LAYERS_AXIS: walk.fits})
        return Boundary(
            *one.line,
            ubatch=one.candidate.get_int("ubatch", 512),
            fits=self._told(one.point, walk.fits),
            fails=self._told(one.point, fails, fits=False),
            outcome=failure,
            proven=walk.is_closed,
            params=fitting.params if fitting else None,
        )

    def _told(self, point: Point, host_layers: int | None, *, fits: bool = True) -> int | None:
        """A number of host layers along a point's line as the launches' settings tell it."""
        return reported_host_layers(
            str(point.get(LAYOUT_AXIS, "")),
            host_layers,
            lambda n: self.problem.candidate_of({**point, HOST_LAYERS_AXIS: n}),
            self.task.inventory.units,
            fits=fits,
        )

    def _expected_to_fail(self, point: Point, walk: BoundarySearch) -> int | None:
        """The most host layers that probably do not fit, None where all should."""
        highest = walk.fits if walk.fits is not None else walk.most + 1
        for host_layers in range(highest - 1, -1, -1):
            if self.search.success_probability({**point, HOST_LAYERS_AXIS: host_layers}) < 0.5:  # noqa: PLR2004
                return host_layers
        return None

    def starting_candidates(self) -> list[Candidate]:
        """Of each layout the candidate where its boundary is expected."""
        rest = next(self.problem.space.points(), None)
        if rest is None:
            return []
        starts = [self._fewest({LAYOUT_AXIS: layout, **rest}) for layout in self.problem.layouts]
        return [candidate for candidate in starts if candidate is not None]

    def _fewest(self, partial: Point) -> Candidate | None:
        last = None
        for host_layers in range(self.problem.most_host_layers + 1):
            candidate = self.problem.candidate_of({**partial, HOST_LAYERS_AXIS: host_layers})
            if candidate is None:
                continue
            if fit_probability(self.problem.fit_of(candidate)) >= 0.5:  # noqa: PLR2004
                return candidate
            last = candidate
        return last


def lacked_memory(outcome: Outcome) -> Memory | None:
    """The memory that a launch failed for want of, None for any other outcome."""
    if lacks_device_memory(outcome):
        return "device"
    return "host" if is_memory_failure(outcome) else None
