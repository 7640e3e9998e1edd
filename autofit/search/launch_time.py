"""How long launches take: loading, which all have, and requests, in proportion to cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autofit.search.cost_model import Forecast
from autofit.search.point_grid import Floats
from autofit.search.problem import Observation

_LEAST_FOR_SLOPE = 3


def expected_seconds(measured: Sequence[Observation], forecast: Forecast) -> Floats:
    """Seconds of a launch of each point, of shape (points,), relative to the usual launch.

    All alike until three launches tell how seconds grow with cost.
    """
    told = [(o.cost, o.seconds) for o in measured if o.cost is not None and o.seconds > 0]
    if len(told) < _LEAST_FOR_SLOPE:
        return np.ones(len(forecast.mean))
    costs, seconds = np.array(told).T
    usual = float(np.median(seconds))
    spread = float(np.var(costs))
    slope = float(np.cov(costs, seconds, bias=True)[0, 1]) / spread if spread > 0 else 0.0
    middle = float(np.median(costs))
    expected = usual + max(slope, 0.0) * (np.exp(forecast.mean) - middle)
    found: Floats = np.clip(expected, usual / 3, usual * 10) / usual
    return found
