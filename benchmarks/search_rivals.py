"""Other ways to search: each yields a point and is sent what it cost, None where it failed.

All see the same space and the same filter: points that the memory estimate rules out are not
launched, whoever asks for them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from autofit.search.feasibility import fit_probability
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, Axis, Point

Search = Generator[Point, float | None, None]
Strategy = Callable[[Problem, int], Search]

# As in a tune: a point less likely to fit than this is believed to fail without a launch.
_SURE_NOT_TO_FIT = 0.03
# Points that the filter refuses in a row before a search gives up.
_MOST_REFUSED = 500


def may_fit(problem: Problem, point: Point) -> bool:
    """The memory filter: whether a point is allowed and its estimate not sure to fail."""
    if not problem.space.allows(point):
        return False
    candidate = problem.candidate_of(point)
    return candidate is not None and fit_probability(problem.fit_of(candidate)) >= _SURE_NOT_TO_FIT


def random_search(problem: Problem, seed: int) -> Search:
    """Uniform over all points that may fit."""
    rng = random.Random(seed)
    tried = set()
    for _ in range(_MOST_REFUSED * 200):
        point = {axis.name: rng.choice(axis.values) for axis in problem.axes}
        key = tuple(point.values())
        if key not in tried and may_fit(problem, point):
            tried.add(key)
            yield point


def tpe(problem: Problem, seed: int) -> Search:
    """Optuna's TPE with its defaults; failures and refused points are reported as pruned."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    distributions = {
        axis.name: IntDistribution(0, problem.most_host_layers)
        if axis.name == HOST_LAYERS_AXIS
        else CategoricalDistribution(axis.values)
        for axis in problem.axes
    }
    refused = 0
    while refused < _MOST_REFUSED:
        trial = study.ask(distributions)
        if not may_fit(problem, trial.params):
            refused += 1
            study.tell(trial, state=TrialState.PRUNED)
            continue
        refused = 0
        cost = yield dict(trial.params)
        if cost is None:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, cost)


def coordinate_descent(problem: Problem, seed: int) -> Search:
    """One axis after the other, keeping what is better; from elsewhere once nothing is.

    Host layers go by ones in the direction that helps, other axes through all their values.
    """
    rng = random.Random(seed)
    start = _start(problem)
    while start is not None:
        cost = yield start
        best, improved = (start, cost), True
        while improved:
            improved = False
            for axis in problem.axes:
                before = best
                for point in _neighbours(problem, axis, best[0]):
                    cost = yield point
                    if cost is not None and (best[1] is None or cost < best[1]):
                        best = (point, cost)
                improved = improved or best is not before
        start = _random_start(problem, rng)


def one_knob(problem: Problem, seed: int) -> Search:
    """Each axis once, in order: host layers by bisection for the fewest that run."""
    del seed
    best = _start(problem)
    if best is None:
        return
    best_cost = yield best
    while True:
        low, high = 0, int(best[HOST_LAYERS_AXIS])
        while low < high:
            middle = (low + high) // 2
            point = {**best, HOST_LAYERS_AXIS: middle}
            cost = (yield point) if may_fit(problem, point) else None
            if cost is None:
                low = middle + 1
            else:
                high = middle
                if best_cost is None or cost < best_cost:
                    best, best_cost = point, cost
        for axis in problem.axes:
            if axis.name == HOST_LAYERS_AXIS:
                continue
            for point in _neighbours(problem, axis, best):
                cost = yield point
                if cost is not None and (best_cost is None or cost < best_cost):
                    best, best_cost = point, cost


def exhaustive(problem: Problem, seed: int) -> Search:
    """Every point that may fit, in the order of the space."""
    del seed
    for point in _all_points(problem):
        if may_fit(problem, point):
            yield point


STRATEGIES: dict[str, Strategy] = {
    "TPE": tpe,
    "random": random_search,
    "coordinate descent": coordinate_descent,
    "one knob at a time": one_knob,
    "exhaustive": exhaustive,
}


def _all_points(problem: Problem) -> Iterator[Point]:
    layout, layers = problem.axes[:2]
    for layout_value in layout.values:
        for hosted in layers.values:
            for rest in problem.space.points():
                yield {layout.name: layout_value, layers.name: hosted, **rest}


def _start(problem: Problem) -> Point | None:
    """The first values with the fewest host layers that may fit, on the first layout."""
    return next((p for p in _all_points(problem) if may_fit(problem, p)), None)


def _random_start(problem: Problem, rng: random.Random) -> Point | None:
    for _ in range(_MOST_REFUSED):
        point = {axis.name: rng.choice(axis.values) for axis in problem.axes}
        if may_fit(problem, point):
            return point
    return None


def _neighbours(problem: Problem, axis: Axis, point: Point) -> Iterator[Point]:
    value = point[axis.name]
    others = [other for other in axis.values if other != value]
    if axis.name == HOST_LAYERS_AXIS:
        others = [other for other in others if abs(int(other) - int(value)) == 1]
    for other in others:
        changed = {**point, axis.name: other}
        if may_fit(problem, changed):
            yield changed
