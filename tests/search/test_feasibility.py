"""How likely points are to fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from search.toy_machine import ToyMachine

from autofit.search.feasibility import BoundaryPosterior, EstimateBiasPosterior, fit_probability
from autofit.search.point_grid import Grid
from autofit.search.problem import Fit
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS


def test_an_estimate_alone() -> None:
    """Much room is sure, none is a coin, far too much asked for is hopeless."""
    assert fit_probability(Fit(2000, 8000)) > 0.99
    assert fit_probability(Fit(0, 8000)) == pytest.approx(0.5)
    assert fit_probability(Fit(-2000, 8000)) < 0.01
    assert fit_probability(None) == 0.5


def test_the_host_must_hold_its_part() -> None:
    """Room on the devices does not help where the host has none."""
    assert fit_probability(Fit(2000, 8000, -5000, 30000)) < 0.01
    assert fit_probability(Fit(2000, 8000, 9000, 30000)) > 0.98


@given(st.lists(st.tuples(st.floats(-4000, 4000), st.booleans()), max_size=6))
def test_more_room_is_never_less_likely(launches) -> None:
    """Whatever was seen, a larger margin is at least as likely to fit."""
    belief = EstimateBiasPosterior("device", 12000)
    for margin, fitted in launches:
        belief.add_outcome(margin, fitted=fitted)

    chances = belief.probability(np.linspace(-3000, 3000, 61))

    assert (np.diff(chances) >= -1e-9).all()
    assert ((chances >= 0) & (chances <= 1 + 1e-9)).all()


def test_a_failure_with_room_to_spare_moves_the_belief() -> None:
    """An estimate that was 500 MiB too low once is expected to be so again."""
    belief = EstimateBiasPosterior("device", 12000)
    before = belief.probability(np.array([400.0]))[0]

    belief.add_outcome(500.0, fitted=False)

    assert before > 0.9
    assert belief.probability(np.array([400.0]))[0] < 0.1


def test_a_fit_without_room_moves_the_belief() -> None:
    """An estimate that was 500 MiB too high once is expected to be so again."""
    belief = EstimateBiasPosterior("device", 12000)

    belief.add_outcome(-500.0, fitted=True)

    assert belief.probability(np.array([-400.0]))[0] > 0.9


def test_a_passing_failure_does_not_rule_everything_out() -> None:
    """One failure among launches that needed more is not believed for ever."""
    belief = EstimateBiasPosterior("device", 12000)
    for margin in (100.0, 60.0, 30.0):
        belief.add_outcome(margin, fitted=True)

    belief.add_outcome(3000.0, fitted=False)

    assert belief.probability(np.array([2000.0]))[0] > 0.9


def test_without_estimates_failures_still_tell_the_boundary() -> None:
    """Between what ran and what did not lies the doubt, beyond them little."""
    grid = Grid(ToyMachine().problem())
    base = {LAYOUT_AXIS: "single:A", **next(grid.problem.space.points())}
    rows = np.array([grid.row_of({**base, HOST_LAYERS_AXIS: n}) for n in range(25)])
    belief = BoundaryPosterior(grid)

    belief.add_outcome(rows[8], fitted=False)
    belief.add_outcome(rows[16], fitted=True)

    chances = belief.probability(rows)
    assert chances[4] < 0.1
    assert 0.1 < chances[12] < 0.9
    assert chances[20] > 0.9


def test_without_estimates_a_larger_ubatch_is_less_likely_to_fit() -> None:
    """Directions that hold everywhere hold before anything was launched."""
    grid = Grid(ToyMachine().problem())
    base = {LAYOUT_AXIS: "single:A", HOST_LAYERS_AXIS: 12, **next(grid.problem.space.points())}
    rows = np.array([grid.row_of({**base, "ubatch": size}) for size in (512, 4096)])

    small, large = BoundaryPosterior(grid).probability(rows)

    assert large < small
