"""The range of a scale with outliers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.output.report.plots.figure import readable_range

CLOSE = [5.0, 5.2, 5.4, 5.6, 5.8, 6.0]


@pytest.mark.parametrize(
    ("values", "is_higher_better", "left_out"),
    [
        ([*CLOSE, 154.0], False, [154.0]),
        ([*CLOSE, *CLOSE, 154.0, 1540.0], False, [154.0, 1540.0]),
        ([*CLOSE, 0.2], True, [0.2]),
        # The best value is what a reader looks for, however far it is from the others.
        ([*CLOSE, 0.2], False, []),
        ([*CLOSE, 154.0], True, []),
        # A few points, or a slow third of all points, are no outliers.
        ([5.0, 50.0], False, []),
        ([*CLOSE, 100.0, 150.0, 200.0], False, []),
        ([*CLOSE, 8.0], False, []),
        ([5.0] * 9 + [154.0], False, [154.0]),
        ([], False, []),
    ],
)
def test_only_a_few_far_slower_values_are_left_out(values, is_higher_better, left_out):
    """At most a fifth of the values, all on the slow side, are off the scale."""
    ends = readable_range(values, is_higher_better=is_higher_better)

    assert (ends is None) == (not left_out)
    if ends is not None:
        assert [v for v in values if not ends[0] <= v <= ends[1]] == left_out


@given(
    st.lists(st.floats(0.01, 1e6), max_size=40),
    st.booleans(),
    st.lists(st.floats(0.01, 1e6), max_size=1),
)
def test_best_value_and_kept_ones_are_on_the_scale(values, is_higher_better, kept):
    """A scale never hides the best launch, a kept value or more than a fifth of the launches."""
    ends = readable_range(values, is_higher_better=is_higher_better, kept=kept)

    if ends is not None:
        best = max(values) if is_higher_better else min(values)
        assert all(ends[0] <= value <= ends[1] for value in (best, *kept))
        hidden = sum(not ends[0] <= value <= ends[1] for value in values)
        assert 0 < hidden <= (len(values) + 1) / 5
