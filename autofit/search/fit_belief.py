"""How likely a candidate is to fit, from the estimate's margin and what launches showed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scipy.stats import norm

from autofit.search.dominance import needs_at_least
from autofit.search.problem import Fit, Observation, Problem
from autofit.search.space import Point

# The runtime's estimator is right within some MiB, but not about pools that grow at run
# time: a server with 66 MiB left died at its first long prompt, one with 40 lived.
_SD_SHARE = 0.01
_SD_FLOOR_MIB = 48.0


def fit_probability(fit: Fit | None) -> float:
    """The chance that a candidate fits; 0.5 where nothing is known."""
    if fit is None:
        return 0.5
    sd = max(_SD_FLOOR_MIB, _SD_SHARE * fit.needed_mib)
    return float(norm.cdf(fit.margin_mib / sd))


def is_ruled_out(problem: Problem, point: Point, failures: Iterable[Observation]) -> bool:
    """Whether a memory failure seen before makes it certain that the point fails too."""
    apart = any(not name.startswith("single") for name in problem.layouts)
    return any(
        needs_at_least(point, failed.point, zero_is_apart=apart)
        for failed in failures
        if failed.is_memory
    )


def is_seen_to_fit(problem: Problem, point: Point, observations: Sequence[Observation]) -> bool:
    """Whether something that needs at least as much was seen to run."""
    apart = any(not name.startswith("single") for name in problem.layouts)
    return any(
        needs_at_least(ran.point, point, zero_is_apart=apart)
        for ran in observations
        if ran.cost is not None
    )
