"""The boundary and search phases: which candidates are launched before the best are confirmed."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from autofit.errors import AutofitError
from autofit.runtime.effort import measuring_effort
from autofit.search.boundary import BoundarySearch
from autofit.search.fit_belief import fit_probability
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.search.study import SearchStudy
from autofit.trial.candidate import Candidate
from autofit.trial.metric import cost, median_metric
from autofit.trial.outcome import is_memory_failure
from autofit.trial.trial import Phase, Trial
from autofit.tuning.event import BoundaryMoved, Listener, PhaseStarted
from autofit.tuning.requirement import total_shortfall
from autofit.tuning.runner import TrialRunner
from autofit.tuning.situation import Situation

# Requests of one launch are cheap beside its load; two of each kind show their spread.
_REPEATS = 2
# An estimate this sure that one host layer less does not fit is believed without a launch.
_SURE_NOT_TO_FIT = 0.03
# How heavily a missed requirement weighs: twice the cost at a tenth missed.
_SHORTFALL_WEIGHT = 10.0
# No stop before that many launches say something about the axes that usually matter.
_LEAST_SEARCH_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Boundary:
    """One fit boundary: the fewest host layers that fit beside the most that do not."""

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None
    outcome: str | None
    proven: bool

    def to_dict(self) -> dict[str, object]:
        """The boundary as `tune --json` prints it."""
        return {
            "layout": self.layout,
            "cache_type": self.cache_type,
            "n_cpu_moe": self.fits,
            "fits": self.fits,
            "fails": self.fails,
            "outcome": self.outcome,
            "proven": self.proven,
            "source": "launch" if self.proven else "estimate",
        }


@dataclass(slots=True)
class Explorer:
    """Launches points of a problem and remembers what they cost."""

    situation: Situation
    problem: Problem
    search: SearchStudy
    runner: TrialRunner
    emit: Listener
    boundaries: list[Boundary] = field(default_factory=list)
    by_point: list[tuple[Point, Candidate, Trial]] = field(default_factory=list)
    _refused: int = 0

    def trial_cost(self, trial: Trial) -> float | None:
        """What a trial costs, missed requirements included; None when it failed."""
        situation = self.situation
        value = median_metric(trial.measurement, situation.workload, situation.objective)
        if value is None or not trial.is_completed:
            return None
        missed = total_shortfall(situation.requirements, trial.measurement, situation.workload)
        return cost(value, situation.objective) * (1.0 + _SHORTFALL_WEIGHT * missed)

    def launch_point(self, phase: Phase, point: Point, purpose: str) -> Trial:
        """Launch a point and tell the search."""
        candidate = self.problem.candidate_of(point)
        if candidate is None:
            raise AutofitError(f"no candidate for {dict(point)}", "this is a fault of the space")
        ubatch = candidate.get_int("ubatch", 512)
        trial = self.runner.run(
            phase,
            candidate,
            measuring_effort(self.situation.workload, ubatch, repeats=_REPEATS),
            layout=str(point.get(LAYOUT_AXIS, "")),
            purpose=purpose,
        )
        self.search.tell(
            point,
            self.trial_cost(trial),
            is_memory=is_memory_failure(trial.outcome),
            seconds=trial.seconds,
        )
        self.by_point.append((point, candidate, trial))
        return trial

    def expected_s(self) -> float:
        """How long the next launch will take, by those before."""
        seconds = [trial.seconds for trial in self.runner.trials]
        return median(seconds) if seconds else 0.0

    def find_boundary(self) -> None:
        """Bisect the boundary that the tune leans on: the likeliest layout, the first values."""
        start = self._starting_point()
        if start is None:
            return
        self.emit(PhaseStarted("boundary", self.runner.budget.max_launches))
        layout = str(start[LAYOUT_AXIS])
        cache_type = str(start.get("cache_type", ""))
        search = BoundarySearch(
            most=self.problem.most_host_layers,
            guess=int(start[HOST_LAYERS_AXIS]),
            zero_is_apart=not layout.startswith("single"),
        )
        failure: Trial | None = None
        while (host_layers := search.next_value()) is not None:
            point = {**start, HOST_LAYERS_AXIS: host_layers}
            candidate = self.problem.candidate_of(point)
            if candidate is None:
                break
            if search.fits is not None and self._is_sure_to_fail(candidate):
                break
            if not self.runner.budget.allows("boundary", self.expected_s()):
                break
            trial = self.launch_point(
                "boundary", point, f"do {host_layers} host layers fit ({layout}, {cache_type})?"
            )
            if not trial.is_completed and not is_memory_failure(trial.outcome):
                break
            if not trial.is_completed:
                failure = trial
            search = search.told(host_layers, fitted=trial.is_completed)
            self.emit(BoundaryMoved(layout, cache_type, search.fits, search.fails))
        self.boundaries.append(
            Boundary(
                layout,
                cache_type,
                search.fits,
                search.fails if search.fails is not None else _below(search.fits),
                failure.outcome.kind if failure else None,
                search.is_closed,
            )
        )

    def explore(self) -> None:
        """Launch what promises most until the promise is under the noise or the budget ends."""
        self.emit(PhaseStarted("search", self.runner.budget.max_launches))
        launches = 0
        while self.runner.budget.allows("search", self.expected_s()):
            proposal = self.search.ask()
            if proposal is None:
                return
            is_small = proposal.expected_gain < self.situation.min_effect / 2
            if is_small and launches >= _LEAST_SEARCH_LAUNCHES:
                self.search.drop()
                return
            self.launch_point("search", proposal.point, proposal.why)
            launches += 1

    def ranked(self) -> list[tuple[Point, Candidate, Trial]]:
        """Every point that ran, the cheapest first, requirements kept before all others."""
        found = [
            (trial_cost, point, candidate, trial)
            for point, candidate, trial in self.by_point
            if (trial_cost := self.trial_cost(trial)) is not None
        ]
        found.sort(key=lambda entry: entry[0])
        return [entry[1:] for entry in found]

    def _is_sure_to_fail(self, candidate: Candidate) -> bool:
        fit = self.problem.fit_of(candidate)
        return fit is not None and fit_probability(fit) < _SURE_NOT_TO_FIT

    def _starting_point(self) -> Point | None:
        """The fewest host layers that should fit, over all layouts, with the first values."""
        return min(self._starts(), key=lambda point: int(point[HOST_LAYERS_AXIS]), default=None)

    def starting_candidates(self) -> list[Candidate]:
        """Of each layout the candidate where its boundary is expected."""
        made = [self.problem.candidate_of(point) for point in self._starts()]
        return [candidate for candidate in made if candidate is not None]

    def _starts(self) -> list[Point]:
        rest = next(self.problem.space.points(), None)
        if rest is None:
            return []
        return [
            found
            for layout in self.problem.layouts
            if (found := self._fewest({LAYOUT_AXIS: layout, **rest})) is not None
        ]

    def _fewest(self, partial: Point) -> Point | None:
        most = self.problem.most_host_layers
        for host_layers in range(most + 1):
            point = {**partial, HOST_LAYERS_AXIS: host_layers}
            candidate = self.problem.candidate_of(point)
            if candidate is None:
                continue
            if fit_probability(self.problem.fit_of(candidate)) >= 0.5:  # noqa: PLR2004
                return point
        last = {**partial, HOST_LAYERS_AXIS: most}
        return last if self.problem.candidate_of(last) is not None else None


def _below(fits: int | None) -> int | None:
    return fits - 1 if fits else None
