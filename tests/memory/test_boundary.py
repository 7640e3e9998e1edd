"""The walk to a fit boundary."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from autofit.memory.boundary import BoundarySearch


def _walked(most: int, guess: int, fewest: int) -> tuple[BoundarySearch, list[int]]:
    """The search at its end and all it asked, where `fewest` layers and more fit."""
    search = BoundarySearch(most, guess)
    asked: list[int] = []
    while (value := search.next_value()) is not None:
        asked.append(value)
        assert len(asked) <= most + 1
        search = search.told(value, fitted=value >= fewest)
    return search, asked


@st.composite
def _walks(draw) -> tuple[int, int, int]:
    most = draw(st.integers(0, 120))
    return most, draw(st.integers(-5, most + 5)), draw(st.integers(0, most + 1))


@given(_walks())
def test_the_walk_ends_at_the_boundary(walk) -> None:
    """Both sides of the boundary are found, or the end of the range is."""
    most, _, fewest = walk

    search, _ = _walked(*walk)

    assert search.is_closed
    assert search.fits == (fewest if fewest <= most else None)
    if 0 < fewest <= most:
        assert search.fails == fewest - 1


@given(_walks())
def test_the_walk_asks_nothing_twice_and_nothing_outside(walk) -> None:
    """Every value is within the range and asked once."""
    most = walk[0]

    _, asked = _walked(*walk)

    assert len(asked) == len(set(asked))
    assert all(0 <= value <= most for value in asked)


@given(_walks())
def test_the_walk_is_short(walk) -> None:
    """It takes about twice the logarithm of how far the guess was off."""
    most, guess, fewest = walk

    _, asked = _walked(*walk)

    start = min(max(guess, 0), most)
    assert len(asked) <= 4 + 2 * math.log2(abs(start - fewest) + 1)


@given(st.integers(1, 100).flatmap(lambda most: st.tuples(st.just(most), st.integers(1, most))))
def test_a_right_guess_takes_two_launches(walk) -> None:
    """The guess itself, and the one below it."""
    most, fewest = walk

    _, asked = _walked(most, fewest, fewest)

    assert asked == [fewest, fewest - 1]


def test_a_search_stays_as_it_was() -> None:
    """Telling makes a new search."""
    search = BoundarySearch(10, 5)

    search.told(5, fitted=True)

    assert search.known == {}
    assert search.fits is None
    assert search.fails is None


def test_failures_above_what_fits_do_not_count() -> None:
    """A failure for a passing reason does not become the boundary."""
    search = BoundarySearch(10, 5).told(7, fitted=False).told(5, fitted=True)

    assert search.told(4, fitted=False).fails == 4
