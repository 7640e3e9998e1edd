"""Named layouts: settings that say what was planned, and fit by the estimate."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.layout_samples import MEASURED, SERVED, devices, handmade, synthesized

from autofit.errors import UsageError
from autofit.model.placement.layout import Layout, layout_with, layouts
from autofit.model.placement.placed_layers import HOST, place
from autofit.model.placement.tensor_override import NO_PIPELINE_RULE
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import SynthSpec
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

CARDS = devices(12288, 7168)
SMALL = Candidate({"context": 2048, "ubatch": 256, "parallel": 1})
NAMES = ("balanced", "capacity", "first_device")


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> ModelInventory:
    """The model of the published measurements."""
    return synthesized(MEASURED, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> ModelInventory:
    """A model with an output layer as large as several layers' experts."""
    spec = SynthSpec(
        layers=16,
        experts=64,
        used=8,
        embd=2048,
        ff=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocab=151936,
        header_only=True,
    )
    return synthesized(spec, tmp_path_factory.mktemp("wide"))


def by_name(found: list[Layout]) -> dict[str, Layout]:
    """Layouts by their names."""
    return {layout.name: layout for layout in found}


def assert_placed_as_planned(
    model: ModelInventory, base: Candidate, layout: Layout, available: tuple[Device, ...]
) -> None:
    """The settings put every layer and every expert where the layout says."""
    placed = place(model, layout.candidate(base), available)
    offloaded = layout.candidate(base).get_int("n_gpu_layers", 0)
    covered = []
    for index, piece in enumerate(layout.slices):
        assert placed.devices[index].name == piece.device
        assert placed.layers_on(index) == piece.layers
        assert (placed.output == index) == piece.output
        if piece.layers:
            first, last = piece.layers
            covered += list(range(first, last + 1))
            hosted = [b for b in range(first, last + 1) if HOST in placed.experts[b]]
            assert tuple(hosted) == piece.host_experts or not model.is_moe
        for block, part in piece.partial.items():
            assert len(placed.experts[block]) == 2, part
    assert covered == list(range(model.units - offloaded, model.block_count))
    if len(layout.slices) > 1:
        split = str(layout.params["tensor_split"])
        assert sum(map(int, split.split(","))) == offloaded


def test_two_unequal_cards(measured):
    """The published machine: every layout fits, capacity hosts fewest, all land exactly."""
    found = by_name(layouts(measured, SERVED, CARDS))
    assert list(found) == [*NAMES, "single:CUDA0", "single:CUDA1"]
    for layout in found.values():
        assert layout.fits
        assert_placed_as_planned(measured, SERVED, layout, CARDS)
        assert layout.estimate == estimate_memory(measured, layout.candidate(SERVED), CARDS)
    fewest = min(layout.host_expert_layers for layout in found.values())
    assert found["capacity"].host_expert_layers == fewest
    hosted = [len(piece.host_experts) for piece in found["balanced"].slices]
    assert max(hosted) - min(hosted) <= 1
    assert [len(piece.host_experts) for piece in found["first_device"].slices][1] == 0


def test_the_published_hand_made_layouts_come_out(measured):
    """Twenty host expert layers: ten per card in equal slices, or all in the first slice."""
    balanced = layout_with(measured, SERVED, CARDS, "balanced", 20)
    assert balanced.params["tensor_split"] in ("20,21", "21,20")
    assert [len(piece.host_experts) for piece in balanced.slices] == [10, 10]
    numbers = "|".join(
        map(str, (*balanced.slices[0].host_experts, *balanced.slices[1].host_experts))
    )
    assert balanced.params["override_tensor"] == (
        rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    )
    first = layout_with(measured, SERVED, CARDS, "first_device", 20)
    assert first.params["n_cpu_moe"] == 20
    assert "override_tensor" not in first.params
    assert first.slices[0].layers[1] >= 19
    assert first.fits
    assert balanced.fits


@pytest.mark.parametrize("name", [*NAMES, "single:CUDA0"])
@pytest.mark.parametrize("count", [0, 1, 7, 19, 40])
def test_any_number_of_host_expert_layers_can_be_asked_for(measured, name, count):
    """The boundary is walked layer by layer, on both sides of what fits."""
    layout = layout_with(measured, SERVED, CARDS, name, count)
    assert layout.host_expert_layers == count
    assert_placed_as_planned(measured, SERVED, layout, CARDS)


def test_fewer_hosted_layers_need_more_memory(measured):
    """Along the walk the devices get fuller, taken together, and fitting ends once.

    The fullest need not: where slices are cut decides which of them a layer is too much for.
    """
    for name in NAMES:
        walk = [layout_with(measured, SERVED, CARDS, name, n) for n in (40, 25, 15, 8, 3)]
        used = [sum(d.total_mib for d in x.estimate.devices) for x in walk]
        assert used == sorted(used)
        assert [x.fits for x in walk] == sorted((x.fits for x in walk), reverse=True)


def test_a_model_that_fits_whole_is_left_whole(measured):
    """With room for everything nothing is hosted and pipeline parallelism comes on."""
    roomy = devices(16000, 16000)
    for name in NAMES:
        layout = layout_with(measured, SERVED, roomy, name, None)
        assert layout.fits
        assert layout.host_expert_layers == 0
        assert layout.estimate.is_pipelined
        assert "override_tensor" not in layout.params


def test_pipeline_parallelism_is_given_up_for_a_layer(measured):
    """Where only its copies do not fit, a harmless rule switches it off and all experts stay."""
    whole = layout_with(measured, SERVED, devices(16000, 16000), "capacity", None)
    tight = devices(*(row.total_mib - 150 for row in whole.estimate.devices))
    layout = layout_with(measured, SERVED, tight, "capacity", None)
    assert layout.fits
    assert layout.params["override_tensor"] == NO_PIPELINE_RULE
    assert layout.host_expert_layers == 0
    assert not layout.estimate.is_pipelined


def test_one_device_has_one_layout(measured):
    """Only the layout of the device itself, as a plain count from the first layer."""
    (layout,) = layouts(measured, SERVED, CARDS[:1])
    assert layout.name == "single:CUDA0"
    assert layout.fits
    assert "tensor_split" not in layout.params
    exact = layout_with(measured, SERVED, CARDS[:1], "single:CUDA0", 24)
    assert exact.params == {"devices": "CUDA0", "n_gpu_layers": 41, "n_cpu_moe": 24}


def test_what_cannot_fit_says_so(measured):
    """A card too small for anything gives a layout that does not fit, no exception."""
    for layout in layouts(measured, SERVED, devices(500, 300)):
        assert not layout.fits


def test_a_large_layer_stays_in_part(measured):
    """Layers of 432 MiB: what is left of a card takes the up and gate, or the down part."""
    plain = layout_with(measured, SERVED, CARDS[:1], "single:CUDA0", 19)
    row = plain.estimate.devices[0]
    for room, part in ((300, "down"), (200, "up_gate"), (100, None)):
        card = devices(row.total_mib + room)
        layout = layout_with(measured, SERVED, card, "single:CUDA0", None)
        assert layout.fits
        assert layout.host_expert_layers == 19
        assert dict(layout.slices[0].partial) == ({18: part} if part else {})
        assert_placed_as_planned(measured, SERVED, layout, card)
        assert ("n_cpu_moe" in layout.params) == (part is None)


def test_small_layers_are_not_divided():
    """Below 400 MiB a layer's experts stay together."""
    model = handmade([300.0] * 6)
    layout = layout_with(model, SMALL, devices(2200), "single:CUDA0", None)
    assert layout.host_expert_layers > 0
    assert not layout.slices[0].partial


def test_faster_devices_get_more_of_a_balanced_layout(measured):
    """A device thrice as fast gets thrice the layers and host experts, where memory allows."""
    roomy = devices(16000, 16000)
    layout = layout_with(
        measured, SERVED, roomy, "balanced", 20, speeds={"CUDA0": 3.0, "CUDA1": 1.0}
    )
    assert [len(piece.host_experts) for piece in layout.slices] == [15, 5]
    assert [piece.units for piece in layout.slices] == [31, 10]


def test_a_dense_model_moves_feed_forwards_then_whole_layers():
    """First `n_cpu_ffn` counts up; where that is not enough, layers stay with the host."""
    model = handmade([0.0] * 12, dense_mib=100.0)
    whole = layout_with(model, SMALL, devices(2500), "single:CUDA0", None)
    assert whole.params == {"devices": "CUDA0", "n_gpu_layers": 13}
    some = layout_with(model, SMALL, devices(1600), "single:CUDA0", None)
    assert some.fits
    assert 0 < some.params["n_cpu_ffn"] < 12
    few = layout_with(model, SMALL, devices(750), "single:CUDA0", None)
    assert few.fits
    assert 0 < few.params["n_gpu_layers"] < 13
    both = layout_with(model, SMALL, devices(1200, 1200), "capacity", None)
    assert both.fits
    assert both.estimate.devices[1].weights_mib > 300


def test_leading_dense_layers_are_counted():
    """Three dense layers first: hosting two layers' experts is a count of five."""
    model = handmade([0.0] * 3 + [100.0] * 9)
    layout = layout_with(model, SMALL, devices(4000), "single:CUDA0", 2)
    assert layout.params["n_cpu_moe"] == 5
    assert layout.slices[0].host_experts == (3, 4)


def test_layers_that_the_user_keeps_on_the_host_stay_there():
    """A pinned `n_gpu_layers` is kept; splits add up to it."""
    model = handmade([50.0] * 9)
    base = SMALL.with_params(n_gpu_layers=6)
    found = layouts(model, base, devices(900, 900))
    for layout in found:
        assert layout.params["n_gpu_layers"] == 6
        assert_placed_as_planned(model, base, layout, devices(900, 900))


def test_only_named_devices_are_used():
    """Devices are those the candidate names, in its order."""
    model = handmade([50.0] * 9)
    three = devices(2000, 2000, 2000)
    base = SMALL.with_params(devices="CUDA2,CUDA0")
    found = by_name(layouts(model, base, three))
    assert list(found) == [*NAMES, "single:CUDA2", "single:CUDA0"]
    assert found["balanced"].params["devices"] == "CUDA2,CUDA0"


def test_an_unknown_layout_is_a_programming_error():
    """Names are those of the table."""
    with pytest.raises(ValueError, match="sideways"):
        layout_with(handmade([50.0] * 3), SMALL, CARDS, "sideways", None)
    with pytest.raises(UsageError):
        layouts(handmade([50.0] * 3), SMALL.with_params(devices="CUDA9"), CARDS)


MACHINES = st.lists(st.integers(750, 2600), min_size=1, max_size=4)
MODELS = st.lists(st.sampled_from([0.0, 90.0, 100.0, 130.0, 450.0]), min_size=3, max_size=12)


@given(MODELS, MACHINES, st.integers(0, 1))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_layout_lands_exactly_and_keeps_to_its_budgets(experts, usable, nextn):
    """No layer is lost or twice, and what is said to fit is within every budget."""
    model = handmade(experts, nextn=nextn)
    machine = devices(*usable)
    for layout in layouts(model, SMALL, machine):
        if not layout.slices:
            assert not layout.fits
            continue
        assert_placed_as_planned(model, SMALL, layout, machine)
        estimate = estimate_memory(model, layout.candidate(SMALL), machine)
        assert layout.estimate == estimate
        assert layout.fits == all(row.total_mib <= row.usable_mib for row in estimate.devices)
        for rule in str(layout.params.get("override_tensor", "")).split(","):
            re.compile(rule)


@given(
    st.lists(st.sampled_from([90.0, 130.0, 200.0]), min_size=3, max_size=5),
    st.lists(st.integers(800, 1300), min_size=2, max_size=2),
)
@settings(max_examples=20, deadline=None)
def test_capacity_hosts_no_more_than_any_other_cut(experts, usable):
    """Every cut and every count per slice, estimated one by one, needs as many or does not fit."""
    model = handmade(experts)
    machine = devices(*usable)
    layout = layout_with(model, SMALL, machine, "capacity", None)
    if not layout.fits or layout.params["n_gpu_layers"] < model.units:
        return
    limit = layout.host_expert_layers
    for inner in combinations_with_replacement(range(model.units + 1), len(usable) - 1):
        cuts = [0, *inner, model.units]
        for hosted in fewer_hosted(model, cuts, limit):
            counts = [b - a for a, b in pairwise(cuts)]
            params = {
                "devices": ",".join(d.name for d, n in zip(machine, counts, strict=True) if n),
                "tensor_split": ",".join(str(n) for n in counts if n),
                "override_tensor": "|".join(rf"blk\.{block}\.ffn_.*_exps" for block in hosted)
                + "=CPU"
                if hosted
                else NO_PIPELINE_RULE,
            }
            estimate = estimate_memory(model, SMALL.with_params(**params), machine)
            # The solver's overheads are those of sample slices, to a few MiB.
            assert any(row.free_mib < 4 for row in estimate.devices), (params, layout.params)


def fewer_hosted(model: ModelInventory, cuts: list[int], limit: int) -> list[list[int]]:
    """Choices of fewer hosted layers than the limit: the largest ones of each slice."""
    choices: list[list[int]] = [[]]
    for start, end in pairwise(cuts):
        blocks = [b for b in model.blocks[start:end] if b.expert_bytes]
        blocks.sort(key=lambda b: (-b.expert_bytes, b.index))
        prefixes = [[b.index for b in blocks[:n]] for n in range(len(blocks) + 1)]
        choices = [old + new for old in choices for new in prefixes]
    return [choice for choice in choices if len(choice) < limit]


def test_sizes_in_these_tests_are_mebibytes():
    """The hand-made models are as large as they say."""
    assert handmade([100.0] * 2).blocks[0].expert_bytes == pytest.approx(100 * MIB, abs=3)


@given(mib=st.lists(st.integers(1000, 3200), min_size=2, max_size=3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_capacity_hosts_no_more_than_any_device_alone(wide, mib):
    """More devices never cost: capacity keeps as many layers as the best single device."""
    found = by_name(layouts(wide, SMALL, devices(*mib)))
    alone = [x for name, x in found.items() if name.startswith("single:") and x.fits]
    for single in alone:
        assert found["capacity"].fits
        on_devices = found["capacity"].params["n_gpu_layers"]
        assert on_devices >= single.params["n_gpu_layers"]
        if on_devices == single.params["n_gpu_layers"]:
            assert found["capacity"].host_expert_layers <= single.host_expert_layers


def test_two_cards_for_a_large_vocabulary_are_both_used(wide):
    """Capacity and first_device use both cards where each alone would host far more."""
    base = SERVED.with_params(context=4096)
    found = by_name(layouts(wide, base, devices(2600, 2300)))
    for name in NAMES:
        assert len(found[name].slices) == 2
        assert found[name].fits
        assert found[name].host_expert_layers < found["single:CUDA0"].host_expert_layers


def test_a_first_card_without_room_leaves_no_first_device_layout(measured):
    """With one usable card of two the layout would be that card's alone, so it is left out."""
    found = by_name(layouts(measured, SERVED, devices(800, 12288)))
    assert "first_device" not in found
    assert [piece.device for piece in found["capacity"].slices] == ["CUDA1"]


@pytest.mark.parametrize("name", ["balanced", "first_device"])
@pytest.mark.parametrize(
    ("usable_mib", "context"),
    [((2200, 2200), 16384), ((3400, 2600), 32768), ((2600, 3400), 65536)],
)
def test_along_a_walk_the_same_layers_lie_on_devices(measured, name, usable_mib, context):
    """Numbers of host experts compare only where as many layers are kept off devices whole."""
    base = SERVED.with_params(context=context)
    numbers = (0, 8, 12, 13, 16, 20, 24, 39, 40)
    walk = [layout_with(measured, base, devices(*usable_mib), name, n) for n in numbers]
    asked = [x for n, x in zip(numbers, walk, strict=True) if x.host_expert_layers == n]

    assert len({x.params["n_gpu_layers"] for x in asked}) == 1
    assert [x.fits for x in asked] == sorted(x.fits for x in asked)
