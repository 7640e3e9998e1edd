"""The search for a fit boundary finds it wherever it is, with few launches and failures."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autofit.memory.boundary_search import MAX_FAILURES, BoundarySearch

# ---- without predictions


def halved(most: int, expected: int, fewest: int) -> tuple[BoundarySearch, list[int]]:
    """Return the search at its end and the launched numbers, if `fewest` and more fit."""
    search = BoundarySearch(most, expected)
    launched: list[int] = []
    while (value := search.next_by_halving()) is not None:
        launched.append(value)
        assert len(launched) <= most + 1
        search.record(value, fits=value >= fewest)
    return search, launched


@st.composite
def boundaries(draw) -> tuple[int, int, int]:
    """Draw the most host layers, the expected fewest, and the true fewest."""
    most = draw(st.integers(0, 120))
    return most, draw(st.integers(-5, most + 5)), draw(st.integers(0, most + 1))


@given(boundaries())
def test_halving_ends_at_the_boundary(boundary):
    """Both sides of the boundary are found, or the end of the range is."""
    most, _, fewest = boundary

    search, _ = halved(*boundary)

    assert search.is_closed
    assert search.fits == (fewest if fewest <= most else None)
    if 0 < fewest <= most:
        assert search.fails == fewest - 1


@given(boundaries())
def test_halving_launches_nothing_twice_and_nothing_outside(boundary):
    """Every number is within the range and launched once."""
    most = boundary[0]

    _, launched = halved(*boundary)

    assert len(launched) == len(set(launched))
    assert all(0 <= value <= most for value in launched)


@given(boundaries())
def test_halving_is_short(boundary):
    """It takes about twice the logarithm of the error of the expected number."""
    most, expected, fewest = boundary

    _, launched = halved(*boundary)

    start = min(max(expected, 0), most)
    assert len(launched) <= 4 + 2 * math.log2(abs(start - fewest) + 1)


@given(st.integers(1, 100).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))))
def test_right_expectation_takes_two_launches(boundary):
    """The expected number itself, and the one below it."""
    most, fewest = boundary

    _, launched = halved(most, fewest, fewest)

    assert launched == [fewest, fewest - 1]


def test_failure_above_a_number_that_fits_leaves_the_boundary_open():
    """A failure for a passing reason is no side of the boundary, and hides nothing below it."""
    search = BoundarySearch(10, 5)
    search.record(7, fits=False)
    search.record(5, fits=True)

    assert search.fails is None
    assert search.fewest_possible == 0
    assert search.next_by_halving() == 4

    search.record(3, fits=False)

    assert (search.fails, search.fewest_possible, search.is_closed) == (3, 4, False)
    assert search.next_by_halving() == 4


# ---- by predictions


def predicted(
    search: BoundarySearch,
    free_of: Callable[[int], float | None],
    truth: Callable[[int], bool],
    *,
    margin: float = 96.0,
) -> list[int]:
    """Follow a search to its end; return the launched numbers in order."""
    launched = []
    while (n := search.next_by_prediction(free_of, margin_mib=margin)) is not None:
        assert n not in launched
        launched.append(n)
        search.record(n, fits=truth(n))
    return launched


def line(edge: int, layer_mib: float = 400.0, shift_mib: float = 0.0):
    """Return the predicted free memory and the truth of a monotonic boundary."""
    return (
        lambda n: (n - edge) * layer_mib + 10.0 + shift_mib,
        lambda n: n >= edge,
    )


def test_good_prediction_costs_a_launch_with_room_and_one_for_each_side():
    """First a number with room, then the fewest that fit, then the next, which fails."""
    free_of, truth = line(20)
    search = BoundarySearch(most=40, expected=20)

    assert predicted(search, free_of, truth) == [21, 20, 19]
    assert (search.fits, search.fails, search.failures, search.is_closed) == (20, 19, 1, True)


def test_ruled_out_number_costs_no_launch():
    """The failure of another candidate can be the other side."""
    free_of, truth = line(20, shift_mib=100)
    search = BoundarySearch(most=40, expected=20)
    search.record(19, fits=False, is_launched=False)

    assert predicted(search, free_of, truth) == [20]
    assert search.failures == 0
    assert search.is_closed


def test_everything_fits():
    """Then there is no other side."""
    free_of, truth = line(-5)
    search = BoundarySearch(most=40, expected=0)

    assert predicted(search, free_of, truth) == [0]
    assert (search.fits, search.fails, search.is_closed) == (0, None, True)


def test_nothing_fits():
    """The number with the most free memory is launched, and no number without hope after it."""
    free_of, truth = line(60)
    search = BoundarySearch(most=40, expected=40)

    assert predicted(search, free_of, truth) == [40]
    assert search.fits is None
    assert search.fails == 40


def test_zero_host_layers_are_separate_on_several_devices():
    """Zero and one host layer are both launched, although one of them fits."""
    free_of, truth = line(1)
    search = BoundarySearch(most=40, expected=1, is_zero_separate=True)

    assert predicted(search, free_of, truth) == [2, 1, 0]
    assert (search.fits, search.fails) == (1, 0)


def test_pipeline_that_is_predicted_to_fit_is_launched_below_a_failure():
    """Without host weights to stage, a device may have room again."""

    def free_of(n):
        return 500.0 if n == 0 else (n - 5) * 100.0 + 10.0

    search = BoundarySearch(most=40, expected=5, is_zero_separate=True)

    launched = predicted(search, free_of, lambda n: n == 0 or n >= 5)

    assert launched == [6, 5, 4, 0]
    assert (search.fits, search.fails) == (5, 4)
    assert search.exceptions == {0: True}


def test_numbers_without_a_candidate_are_skipped():
    """If no layout has a number of host layers, the next number below is the other side."""
    _, truth = line(20)

    def free_of(n):
        return None if n in (18, 19) or n > 30 else (n - 20) * 400.0 + 10.0

    search = BoundarySearch(most=40, expected=20)

    assert predicted(search, free_of, truth) == [21, 20, 17]
    assert (search.fits, search.fails, search.is_closed) == (20, 17, True)


def test_predicted_exception_is_found():
    """If a layout with fewer host layers fits again, the fewest count."""
    fitting = {17, *range(20, 41)}

    def free_of(n):
        return 20.0 if n in fitting else -300.0

    search = BoundarySearch(most=40, expected=22)
    predicted(search, free_of, fitting.__contains__, margin=10.0)

    assert (search.fits, search.fails) == (17, 16)
    assert search.exceptions == {19: False}


@example(edge=4, layer=100.0, error=486.0, expected=0, apart=False)
@given(
    edge=st.integers(0, 48),
    layer=st.floats(100, 1500),
    error=st.floats(-700, 700),
    expected=st.integers(0, 48),
    apart=st.booleans(),
)
def test_boundary_is_found_with_at_most_three_failures(edge, layer, error, expected, apart):
    """Whatever is expected, and with predictions that are off until the first launch fits."""
    search = BoundarySearch(most=48, expected=expected, is_zero_separate=apart)

    def free_of(n):
        is_learned = search.fits is not None
        failed = [(m - edge) * layer + 10 + error for m, fits in search.known.items() if not fits]
        shift = 0.0 if is_learned else error - max([0.0, *(mib + 1 for mib in failed)])
        return (n - edge) * layer + 10.0 + shift

    launched = predicted(search, free_of, lambda n: n >= edge)

    assert search.failures <= MAX_FAILURES
    if search.fits is not None:
        assert search.fits == edge
        assert search.is_closed
        assert search.fails == (edge - 1 if edge else None)
    else:
        assert edge >= 46
    assert len(launched) <= 12


@pytest.mark.parametrize("edge", [1, 7, 23, 40])
def test_search_without_predictions_ends_closed(edge):
    """The last failure is kept for the last step."""
    search = BoundarySearch(most=40, expected=40)

    predicted(search, lambda _: 0.0, lambda n: n >= edge, margin=0.0)

    assert search.failures <= MAX_FAILURES
    assert search.is_closed
    assert (search.fits, search.fails) == (edge, edge - 1)


@pytest.mark.parametrize("edge", [1, 7, 23, 47])
def test_unreliable_prediction_is_followed_in_strides(edge):
    """If counters show much memory that cannot be allocated, the search stays short."""
    search = BoundarySearch(most=48, expected=0)
    launched = 0

    def next_value():
        is_wrong = search.failures > 0
        return search.next_by_prediction(
            lambda n: 1.0 + n if is_wrong else 20000.0 + n, margin_mib=96.0, is_unreliable=is_wrong
        )

    while (n := next_value()) is not None:
        launched += 1
        search.record(n, fits=n >= edge)

    assert (search.fits, search.fails, search.is_closed) == (edge, edge - 1, True)
    assert search.failures <= MAX_FAILURES
    assert launched <= 16


def test_number_with_much_room_is_launched_after_all_failures():
    """Launches that are later found to have spilled may use up all failures at once."""
    search = BoundarySearch(most=40, expected=14)
    for n in (12, 13, 14):
        search.record(n, fits=False)

    assert search.next_by_prediction(lambda n: (n - 14) * 100.0, margin_mib=96.0) == 16
    assert search.next_by_prediction(lambda n: (n - 40) * 100.0, margin_mib=96.0) is None

    search.record(16, fits=True)

    assert search.next_by_prediction(lambda n: (n - 14) * 100.0, margin_mib=96.0) is None


def test_nothing_fits_is_shown_by_all_host_layers():
    """If the most host layers fail, fewer are not launched."""
    search = BoundarySearch(most=40, expected=30)
    search.record(30, fits=False)
    assert not search.is_closed

    search.record(40, fits=False)

    assert search.is_closed
    assert (search.fits, search.fails) == (None, 40)


def test_largest_number_with_a_candidate_shows_that_nothing_fits():
    """Numbers without a candidate need no launch."""

    def free_of(n):
        return None if n > 30 else (n - 30) * 400.0 + 20.0

    search = BoundarySearch(most=40, expected=40)

    assert predicted(search, free_of, lambda _: False) == [30]
    assert (search.fits, search.fails, search.is_closed) == (None, 30, True)
