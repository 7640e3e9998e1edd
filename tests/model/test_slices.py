"""Slices per device, compared with brute force."""

from __future__ import annotations

import random
import time
from itertools import combinations, combinations_with_replacement

from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.model.placement.slices import SliceProblem, Slices, SliceSolver


@st.composite
def problems(draw, layers=6, devices=3, *, is_ordered=False) -> SliceProblem:
    """Generate small problems, some without a solution."""
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
    """Return the fewest hosted layers with which a slice fits, over every subset."""
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
    """Return the fewest hosted layers over every cut."""
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
    """Assert that every unit is in one slice, and that hosted layers are in their slice."""
    assert sum(slices.units) == len(problem.fixed)
    start = 0
    for count, hosted in zip(slices.units, slices.hosted, strict=True):
        assert all(start <= layer < start + count for layer in hosted)
        assert all(problem.movable[layer] for layer in hosted)
        assert len(set(hosted)) == len(hosted)
        start += count


@given(problems())
@settings(max_examples=150, deadline=None)
def test_minimize_hosted_is_exact(problem):
    """No cut or choice of layers has fewer hosted layers; without a solution there is None."""
    slices = SliceSolver(problem).minimize_hosted()
    best = fewest_of_all(problem)
    if slices is None:
        assert best is None
    else:
        assert len(slices.host_layers) == best
        assert_covers(problem, slices)
        assert SliceSolver(problem).fits(slices)


@given(problems(), st.integers(0, 7))
@settings(max_examples=80, deadline=None)
def test_tightest_hosts_the_requested_number(problem, requested):
    """The requested number is hosted, up to all layers, whether it fits or not."""
    solver = SliceSolver(problem)
    slices = solver.tightest(requested)
    assert_covers(problem, slices)
    assert len(slices.host_layers) == min(requested, solver.movable_layers)


@given(problems(), st.data())
@settings(max_examples=80, deadline=None)
def test_spread_hosts_the_requested_number_per_device(problem, data):
    """Each device hosts the requested number, or there is no solution."""
    counts = [data.draw(st.integers(0, 2)) for _ in problem.budgets]
    solver = SliceSolver(problem)
    targets = [len(problem.fixed) / len(counts)] * len(counts)
    fitting = solver.spread(counts, targets)
    tight = solver.spread_tightest(counts)
    if fitting:
        assert solver.fits(fitting)
        assert tight is not None
    for slices in (fitting, tight):
        if slices:
            assert_covers(problem, slices)
            assert [len(layers) for layers in slices.hosted] == counts


def test_equal_devices_get_equal_slices():
    """With enough memory, units and hosted layers are divided evenly."""
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
    """One large layer on the host replaces two small ones."""
    problem = SliceProblem(
        fixed=(0,) * 5, movable=(3, 8, 3, 3), budgets=(10,), overheads=(((0, 0), (0, 0)),)
    )
    slices = SliceSolver(problem).minimize_hosted()
    assert slices is not None
    assert slices.host_layers == (1,)


def test_an_ordered_problem_hosts_the_first_layers():
    """In an ordered problem the sizes of layers do not matter."""
    problem = SliceProblem(
        fixed=(0,) * 5,
        movable=(3, 8, 3, 3),
        budgets=(10,),
        overheads=(((0, 0), (0, 0)),),
        is_ordered=True,
    )
    slices = SliceSolver(problem).minimize_hosted()
    assert slices is not None
    assert slices.host_layers == (0, 1)


def test_eight_unequal_devices_and_96_layers(capsys):
    """The largest machines are solved within the time limit; the time is printed."""
    dice = random.Random(7)
    problem = SliceProblem(
        fixed=(90,) * 96 + (600,),
        movable=tuple(dice.choice((430, 500)) for _ in range(96)),
        budgets=(3000, 4000, 5000, 6000, 2500, 8000, 3500, 4200),
        overheads=(((300, 500), (310, 520)),) * 8,
    )
    started = time.perf_counter()
    slices = SliceSolver(problem).minimize_hosted()
    seconds = time.perf_counter() - started
    assert slices is not None
    assert_covers(problem, slices)
    fewer = sum(problem.movable) + sum(problem.fixed) + 8 * 500 - sum(problem.budgets)
    assert len(slices.host_layers) >= fewer / 500
    with capsys.disabled():
        print(f"\n8 devices x 96 layers: {seconds:.3f} s")
