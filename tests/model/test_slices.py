"""Slices per device: exact against brute force, and nothing lost."""

from __future__ import annotations

import random
import time
from itertools import combinations, combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.model.placement.slices import SliceProblem, Slices, SliceSolver


@st.composite
def problems(draw, layers=6, devices=3, *, is_ordered=False) -> SliceProblem:
    """Small problems, some of which have no solution."""
    count = draw(st.integers(1, layers))
    used = draw(st.integers(1, devices))
    pair = st.tuples(st.integers(0, 4), st.integers(0, 3)).map(lambda p: (p[0], p[0] + p[1]))
    return SliceProblem(
        fixed=tuple(draw(st.lists(st.integers(0, 4), min_size=count + 1, max_size=count + 1))),
        movable=tuple(
            draw(st.lists(st.sampled_from([0, 3, 5, 8]), min_size=count, max_size=count))
        ),
        budgets=tuple(draw(st.lists(st.integers(0, 25), min_size=used, max_size=used))),
        overheads=tuple(draw(st.lists(st.tuples(pair, pair), min_size=used, max_size=used))),
        is_ordered=is_ordered,
    )


def fewest_in_slice(problem: SliceProblem, device: int, start: int, end: int) -> int | None:
    """The fewest hosted layers with which a slice fits, by trying every subset."""
    if start == end:
        return 0
    layers = range(start, min(end, len(problem.movable)))
    movable = [layer for layer in layers if problem.movable[layer]]
    for count in range(len(movable) + 1):
        for hosted in combinations(movable, count):
            keeps = count < len(movable) or not movable
            used = sum(problem.fixed[start:end])
            used += sum(problem.movable[layer] for layer in movable if layer not in hosted)
            used += problem.overheads[device][end == len(problem.fixed)][keeps]
            if used <= problem.budgets[device]:
                return count
    return None


def fewest_of_all(problem: SliceProblem) -> int | None:
    """The fewest hosted layers over every way to cut."""
    units, best = len(problem.fixed), None
    for inner in combinations_with_replacement(range(units + 1), len(problem.budgets) - 1):
        cuts = [0, *inner, units]
        if not cuts[1]:
            continue  # the first device always has a slice
        counts = [
            fewest_in_slice(problem, device, cuts[device], cuts[device + 1])
            for device in range(len(problem.budgets))
        ]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts) and (best is None or sum(known) < best):
            best = sum(known)
    return best


def assert_covers(problem: SliceProblem, slices: Slices) -> None:
    """Every unit is in one slice, and hosted layers are those of their slice."""
    assert sum(slices.units) == len(problem.fixed)
    start = 0
    for count, hosted in zip(slices.units, slices.hosted, strict=True):
        assert all(start <= layer < start + count for layer in hosted)
        assert all(problem.movable[layer] for layer in hosted)
        assert len(set(hosted)) == len(hosted)
        start += count


@given(problems())
@settings(max_examples=150, deadline=None)
def test_the_fewest_hosted_layers_are_the_fewest(problem):
    """No cut and no choice of layers does with fewer, and where none fits none is found."""
    slices = SliceSolver(problem).fewest()
    best = fewest_of_all(problem)
    if slices is None:
        assert best is None
    else:
        assert len(slices.host_layers) == best
        assert_covers(problem, slices)
        assert SliceSolver(problem).fits(slices)


@given(problems(), st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_any_number_of_hosted_layers_can_be_asked_for(problem, wanted):
    """That many are hosted, as far as there are as many, whether it fits or not."""
    solver = SliceSolver(problem)
    slices = solver.fewest_within(wanted)
    assert_covers(problem, slices)
    assert len(slices.host_layers) == min(wanted, solver.movable_layers)


@given(problems(), st.data())
@settings(max_examples=80, deadline=None)
def test_hosted_layers_can_be_dealt_out(problem, data):
    """Each device hosts what it was dealt, or there is no answer; a fitting one fits."""
    counts = [data.draw(st.integers(0, 2)) for _ in problem.budgets]
    solver = SliceSolver(problem)
    targets = [len(problem.fixed) / len(counts)] * len(counts)
    fitting = solver.spread(counts, targets)
    tight = solver.spread_tightly(counts)
    if fitting:
        assert solver.fits(fitting)
        assert tight is not None
    for slices in (fitting, tight):
        if slices:
            assert_covers(problem, slices)
            assert [len(layers) for layers in slices.hosted] == counts


def test_equal_devices_get_equal_slices():
    """With room everywhere, units and hosted layers are dealt out evenly."""
    problem = SliceProblem(
        fixed=(10,) * 12 + (30,),
        movable=(100,) * 12,
        budgets=(1000,) * 3,
        overheads=(((5, 5), (5, 5)),) * 3,
    )
    slices = SliceSolver(problem).spread([2, 2, 2], [13 / 3] * 3)
    assert slices is not None
    assert sorted(slices.units) == [4, 4, 5]
    assert [len(layers) for layers in slices.hosted] == [2, 2, 2]


def test_the_largest_layers_are_hosted_first():
    """One large layer on the host saves two small ones."""
    problem = SliceProblem(
        fixed=(0,) * 5, movable=(3, 8, 3, 3), budgets=(10,), overheads=(((0, 0), (0, 0)),)
    )
    slices = SliceSolver(problem).fewest()
    assert slices is not None
    assert slices.host_layers == (1,)


def test_an_ordered_problem_hosts_the_first_layers():
    """Where the runtime counts layers from the first, sizes do not matter."""
    problem = SliceProblem(
        fixed=(0,) * 5,
        movable=(3, 8, 3, 3),
        budgets=(10,),
        overheads=(((0, 0), (0, 0)),),
        is_ordered=True,
    )
    slices = SliceSolver(problem).fewest()
    assert slices is not None
    assert slices.host_layers == (0, 1)


def test_eight_unequal_devices_and_96_layers(capsys):
    """The largest machines are solved exactly at once; the time is printed."""
    dice = random.Random(7)
    problem = SliceProblem(
        fixed=(90,) * 96 + (600,),
        movable=tuple(dice.choice((430, 500)) for _ in range(96)),
        budgets=(3000, 4000, 5000, 6000, 2500, 8000, 3500, 4200),
        overheads=(((300, 500), (310, 520)),) * 8,
    )
    started = time.perf_counter()
    slices = SliceSolver(problem).fewest()
    seconds = time.perf_counter() - started
    assert slices is not None
    assert_covers(problem, slices)
    fewer = sum(problem.movable) + sum(problem.fixed) + 8 * 500 - sum(problem.budgets)
    assert len(slices.host_layers) >= fewer / 500
    with capsys.disabled():
        print(f"\n8 devices x 96 layers: {seconds:.3f} s")
