"""The shares of a sweep's budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.sweep.suite import SuiteEntry
from autofit.sweep.sweep_plan import grant_budget_s


@given(
    budgets=st.lists(st.floats(1, 10_000), min_size=1, max_size=6),
    total=st.floats(1, 20_000),
    used=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_granted_budgets_never_exceed_the_total(budgets, total, used):
    """No entry gets more than its budget, or less than an equal share if it needs that."""
    entries = [
        SuiteEntry(name=str(n), index=n, model="m", budget_s=s) for n, s in enumerate(budgets)
    ]
    left, spent = total, 0.0
    for index, entry in enumerate(entries):
        share = grant_budget_s(entry, entries[index + 1 :], left)
        assert 0 < share <= entry.full_budget_s
        assert share >= min(entry.full_budget_s, left / (len(entries) - index)) * (1 - 1e-9)
        took = share * used[index]
        left, spent = left - took, spent + took
    assert spent <= total * (1 + 1e-9)
    assert grant_budget_s(entries[0], entries[1:], None) == entries[0].full_budget_s


def test_long_entry_leaves_short_ones_their_budget():
    """A tune of an hour leaves a short entry its whole budget."""
    tune = SuiteEntry(name="tune", index=0, model="m")
    again, other = (SuiteEntry(name=n, index=1, model="m", mode="remeasure") for n in ("b", "c"))
    short = replace(again, budget_s=40.0)

    assert grant_budget_s(tune, [short], 240) == pytest.approx(200)
    assert grant_budget_s(short, [], 40) == pytest.approx(40)
    assert grant_budget_s(tune, [again, other], 600) == pytest.approx(200)
    assert grant_budget_s(tune, [again, other], 1e6) == tune.full_budget_s


def test_later_entries_get_the_time_that_is_left():
    """An entry that ends early leaves its time to the others."""
    first, second = (
        SuiteEntry(name=name, index=0, model="m", budget_s=600.0) for name in ("a", "b")
    )

    assert grant_budget_s(first, [second], 600) == pytest.approx(300)
    assert grant_budget_s(second, [], 600 - 10) == pytest.approx(590)
    assert replace(first, time_out_s=5.0).time_limit_s(300) == 5.0
