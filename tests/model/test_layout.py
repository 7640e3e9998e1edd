"""Named layouts: their settings produce the planned slices, and the estimate fits."""

from __future__ import annotations

import re
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.layout_samples import MEASURED, SERVED, devices, handmade, synthesized

from autofit.errors import UsageError
from autofit.model.placement.layout import Layout, plan_layout, plan_layouts
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.sizes.tensor_placement import HOST, NO_PIPELINE_RULE, place_tensors
from autofit.model.synth.random_model import SynthSpec
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.units import MIB

CARDS = devices(12288, 7168)
SMALL = Candidate({"context": 2048, "ubatch": 256, "parallel": 1})
NAMES = ("balanced", "capacity", "first_device")


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> ModelInventory:
    """Return the model of the published measurements."""
    return synthesized(MEASURED, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> ModelInventory:
    """Return a model with an output layer as large as the experts of several layers."""
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
    """Return layouts by name."""
    return {layout.name: layout for layout in found}


def assert_places_match(
    model: ModelInventory, base: Candidate, layout: Layout, available: tuple[Device, ...]
) -> None:
    """Assert that the settings place every layer and expert as the layout describes."""
    placed = place_tensors(model, layout.candidate(base), available)
    offloaded = layout.candidate(base).get_int("n_gpu_layers", 0)
    covered = []
    for index, piece in enumerate(layout.slices):
        assert placed.devices[index].name == piece.device
        blocks = placed.blocks_on(index)
        assert ((blocks[0], blocks[-1]) if blocks else None) == piece.layers
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
    """On the published machine every layout fits, and capacity hosts the fewest layers."""
    found = by_name(plan_layouts(measured, SERVED, CARDS))
    assert list(found) == [*NAMES, "single:CUDA0", "single:CUDA1"]
    for layout in found.values():
        assert layout.fits
        assert_places_match(measured, SERVED, layout, CARDS)
        assert layout.estimate == estimate_memory(measured, layout.candidate(SERVED), CARDS)
    fewest = min(layout.host_expert_layers for layout in found.values())
    assert found["capacity"].host_expert_layers == fewest
    hosted = [len(piece.host_experts) for piece in found["balanced"].slices]
    assert max(hosted) - min(hosted) <= 1
    assert [len(piece.host_experts) for piece in found["first_device"].slices][1] == 0


def test_published_layouts_made_by_hand(measured):
    """Twenty host expert layers are ten per card in equal slices, or all in the first slice."""
    balanced = plan_layout(measured, SERVED, CARDS, "balanced", 20)
    assert balanced.params["tensor_split"] in ("20,21", "21,20")
    assert [len(piece.host_experts) for piece in balanced.slices] == [10, 10]
    numbers = "|".join(
        map(str, (*balanced.slices[0].host_experts, *balanced.slices[1].host_experts))
    )
    assert balanced.params["override_tensor"] == (
        rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
    )
    first = plan_layout(measured, SERVED, CARDS, "first_device", 20)
    assert first.params["n_cpu_moe"] == 20
    assert "override_tensor" not in first.params
    assert first.slices[0].layers[1] >= 19
    assert first.fits
    assert balanced.fits


@pytest.mark.parametrize("name", [*NAMES, "single:CUDA0"])
@pytest.mark.parametrize("count", [0, 1, 7, 19, 40])
def test_any_number_of_host_expert_layers(measured, name, count):
    """A layout can have any number of host expert layers, whether it fits or not."""
    layout = plan_layout(measured, SERVED, CARDS, name, count)
    assert layout.host_expert_layers == count
    assert_places_match(measured, SERVED, layout, CARDS)


def test_fewer_host_layers_need_more_memory(measured):
    """With fewer host layers the devices get fuller in total, and fitting ends once.

    A single device need not get fuller, because slices are cut again for each number.
    """
    for name in NAMES:
        walk = [plan_layout(measured, SERVED, CARDS, name, n) for n in (40, 25, 15, 8, 3)]
        used = [sum(d.total_mib for d in x.estimate.devices) for x in walk]
        assert used == sorted(used)
        assert [x.fits for x in walk] == sorted((x.fits for x in walk), reverse=True)


def test_a_model_that_fits_stays_on_the_devices(measured):
    """With room for everything nothing is on the host, and pipeline parallelism is on."""
    roomy = devices(16000, 16000)
    for name in NAMES:
        layout = plan_layout(measured, SERVED, roomy, name, None)
        assert layout.fits
        assert layout.host_expert_layers == 0
        assert layout.estimate.is_pipelined
        assert "override_tensor" not in layout.params


def test_pipeline_parallelism_is_turned_off_to_keep_experts(measured):
    """If only its copies do not fit, a rule without effect turns it off and all experts stay."""
    whole = plan_layout(measured, SERVED, devices(16000, 16000), "capacity", None)
    tight = devices(*(row.total_mib - 150 for row in whole.estimate.devices))
    layout = plan_layout(measured, SERVED, tight, "capacity", None)
    assert layout.fits
    assert layout.params["override_tensor"] == NO_PIPELINE_RULE
    assert layout.host_expert_layers == 0
    assert not layout.estimate.is_pipelined


def test_one_device_has_one_layout(measured):
    """A single device has only its own layout, a count from the first layer."""
    (layout,) = plan_layouts(measured, SERVED, CARDS[:1])
    assert layout.name == "single:CUDA0"
    assert layout.fits
    assert "tensor_split" not in layout.params
    exact = plan_layout(measured, SERVED, CARDS[:1], "single:CUDA0", 24)
    assert exact.params == {"devices": "CUDA0", "n_gpu_layers": 41, "n_cpu_moe": 24}


def test_a_layout_that_cannot_fit(measured):
    """A card that is too small gives a layout that does not fit, and no exception."""
    for layout in plan_layouts(measured, SERVED, devices(500, 300)):
        assert not layout.fits


def test_a_large_layer_is_partly_on_the_host(measured):
    """With layers of 432 MiB, a card's remaining memory gets up and gate, or down."""
    plain = plan_layout(measured, SERVED, CARDS[:1], "single:CUDA0", 19)
    row = plain.estimate.devices[0]
    for room, part in ((300, "down"), (200, "up_gate"), (100, None)):
        card = devices(row.total_mib + room)
        layout = plan_layout(measured, SERVED, card, "single:CUDA0", None)
        assert layout.fits
        assert layout.host_expert_layers == 19
        assert dict(layout.slices[0].partial) == ({18: part} if part else {})
        assert_places_match(measured, SERVED, layout, card)
        assert ("n_cpu_moe" in layout.params) == (part is None)


def test_small_layers_are_not_divided():
    """The experts of a layer below 400 MiB stay together."""
    model = handmade([300.0] * 6)
    layout = plan_layout(model, SMALL, devices(2200), "single:CUDA0", None)
    assert layout.host_expert_layers > 0
    assert not layout.slices[0].partial


def test_a_dense_model_moves_feed_forward_then_whole_layers():
    """First `n_cpu_ffn` increases; if that is not enough, whole layers stay on the host."""
    model = handmade([0.0] * 12, dense_mib=100.0)
    whole = plan_layout(model, SMALL, devices(2500), "single:CUDA0", None)
    assert whole.params == {"devices": "CUDA0", "n_gpu_layers": 13}
    some = plan_layout(model, SMALL, devices(1600), "single:CUDA0", None)
    assert some.fits
    assert 0 < some.params["n_cpu_ffn"] < 12
    few = plan_layout(model, SMALL, devices(750), "single:CUDA0", None)
    assert few.fits
    assert 0 < few.params["n_gpu_layers"] < 13
    both = plan_layout(model, SMALL, devices(1200, 1200), "capacity", None)
    assert both.fits
    assert both.estimate.devices[1].weights_mib > 300


def test_leading_dense_layers_are_counted():
    """After three dense layers, the experts of two layers are a count of five."""
    model = handmade([0.0] * 3 + [100.0] * 9)
    layout = plan_layout(model, SMALL, devices(4000), "single:CUDA0", 2)
    assert layout.params["n_cpu_moe"] == 5
    assert layout.slices[0].host_experts == (3, 4)


def test_a_pinned_number_of_gpu_layers():
    """A pinned `n_gpu_layers` stays, and splits add up to it."""
    model = handmade([50.0] * 9)
    base = SMALL.with_params(n_gpu_layers=6)
    found = plan_layouts(model, base, devices(900, 900))
    for layout in found:
        assert layout.params["n_gpu_layers"] == 6
        assert_places_match(model, base, layout, devices(900, 900))


def test_only_named_devices_are_used():
    """Layouts use the devices that the candidate names, in its order."""
    model = handmade([50.0] * 9)
    three = devices(2000, 2000, 2000)
    base = SMALL.with_params(devices="CUDA2,CUDA0")
    found = by_name(plan_layouts(model, base, three))
    assert list(found) == [*NAMES, "single:CUDA2", "single:CUDA0"]
    assert found["balanced"].params["devices"] == "CUDA2,CUDA0"


def test_an_unknown_layout_is_a_programming_error():
    """An unknown name raises ValueError."""
    with pytest.raises(ValueError, match="sideways"):
        plan_layout(handmade([50.0] * 3), SMALL, CARDS, "sideways", None)
    with pytest.raises(UsageError):
        plan_layouts(handmade([50.0] * 3), SMALL.with_params(devices="CUDA9"), CARDS)


MACHINES = st.lists(st.integers(750, 2600), min_size=1, max_size=4)
MODELS = st.lists(st.sampled_from([0.0, 90.0, 100.0, 130.0, 450.0]), min_size=3, max_size=12)


@given(MODELS, MACHINES, st.integers(0, 1))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_layouts_are_placed_exactly_and_fit_their_budgets(experts, usable, nextn):
    """Each layer has one place, and a layout with `fits` is within every budget."""
    model = handmade(experts, nextn=nextn)
    machine = devices(*usable)
    for layout in plan_layouts(model, SMALL, machine):
        if not layout.slices:
            assert not layout.fits
            continue
        assert_places_match(model, SMALL, layout, machine)
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
    """Every other cut and count per slice has as many host layers or does not fit."""
    model = handmade(experts)
    machine = devices(*usable)
    layout = plan_layout(model, SMALL, machine, "capacity", None)
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
            # The solver's overheads are exact to a few MiB.
            assert any(row.free_mib < 4 for row in estimate.devices), (params, layout.params)


def fewer_hosted(model: ModelInventory, cuts: list[int], limit: int) -> list[list[int]]:
    """Return choices with fewer host layers than the limit: the largest of each slice."""
    choices: list[list[int]] = [[]]
    for start, end in pairwise(cuts):
        blocks = [b for b in model.blocks[start:end] if b.expert_bytes]
        blocks.sort(key=lambda b: (-b.expert_bytes, b.index))
        prefixes = [[b.index for b in blocks[:n]] for n in range(len(blocks) + 1)]
        choices = [old + new for old in choices for new in prefixes]
    return [choice for choice in choices if len(choice) < limit]


def test_handmade_models_have_the_given_sizes():
    """A handmade model has the size that its argument gives."""
    assert handmade([100.0] * 2).blocks[0].expert_bytes == pytest.approx(100 * MIB, abs=3)


@given(mib=st.lists(st.integers(1000, 3200), min_size=2, max_size=3))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
def test_capacity_hosts_no_more_than_any_single_device(wide, mib):
    """Capacity keeps as many layers on devices as the best single device."""
    found = by_name(plan_layouts(wide, SMALL, devices(*mib)))
    alone = [x for name, x in found.items() if name.startswith("single:") and x.fits]
    for single in alone:
        assert found["capacity"].fits
        on_devices = found["capacity"].params["n_gpu_layers"]
        assert on_devices >= single.params["n_gpu_layers"]
        if on_devices == single.params["n_gpu_layers"]:
            assert found["capacity"].host_expert_layers <= single.host_expert_layers


def test_two_cards_for_a_large_vocabulary_are_both_used(wide):
    """Capacity and first_device use both cards if one alone would host far more layers."""
    base = SERVED.with_params(context=4096)
    found = by_name(plan_layouts(wide, base, devices(2600, 2300)))
    for name in NAMES:
        assert len(found[name].slices) == 2
        assert found[name].fits
        assert found[name].host_expert_layers < found["single:CUDA0"].host_expert_layers


def test_a_first_card_without_room_leaves_no_first_device_layout(measured):
    """With one usable card of two, first_device would equal single, so it is left out."""
    found = by_name(plan_layouts(measured, SERVED, devices(800, 12288)))
    assert "first_device" not in found
    assert [piece.device for piece in found["capacity"].slices] == ["CUDA1"]


@pytest.mark.parametrize("name", ["balanced", "first_device"])
@pytest.mark.parametrize(
    ("usable_mib", "context"),
    [((2200, 2200), 16384), ((3400, 2600), 32768), ((2600, 3400), 65536)],
)
def test_counts_do_not_change_the_layers_on_devices(measured, name, usable_mib, context):
    """The number of whole layers on the host does not depend on the number of host experts."""
    base = SERVED.with_params(context=context)
    numbers = (0, 8, 12, 13, 16, 20, 24, 39, 40)
    walk = [plan_layout(measured, base, devices(*usable_mib), name, n) for n in numbers]
    asked = [x for n, x in zip(numbers, walk, strict=True) if x.host_expert_layers == n]

    assert len({x.params["n_gpu_layers"] for x in asked}) == 1
    assert [x.fits for x in asked] == sorted(x.fits for x in asked)


@pytest.mark.parametrize("rule", NAMES)
def test_a_layout_follows_its_order_of_devices(measured, rule):
    """Slices, split and host layers are those of the devices in the named order."""
    hosted = 24
    layout = plan_layout(measured, SERVED, CARDS, f"{rule}:CUDA1,CUDA0", hosted)

    assert layout.fits
    assert layout.name == f"{rule}:CUDA1,CUDA0"
    assert layout.params["devices"] == "CUDA1,CUDA0"
    assert [piece.device for piece in layout.slices] == ["CUDA1", "CUDA0"]
    assert layout.host_expert_layers == hosted
    if rule == "first_device":
        assert len(layout.slices[0].host_experts) == hosted
    assert_places_match(measured, SERVED, layout, CARDS)


@pytest.mark.parametrize(
    "name", ["capacity:CUDA7", "capacity:CUDA1,CUDA7", "widest", "widest:CUDA0"]
)
def test_a_layout_of_unknown_devices_or_rules_is_refused(measured, name):
    """There is no such layout."""
    with pytest.raises(ValueError, match="no layout"):
        plan_layout(measured, SERVED, CARDS, name, 10)


def test_divided_layers_are_on_all_devices(wide):
    """Each device has a part of every layer and of the cache, and nothing is on the host."""
    equal, unequal = devices(12288, 12288), devices(14336, 2048)
    layout = plan_layout(wide, SMALL, equal, "tensor", None)
    uneven = plan_layout(wide, SMALL, unequal, "tensor", None)
    whole = plan_layout(wide, SMALL, devices(65536), "single:CUDA0", None)

    assert layout.fits
    assert layout.params["split_mode"] == "tensor"
    assert layout.params["tensor_split"] == "1,1"
    assert layout.host_expert_layers == 0
    first, second = layout.estimate.devices
    assert first.weights_mib == second.weights_mib
    (alone,) = whole.estimate.devices
    assert first.weights_mib + second.weights_mib == pytest.approx(alone.weights_mib, rel=0.01)
    assert first.kv_mib + second.kv_mib == pytest.approx(alone.kv_mib, rel=0.01)
    large, small = (int(part) for part in str(uneven.params["tensor_split"]).split(","))
    assert large / small == pytest.approx(14336 / 2048, rel=0.1)
