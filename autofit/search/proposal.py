"""What to launch next: the largest expected gain among points that may fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from scipy.stats import norm

from autofit.search.effect_model import fit_effects
from autofit.search.fit_belief import fit_probability, is_ruled_out, is_seen_to_fit
from autofit.search.problem import Observation, Problem, Proposal
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point

# Points less likely to fit than this are not worth a launch that probably fails.
_LEAST_FIT_PROBABILITY = 0.2
# How far above the fewest host layers that fit the search also looks.
_LAYERS_ABOVE = 2


def propose(problem: Problem, observations: Sequence[Observation]) -> Proposal | None:
    """The point with the largest expected gain, None when no untried point is left."""
    points, chances = _open_points(problem, observations)
    if not points:
        return None
    measured = [o for o in observations if o.cost is not None]
    if not measured:
        best = int(np.argmax(chances))
        return Proposal(points[best], float("inf"), "nothing has run yet: likeliest to fit")
    model = fit_effects(problem, measured)
    mean, sd = model.predict(points)
    incumbent = min(float(model.predict([o.point])[0][0]) for o in measured)
    # Expected improvement in log cost (Jones, Schonlau and Welch 1998), times the chance
    # that the point fits at all.
    z = (incumbent - mean) / sd
    gain = ((incumbent - mean) * norm.cdf(z) + sd * norm.pdf(z)) * np.array(chances)
    best = int(np.argmax(gain))
    return Proposal(
        points[best],
        float(gain[best]),
        f"expected to change request time by {float(mean[best] - incumbent):+.1%}, "
        f"{chances[best]:.0%} likely to fit",
    )


def _open_points(
    problem: Problem, observations: Sequence[Observation]
) -> tuple[list[Point], list[float]]:
    tried = {_identity(o.point) for o in observations}
    failures = [o for o in observations if o.is_memory]
    points: list[Point] = []
    chances: list[float] = []
    for point, chance in _likely_points(problem):
        if _identity(point) in tried or is_ruled_out(problem, point, failures):
            continue
        points.append(point)
        chances.append(1.0 if is_seen_to_fit(problem, point, observations) else chance)
    return points, chances


def _identity(point: Point) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(point.items()))


def _likely_points(problem: Problem) -> Iterator[tuple[Point, float]]:
    for rest in problem.space.points():
        if not problem.walks_layers:
            candidate = problem.candidate_of(rest)
            if candidate is not None:
                yield rest, fit_probability(problem.fit_of(candidate))
            continue
        for layout in problem.layouts:
            yield from _near_boundary(problem, {LAYOUT_AXIS: layout, **rest})


def _near_boundary(problem: Problem, partial: Point) -> Iterator[tuple[Point, float]]:
    """Points from the fewest host layers likely to fit upwards, and the far end.

    The far end is there because on some machines experts in system RAM are faster.
    """
    found = 0
    low, high = 0, problem.most_host_layers
    while low < high:
        middle = (low + high) // 2
        chance = _chance(problem, {**partial, HOST_LAYERS_AXIS: middle})
        if chance is not None and chance >= _LEAST_FIT_PROBABILITY:
            high = middle
        else:
            low = middle + 1
    for host_layers in (*range(low, problem.most_host_layers), problem.most_host_layers):
        if found > _LAYERS_ABOVE and host_layers != problem.most_host_layers:
            continue
        point = {**partial, HOST_LAYERS_AXIS: host_layers}
        chance = _chance(problem, point)
        if chance is not None and chance >= _LEAST_FIT_PROBABILITY:
            found += 1
            yield point, chance


def _chance(problem: Problem, point: Point) -> float | None:
    candidate = problem.candidate_of(point)
    return None if candidate is None else fit_probability(problem.fit_of(candidate))
