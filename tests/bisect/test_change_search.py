"""The search for changes in simulated series of values."""

from __future__ import annotations

import math
import random

import pytest

from autofit.bisect.change_search import ChangeSearch
from autofit.statistics.stopping_rule import StoppingRule


class SimulatedSeries:
    """A series of builds with steps, noise between launches, broken builds and drift."""

    def __init__(self, seed, count, steps, *, noise=0.02, broken=(), drift=0.0, rounds=1000):
        self.rng = random.Random(seed)
        self.count, self.steps = count, steps
        self.noise, self.broken, self.drift = noise, set(broken), drift
        self.level, self.rounds, self.launches = 0.0, rounds, []

    def measure(self, items):
        """Return the values of one round."""
        if not self.rounds:
            return None
        self.rounds -= 1
        values = {}
        for item in self.rng.sample(list(items), len(items)):
            self.launches.append(item)
            self.level += self.rng.gauss(0, self.drift)
            step = sum(size for at, size in self.steps if item >= at)
            noise = self.rng.gauss(0, self.noise)
            values[item] = None if item in self.broken else step + noise + self.level
        return values


def search(series):
    """Return all changes in the order of the builds."""
    changes = ChangeSearch(series, StoppingRule(), 0.002)
    return sorted(changes.find(0, series.count - 1), key=lambda change: change.last)


@pytest.mark.parametrize("drift", [0.0, 0.003])
def test_most_single_steps_are_found(drift):
    """With steps of 5% at 2% noise, steady or with drift, at least 18 of 20 builds are right."""
    right = 0
    for seed in range(20):
        at = 1 + seed * 3
        series = SimulatedSeries(seed, 64, [(at, math.log(0.95))], drift=drift)
        found = search(series)
        right += [change.last for change in found] == [at]
    assert right >= 18


def test_broken_builds_leave_a_run_of_suspects():
    """Builds that do not run between the last good and the first bad one are suspects."""
    series = SimulatedSeries(1, 32, [(17, -0.1)], noise=0.005, broken=(15, 16, 20))
    (change,) = search(series)

    assert (change.before, change.first, change.last) == (14, 15, 17)
    assert change.is_proven


def test_two_steps_are_two_changes():
    """Two steps of 10% each are found as two changes, and not as one in between."""
    series = SimulatedSeries(2, 64, [(20, -0.1), (45, -0.1)], noise=0.01)

    assert [change.last for change in search(series)] == [20, 45]


def test_equal_ends_have_no_change():
    """Without a difference of the ends nothing else is launched."""
    series = SimulatedSeries(3, 16, [], noise=0.005)

    assert search(series) == []
    assert set(series.launches) == {0, 15}


def test_end_of_time_gives_the_most_probable_change():
    """If the time ends, the last change has a probability and is not proven."""
    series = SimulatedSeries(4, 64, [(30, -0.1)], noise=0.01, rounds=9)
    (change,) = search(series)

    assert not change.is_proven
    assert change.before < 30 <= change.last or change.probability < 0.97


def test_neighbours_need_no_search():
    """If the ends are neighbours, their comparison is the proof."""
    series = SimulatedSeries(5, 2, [(1, -0.1)], noise=0.01)
    (change,) = search(series)

    assert (change.before, change.last, change.is_proven) == (0, 1, True)
