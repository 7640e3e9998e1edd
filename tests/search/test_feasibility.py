"""Probabilities that points fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.toy_machine import ToyMachine

from autofit.search.feasibility import BoundaryPosterior, EstimateBiasPosterior, fit_probability
from autofit.search.point_grid import PointGrid
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS


def test_fit_probability_of_a_prediction() -> None:
    """A large margin is nearly certain to fit, none is even, a negative one nearly impossible."""
    assert fit_probability(Fit(2000, 8000)) > 0.99
    assert fit_probability(Fit(0, 8000)) == pytest.approx(0.5)
    assert fit_probability(Fit(-2000, 8000)) < 0.01
    assert fit_probability(None) == 0.5


def test_the_host_needs_a_margin_too() -> None:
    """A margin on the devices does not help if the host has none."""
    assert fit_probability(Fit(2000, 8000, -5000, 30000)) < 0.01
    assert fit_probability(Fit(2000, 8000, 9000, 30000)) > 0.98


@given(st.lists(st.tuples(st.floats(-4000, 4000), st.booleans()), max_size=6))
def test_a_larger_margin_is_never_less_likely_to_fit(launches) -> None:
    """After any launches the probability increases with the margin."""
    posterior = EstimateBiasPosterior("device", 12000)
    for margin, fitted in launches:
        posterior.add_outcome(margin, fitted=fitted)

    probabilities = posterior.probability(np.linspace(-3000, 3000, 61))

    assert (np.diff(probabilities) >= -1e-9).all()
    assert ((probabilities >= 0) & (probabilities <= 1 + 1e-9)).all()


def test_a_failure_with_a_large_margin_shifts_the_bias() -> None:
    """A prediction that was 500 MiB too low is expected to be so again."""
    posterior = EstimateBiasPosterior("device", 12000)
    before = posterior.probability(np.array([400.0]))[0]

    posterior.add_outcome(500.0, fitted=False)

    assert before > 0.9
    assert posterior.probability(np.array([400.0]))[0] < 0.1


def test_a_fit_without_a_margin_shifts_the_bias() -> None:
    """A prediction that was 500 MiB too high is expected to be so again."""
    posterior = EstimateBiasPosterior("device", 12000)

    posterior.add_outcome(-500.0, fitted=True)

    assert posterior.probability(np.array([-400.0]))[0] > 0.9


def test_one_contradicting_failure_changes_little() -> None:
    """A failure after launches with smaller margins leaves large margins likely to fit."""
    posterior = EstimateBiasPosterior("device", 12000)
    for margin in (100.0, 60.0, 30.0):
        posterior.add_outcome(margin, fitted=True)

    posterior.add_outcome(3000.0, fitted=False)

    assert posterior.probability(np.array([2000.0]))[0] > 0.9


def test_without_predictions_launches_show_the_boundary() -> None:
    """The probability is uncertain between a failure and a success, and nowhere else."""
    grid = PointGrid(ToyMachine().problem())
    base = {LAYOUT_AXIS: "single:A", **next(grid.problem.space.points())}
    rows = np.array([grid.row_of({**base, HOST_LAYERS_AXIS: n}) for n in range(25)])
    posterior = BoundaryPosterior(grid)

    posterior.add_outcome(rows[8], fitted=False)
    posterior.add_outcome(rows[16], fitted=True)

    probabilities = posterior.probability(rows)
    assert probabilities[4] < 0.1
    assert 0.1 < probabilities[12] < 0.9
    assert probabilities[20] > 0.9


def test_without_predictions_a_larger_ubatch_is_less_likely_to_fit() -> None:
    """Known directions of demand count before any launch."""
    grid = PointGrid(ToyMachine().problem())
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(grid.problem.space.points())}
    rows = np.array([grid.row_of({**base, "ubatch": size}) for size in (512, 4096)])

    small, large = BoundaryPosterior(grid).probability(rows)

    assert large < small
