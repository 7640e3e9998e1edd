"""Axes, constraints and pins of a search space."""

from __future__ import annotations

from autofit.search.space import Axis, Constraint, Space

SPACE = Space(
    name="small",
    suits="moe",
    axes=(
        Axis("ubatch", (512, 2048)),
        Axis("batch", (512, 2048)),
        Axis("cache_type", ("f16", "q8_0"), ("cache_type_k", "cache_type_v")),
    ),
    layouts=("balanced",),
    constraints=(Constraint("ubatch", "<=", "batch"),),
)


def test_points_keep_the_constraints() -> None:
    """Every combination that a constraint allows is a point, and no other is."""
    points = list(SPACE.points())

    assert len(points) == 6
    assert all(point["ubatch"] <= point["batch"] for point in points)


def test_an_axis_may_set_several_params() -> None:
    """One value of a cache type is the type of K and of V."""
    params = SPACE.params_of({"ubatch": 512, "batch": 2048, "cache_type": "q8_0"})

    assert params == {
        "ubatch": 512,
        "batch": 2048,
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }


def test_layout_and_host_layers_are_no_params() -> None:
    """What stands for a placement is left to whoever places."""
    params = SPACE.params_of({"layout": "balanced", "host_expert_layers": 3, "ubatch": 512})

    assert params == {"ubatch": 512}


def test_a_pin_takes_its_axis_away_and_still_counts_in_constraints() -> None:
    """A fixed batch limits the ubatch."""
    pinned = SPACE.pin({"batch": 512})

    assert [axis.name for axis in pinned.axes] == ["ubatch", "cache_type"]
    assert {point["ubatch"] for point in pinned.points()} == {512}
    assert pinned.params_of({"ubatch": 512})["batch"] == 512


def test_a_pin_of_an_axis_fixes_all_that_it_sets() -> None:
    """A pinned cache type is pinned for K and V."""
    assert SPACE.pin({"cache_type": "q8_0"}).pinned == {
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }


def test_a_pin_of_one_half_leaves_the_other_to_the_axis() -> None:
    """With the type of K fixed only that of V is searched."""
    pinned = SPACE.pin({"cache_type_k": "f16"})

    axis = pinned.axis("cache_type")
    assert axis is not None
    assert axis.params == ("cache_type_v",)
    assert pinned.params_of({"cache_type": "q8_0"}) == {
        "cache_type_k": "f16",
        "cache_type_v": "q8_0",
    }


def test_a_pinned_placement_ends_the_walk_over_layouts() -> None:
    """Who fixes where layers lie has decided the layout."""
    assert SPACE.walks_layers
    assert not SPACE.pin({"tensor_split": "3,1"}).walks_layers
    assert SPACE.pin({"ubatch": 512}).walks_layers


def test_an_axis_without_values_is_dropped() -> None:
    """What the runtime cannot take is not searched."""
    assert SPACE.with_values("batch", lambda _: False).axis("batch") is None
    assert SPACE.with_values("ubatch", lambda value: value == 512).axis("ubatch") == Axis(
        "ubatch", (512,)
    )


def test_a_constraint_on_an_unset_axis_holds() -> None:
    """What is not set breaks nothing."""
    assert Constraint("ubatch", "<=", "batch").holds({"ubatch": 4096})


def test_constraints_compare_numbers_and_words() -> None:
    """Numbers by size, words by being equal."""
    assert Constraint("ubatch", ">=", "512").holds({"ubatch": 512})
    assert not Constraint("ubatch", ">", "512").holds({"ubatch": 512})
    assert Constraint("load_mode", "==", "'none'").holds({"load_mode": "none"})
    assert not Constraint("load_mode", "!=", "'none'").holds({"load_mode": "none"})
