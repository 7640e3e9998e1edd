"""Axes, constraints and pinned parameters of a search space."""

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


def test_points_satisfy_the_constraints() -> None:
    """The points are the combinations that satisfy every constraint."""
    points = list(SPACE.points())

    assert len(points) == 6
    assert all(point["ubatch"] <= point["batch"] for point in points)


def test_an_axis_may_set_several_params() -> None:
    """A value of the cache type sets the types of K and V."""
    params = SPACE.params_of({"ubatch": 512, "batch": 2048, "cache_type": "q8_0"})

    assert params == {"ubatch": 512, "batch": 2048, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}


def test_layout_and_host_layers_are_no_runtime_parameters() -> None:
    """The axes of the placement are left out of the parameters of a point."""
    params = SPACE.params_of({"layout": "balanced", "host_expert_layers": 3, "ubatch": 512})

    assert params == {"ubatch": 512}


def test_a_pinned_value_counts_in_constraints() -> None:
    """A pinned batch has no axis, and still limits the ubatch."""
    pinned = SPACE.pin({"batch": 512})

    assert [axis.name for axis in pinned.axes] == ["ubatch", "cache_type"]
    assert {point["ubatch"] for point in pinned.points()} == {512}
    assert pinned.params_of({"ubatch": 512})["batch"] == 512


def test_pinning_an_axis_fixes_all_its_parameters() -> None:
    """A pinned cache type fixes the types of K and V."""
    assert SPACE.pin({"cache_type": "q8_0"}).pinned == {
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
    }


def test_pinning_one_parameter_of_an_axis_leaves_the_others() -> None:
    """If the type of K is pinned, only that of V is searched."""
    pinned = SPACE.pin({"cache_type_k": "f16"})

    axis = pinned.axis("cache_type")
    assert axis is not None
    assert axis.params == ("cache_type_v",)
    assert pinned.params_of({"cache_type": "q8_0"}) == {
        "cache_type_k": "f16",
        "cache_type_v": "q8_0",
    }


def test_a_pinned_placement_ends_the_search_of_layouts() -> None:
    """A parameter that places layers fixes the layout; others do not."""
    assert SPACE.layouts
    assert not SPACE.pin({"tensor_split": "3,1"}).layouts
    assert SPACE.pin({"ubatch": 512}).layouts


def test_an_axis_without_values_is_dropped() -> None:
    """An axis keeps the allowed values, and is dropped without any."""
    assert SPACE.with_values("batch", lambda _: False).axis("batch") is None
    assert SPACE.with_values("ubatch", lambda value: value == 512).axis("ubatch") == Axis(
        "ubatch", (512,)
    )


def test_a_constraint_on_an_unset_axis_is_satisfied() -> None:
    """A point without one of the axes satisfies the constraint."""
    assert Constraint("ubatch", "<=", "batch").is_satisfied({"ubatch": 4096})


def test_constraints_compare_numbers_and_texts() -> None:
    """Numbers are compared by size, texts by equality."""
    assert Constraint("ubatch", ">=", "512").is_satisfied({"ubatch": 512})
    assert not Constraint("ubatch", ">", "512").is_satisfied({"ubatch": 512})
    assert Constraint("load_mode", "==", "'none'").is_satisfied({"load_mode": "none"})
    assert not Constraint("load_mode", "!=", "'none'").is_satisfied({"load_mode": "none"})
