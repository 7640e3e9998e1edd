"""Requirements that a winner must keep."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.rounds_sample import WORKLOAD, trial_of

from autofit.errors import UsageError
from autofit.session.requirement import Requirement, are_kept, parse_requirement, total_shortfall
from autofit.trial.metric import METRICS, median_metric

METRIC = st.sampled_from(METRICS)
COMPARISON = st.sampled_from([">=", "<="])


@given(METRIC, COMPARISON, st.integers(0, 10**6))
def test_the_text_of_a_requirement_can_be_read(metric, comparison, value):
    """It is the same requirement then, with any blanks."""
    requirement = Requirement(metric, comparison, value)

    assert parse_requirement(str(requirement)) == requirement
    assert parse_requirement(f" {metric}  {comparison} {value}.0 ") == requirement


@pytest.mark.parametrize(
    "text", ["", "tg", "tg>20", "tg=20", "tg>=", "tg>=fast", "speed>=2", "tg>=-1", "20<=tg"]
)
def test_another_text_is_refused(text):
    """The form, the metrics and an example are in the message."""
    with pytest.raises(UsageError, match="must be 'metric>=number'") as caught:
        parse_requirement(text)
    assert "request_s, pp, tg, ttft" in caught.value.hint


@given(METRIC, COMPARISON, st.floats(0.1, 10), st.floats(0.2, 50))
def test_a_shortfall_is_the_share_that_is_missing(metric, comparison, factor, seconds):
    """It is 0 if the limit is kept, and grows with the distance."""
    measured = trial_of(seconds).measurement
    value = median_metric(measured, WORKLOAD, metric)
    requirement = Requirement(metric, comparison, value * factor)
    shortfall = requirement.shortfall(measured, WORKLOAD)

    is_kept = factor <= 1 if comparison == ">=" else factor >= 1
    if is_kept:
        assert shortfall == pytest.approx(0.0, abs=1e-9)
    else:
        assert shortfall == pytest.approx(abs(factor - 1) / factor)


def test_a_failed_launch_misses_every_requirement():
    """Each counts as missed in full."""
    requirement = Requirement("tg", ">=", 20.0)

    assert requirement.shortfall(None, WORKLOAD) == 1.0
    assert total_shortfall([requirement, requirement], None, WORKLOAD) == 2.0
    assert total_shortfall([], None, WORKLOAD) == 0.0


@pytest.mark.parametrize(
    ("seconds", "kept"),
    [
        ([1.0], True),
        ([3.0], False),
        ([1.0, 1.0, 9.0], True),
        ([1.0, 3.0, 3.0], False),
        ([], False),
    ],
)
def test_the_median_launch_decides(seconds, kept):
    """One slow launch of several does not break a requirement, most of them do."""
    measured = [trial_of(each).measurement for each in seconds]

    assert are_kept([Requirement("request_s", "<=", 2.0)], measured, WORKLOAD) is kept


def test_without_requirements_all_that_ran_keeps_them():
    """No limit can be missed."""
    assert are_kept([], [trial_of(5.0).measurement], WORKLOAD)
