"""The walk to a boundary finds it wherever it is, with few failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autofit.memory.boundary_walk import MAX_FAILURES, BoundaryWalk


def walked(
    walk: BoundaryWalk,
    free_of: Callable[[int], float | None],
    truth: Callable[[int], bool],
    *,
    margin: float = 96.0,
) -> list[int]:
    """Follow a walk to its end; the numbers launched, in order."""
    launched = []
    while (n := walk.next_value(free_of, margin_mib=margin)) is not None:
        assert n not in launched
        launched.append(n)
        walk.tell(n, fits=truth(n))
    return launched


def line(edge: int, layer_mib: float = 400.0, shift_mib: float = 0.0):
    """Free memory along a line that is monotone, and whether it is enough."""
    return (
        lambda n: (n - edge) * layer_mib + 10.0 + shift_mib,
        lambda n: n >= edge,
    )


def test_good_prediction_costs_a_launch_with_room_and_one_for_each_side():
    """First what surely fits, then the last that does, then the next that does not."""
    free_of, truth = line(20)
    walk = BoundaryWalk(most=40, guess=20)

    assert walked(walk, free_of, truth) == [21, 20, 19]
    assert (walk.fits, walk.fails, walk.failures, walk.is_closed) == (20, 19, 1, True)


def test_what_is_ruled_out_costs_no_launch():
    """A failure elsewhere can be the other side."""
    free_of, truth = line(20, shift_mib=100)
    walk = BoundaryWalk(most=40, guess=20)
    walk.tell(19, fits=False, is_launched=False)

    assert walked(walk, free_of, truth) == [20]
    assert walk.failures == 0
    assert walk.is_closed


def test_everything_fits():
    """Then there is no other side."""
    free_of, truth = line(-5)
    walk = BoundaryWalk(most=40, guess=0)

    assert walked(walk, free_of, truth) == [0]
    assert (walk.fits, walk.fails, walk.is_closed) == (0, None, True)


def test_nothing_fits():
    """The launch that leaves most is tried; what is predicted to be hopeless then is not."""
    free_of, truth = line(60)
    walk = BoundaryWalk(most=40, guess=40)

    assert walked(walk, free_of, truth) == [40]
    assert walk.fits is None
    assert walk.fails == 40


def test_no_host_layer_is_a_case_of_its_own_with_several_devices():
    """One that fails says nothing of one host layer, one host layer nothing of it."""
    free_of, truth = line(1)
    walk = BoundaryWalk(most=40, guess=1, zero_is_apart=True)

    assert walked(walk, free_of, truth) == [2, 1, 0]
    assert (walk.fits, walk.fails) == (1, 0)


def test_pipeline_that_is_predicted_to_fit_is_tried_below_what_fails():
    """Without host weights to stage, a device may have room again."""

    def free_of(n):
        return 500.0 if n == 0 else (n - 5) * 100.0 + 10.0

    walk = BoundaryWalk(most=40, guess=5, zero_is_apart=True)

    launched = walked(walk, free_of, lambda n: n == 0 or n >= 5)

    assert launched == [6, 5, 4, 0]
    assert (walk.fits, walk.fails) == (5, 4)
    assert walk.exceptions == {0: True}


def test_numbers_without_a_candidate_are_passed_over():
    """Where layouts cannot be cut with so many, the next number below is the other side."""
    _, truth = line(20)

    def free_of(n):
        return None if n in (18, 19) or n > 30 else (n - 20) * 400.0 + 10.0

    walk = BoundaryWalk(most=40, guess=20)

    assert walked(walk, free_of, truth) == [21, 20, 17]
    assert (walk.fits, walk.fails, walk.is_closed) == (20, 17, True)


def test_island_that_the_prediction_knows_is_found():
    """Where layouts cut anew fit with fewer host layers again, the fewest count."""
    fitting = {17, *range(20, 41)}

    def free_of(n):
        return 20.0 if n in fitting else -300.0

    walk = BoundaryWalk(most=40, guess=22)
    walked(walk, free_of, fitting.__contains__, margin=10.0)

    assert (walk.fits, walk.fails) == (17, 16)
    assert walk.exceptions == {19: False}


@example(edge=4, layer=100.0, error=486.0, guess=0, apart=False)
@given(
    edge=st.integers(0, 48),
    layer=st.floats(100, 1500),
    error=st.floats(-700, 700),
    guess=st.integers(0, 48),
    apart=st.booleans(),
)
def test_boundary_is_found_with_at_most_three_failures(edge, layer, error, guess, apart):
    """Whatever the guess, and with predictions that are off until the first launch fits."""
    walk = BoundaryWalk(most=48, guess=guess, zero_is_apart=apart)

    def free_of(n):
        is_learned = walk.fits is not None
        failed = [(m - edge) * layer + 10 + error for m, fits in walk.known.items() if not fits]
        shift = 0.0 if is_learned else error - max([0.0, *(mib + 1 for mib in failed)])
        return (n - edge) * layer + 10.0 + shift

    launched = walked(walk, free_of, lambda n: n >= edge)

    assert walk.failures <= MAX_FAILURES
    if walk.fits is not None:
        assert walk.fits == edge
        assert walk.is_closed
        assert walk.fails == (edge - 1 if edge else None)
    else:
        assert edge >= 46
    assert len(launched) <= 12


@pytest.mark.parametrize("edge", [1, 7, 23, 40])
def test_blind_walk_ends_closed(edge):
    """Where nothing is predicted, the last failure is kept for the last step."""
    walk = BoundaryWalk(most=40, guess=40)

    walked(walk, lambda _: 0.0, lambda n: n >= edge, margin=0.0)

    assert walk.failures <= MAX_FAILURES
    assert walk.is_closed
    assert (walk.fits, walk.fails) == (edge, edge - 1)


@pytest.mark.parametrize("edge", [1, 7, 23, 47])
def test_prediction_found_wrong_is_followed_in_strides(edge):
    """Where counters see plenty of memory that cannot be had, the walk stays short."""
    walk = BoundaryWalk(most=48, guess=0)
    launched = 0

    def next_value():
        is_wrong = walk.failures > 0
        return walk.next_value(
            lambda n: 1.0 + n if is_wrong else 20000.0 + n, margin_mib=96.0, is_doubtful=is_wrong
        )

    while (n := next_value()) is not None:
        launched += 1
        walk.tell(n, fits=n >= edge)

    assert (walk.fits, walk.fails, walk.is_closed) == (edge, edge - 1, True)
    assert walk.failures <= MAX_FAILURES
    assert launched <= 16


def test_walk_whose_failures_are_used_up_still_takes_what_surely_fits():
    """Launches that were only later found to have spilled may use up all of them at once."""
    walk = BoundaryWalk(most=40, guess=14)
    for n in (12, 13, 14):
        walk.tell(n, fits=False)

    assert walk.next_value(lambda n: (n - 14) * 100.0, margin_mib=96.0) == 16
    assert walk.next_value(lambda n: (n - 40) * 100.0, margin_mib=96.0) is None

    walk.tell(16, fits=True)

    assert walk.next_value(lambda n: (n - 14) * 100.0, margin_mib=96.0) is None


def test_nothing_fits_is_shown_by_all_host_layers():
    """Where not even the most that can be moved is enough, fewer are not tried."""
    walk = BoundaryWalk(most=40, guess=30)
    walk.tell(30, fits=False)
    assert not walk.is_closed

    walk.tell(40, fits=False)

    assert walk.is_closed
    assert (walk.fits, walk.fails) == (None, 40)


def test_nothing_fits_where_the_most_there_can_be_do_not():
    """Numbers that no candidate has need no launch to be ruled out."""

    def free_of(n):
        return None if n > 30 else (n - 30) * 400.0 + 20.0

    walk = BoundaryWalk(most=40, guess=40)

    assert walked(walk, free_of, lambda _: False) == [30]
    assert (walk.fits, walk.fails, walk.is_closed) == (None, 30, True)
