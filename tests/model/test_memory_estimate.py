"""Estimates of device and host memory agree with published measurements, part by part."""

from __future__ import annotations

import pytest
from model.layout_samples import MEASURED, SERVED, devices, handmade, synthesized
from model_headers import MODELS

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, apply_reported, estimate_memory
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import ReportedMemory

CARDS = devices(12288, 7168)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> ModelInventory:
    """The model of the published measurements."""
    return synthesized(MEASURED, tmp_path_factory.mktemp("model"))


def estimated(model, available=CARDS, **params) -> MemoryEstimate:
    """Return the estimate for the published settings with some changes."""
    return estimate_memory(model, SERVED.with_params(**params), available)


BALANCED = (
    r"blk\.(0|1|2|3|4|5|6|7|8|9|20|21|22|23|24|25|26|27|28|29)"
    r"\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"
)


@pytest.mark.parametrize(
    ("params", "rows", "host_mib"),
    [
        ({"devices": "CUDA0", "n_cpu_moe": 24}, [(7465.71, 1280, 480.05)], 10436),
        (
            {"n_cpu_moe": 20, "tensor_split": "30,11"},
            [(4684.28, 960, 480.05), (4509.43, 320, 480.04)],
            8708,
        ),
        (
            {"override_tensor": BALANCED, "tensor_split": "20,21"},
            [(4562.85, 640, 480.05), (4630.86, 640, 480.04)],
            8708,
        ),
        (
            {"devices": "CUDA0", "n_cpu_moe": 18, "ubatch": 4096},
            [(10057.71, 1280, 976.11)],
            7844,
        ),
        (
            {"devices": "CUDA0", "n_cpu_moe": 24, "ubatch": 512, "context": 2048},
            [(7465.71, 160, 202.01)],
            10436,
        ),
    ],
)
def test_estimate_is_near_the_table_of_the_server(measured, params, rows, host_mib):
    """Weights and cache within 0.1 %, compute within 15 % or 32 MiB of CUDA servers' logs."""
    estimate = estimated(measured, **params)
    for device, (weights, cache, compute) in zip(estimate.devices, rows, strict=True):
        assert device.weights_mib == pytest.approx(weights, rel=0.001)
        assert device.kv_mib == pytest.approx(cache, rel=0.001)
        assert abs(device.compute_mib - compute) <= max(32, 0.15 * compute)
    assert estimate.host.weights_mib == pytest.approx(host_mib, rel=0.001)


def test_each_slice_is_described(measured):
    """Layers, output and host expert layers are those of the placement."""
    first, second = estimated(measured, n_cpu_moe=20, tensor_split="30,11").devices
    assert (first.layers, first.output, first.host_expert_layers) == ((0, 29), False, 20)
    assert (second.layers, second.output, second.host_expert_layers) == ((30, 39), True, 0)
    assert first.total_mib + first.free_mib == 12288
    assert first.fits
    assert not estimated(measured, devices="CUDA0", n_cpu_moe=0).fits


@pytest.mark.parametrize(
    ("host_layers", "ubatch", "load_mode", "other_mib"),
    [
        (18, 2048, "mmap", 733),
        (18, 2048, "none", 749),
        (18, 1024, "none", 739),
        (24, 512, "none", 747),
        (24, 4096, "none", 803),
        (40, 4096, "none", 821),
    ],
)
def test_memory_beyond_buffers_is_near_the_measured(
    measured, host_layers, ubatch, load_mode, other_mib
):
    """A CUDA process also needs page tables for weights in pinned memory."""
    params = {"n_cpu_moe": host_layers, "ubatch": ubatch, "load_mode": load_mode}
    row = estimated(measured, devices="CUDA0", **params).devices[0]
    assert row.other_mib == pytest.approx(other_mib, abs=16)


@pytest.mark.parametrize(
    ("ubatch", "expected_mib"), [(512, 405), (512, 388), (2048, 1116), (4096, 2163)]
)
def test_vulkan_pads_the_activations_of_experts(measured, ubatch, expected_mib):
    """A Vulkan process used half a MiB beyond its buffers for each token of the ubatch.

    This is not known for cards without tensor cores, so nothing is added for them.
    """
    settings = {"devices": "Vulkan0", "n_cpu_moe": 22, "ubatch": ubatch}

    def other_mib(description):
        card = Device("Vulkan0", description, 143771.0, 12178.0)
        return estimated(measured, (card,), **settings).devices[0].other_mib

    assert other_mib("NVIDIA H200") == pytest.approx(expected_mib, rel=0.06)
    assert other_mib("AMD Radeon RX 6700 XT (RADV NAVI22)") < 300
    assert other_mib("NVIDIA GeForce GTX 1070") < 300


@pytest.mark.parametrize(("ubatch", "compute_mib"), [(512, 216.01), (2048, 432.0), (4096, 720.0)])
def test_vulkan_scales_the_results_of_experts_in_place(measured, ubatch, compute_mib):
    """Compute buffers of a Vulkan server, which are smaller than those of CUDA."""
    card = Device("Vulkan0", "NVIDIA H200", 143771.0, 12178.0)
    estimate = estimated(measured, (card,), devices="Vulkan0", n_cpu_moe=22, ubatch=ubatch)

    assert estimate.devices[0].compute_mib == pytest.approx(compute_mib, abs=26)


def test_slots_and_caches_for_experts_are_on_the_staging_device(measured):
    """The first device has the slots, of the largest expert tensor each, and the cache."""
    plain = estimated(measured, n_cpu_moe=20, tensor_split="30,11")
    more = estimated(
        measured, n_cpu_moe=20, tensor_split="30,11", prefetch_slots=4, moe_cache_mib=1000
    )
    grown = [
        after.other_mib - before.other_mib
        for before, after in zip(plain.devices, more.devices, strict=True)
    ]
    assert grown == [4 * 144 + 1000, 0]
    all_on_device = estimated(measured, devices="CUDA0", prefetch_slots=4, moe_cache_mib=1000)
    assert all_on_device.devices[0].other_mib < 800


@pytest.mark.parametrize(
    ("backend", "context", "wider_mib"),
    [("CUDA", 65536, 0), ("CUDA", 262144, 512 - 144), ("ROCm", 65536, 128), ("Vulkan", 65536, 0)],
)
def test_narrow_cache_needs_room_for_its_conversion(measured, backend, context, wider_mib):
    """Attention converts a layer's quantized cache to f16, on CUDA in the experts' scratch."""
    card = Device(f"{backend}0", "a card", 12288.0, 12288.0)

    def row(cache_type):
        kinds = {"cache_type_k": cache_type, "cache_type_v": cache_type}
        settings = {"devices": card.name, "n_cpu_moe": 24, "context": context}
        return estimated(measured, (card,), **settings, **kinds).devices[0]

    plain, narrow = row("f16"), row("q8_0")
    assert narrow.kv_mib == pytest.approx(plain.kv_mib * 1.0625 / 2)
    assert narrow.other_mib - plain.other_mib == pytest.approx(wider_mib)


def test_pipeline_parallelism_is_derived_from_the_settings(measured):
    """It is on only with several devices, everything offloaded and no override at all."""
    on = estimated(measured, tensor_split="20,21")
    assert on.is_pipelined
    for params in (
        {"n_cpu_moe": 1},
        {"override_tensor": "^$=CPU"},
        {"n_gpu_layers": 40},
        {"devices": "CUDA0"},
        {"split_mode": "none"},
        {"kv_offload": "off"},
    ):
        off = estimated(measured, tensor_split="20,21", **params)
        assert not off.is_pipelined, params
    harmless = estimated(measured, tensor_split="20,21", override_tensor="^$=CPU")
    for with_copies, without in zip(on.devices, harmless.devices, strict=True):
        assert with_copies.weights_mib == without.weights_mib
        assert with_copies.compute_mib > without.compute_mib + 100
    given = estimate_memory(
        measured, SERVED.with_params(tensor_split="20,21"), CARDS, is_pipelined=False
    )
    assert [d.compute_mib for d in given.devices] == [d.compute_mib for d in harmless.devices]


@pytest.mark.parametrize(
    ("params", "kv_mib"),
    [
        ({"swa_full": "on"}, 1536),
        ({"kv_unified": True}, 792),
        ({"kv_unified": "off"}, 840),
        ({}, 840),
    ],
)
def test_cells_follow_the_settings_of_the_cache(tmp_path, params, kv_mib):
    """Whole windows or one cache for all slots change the KV cache as in llama.cpp b11434."""
    model = read_inventory(MODELS["gpt_oss_20b"]().write(tmp_path / "model.gguf"))
    settings = {"context": 32768, "parallel": 4, "batch": 512, "ubatch": 512, **params}
    estimate = estimate_memory(model, Candidate(settings), devices(24080))
    assert estimate.devices[0].kv_mib + estimate.host.kv_mib == kv_mib


def test_whole_windows_have_a_mask_of_their_own(tmp_path):
    """`swa_full` needs 7 MiB more for masks, as llama-fit-params b11434 reports."""
    model = read_inventory(MODELS["gpt_oss_20b"]().write(tmp_path / "model.gguf"))
    settings = Candidate({"context": 32768, "parallel": 4, "batch": 512, "ubatch": 512})
    windowed = estimate_memory(model, settings, ())
    whole = estimate_memory(model, settings.with_params(swa_full="on"), ())
    assert whole.host.compute_mib - windowed.host.compute_mib == pytest.approx(7, abs=0.5)


def test_without_op_offload_no_batch_is_large_enough_for_the_device(measured):
    """`op_offload` off has the memory of a minimum that no batch reaches."""
    settings = {"devices": "CUDA0", "n_cpu_moe": 24, "ubatch": 4096}
    unstaged = estimated(measured, op_offload="off", **settings)
    assert unstaged == estimated(measured, op_offload_min_batch=8192, **settings)
    assert unstaged != estimated(measured, **settings)


def test_cache_can_stay_on_the_host(measured):
    """Without KV offload the devices have none of it."""
    estimate = estimated(measured, devices="CUDA0", n_cpu_moe=24, kv_offload="off")
    assert estimate.devices[0].kv_mib == 0
    assert estimate.host.kv_mib == pytest.approx(1280)


def test_layers_on_the_host_have_their_cache_there(measured):
    """With 31 of 41 units offloaded, the host has the cache and weights of ten layers."""
    estimate = estimated(measured, devices="CUDA0", n_gpu_layers=31, n_cpu_moe=40)
    assert estimate.host.kv_mib == pytest.approx(320)
    assert estimate.devices[0].layers == (10, 39)
    assert estimate.devices[0].host_expert_layers == 30


def test_only_mapped_weights_can_be_dropped(measured):
    """The host's weights are pages of the file unless the load mode says otherwise."""
    loaded = estimated(measured, devices="CUDA0", n_cpu_moe=24).host
    mapped = estimated(measured, devices="CUDA0", n_cpu_moe=24, load_mode="mmap").host
    assert (loaded.is_mapped, mapped.is_mapped) == (False, True)
    assert loaded.total_mib == mapped.total_mib == loaded.resident_mib
    assert mapped.resident_mib == pytest.approx(mapped.total_mib - 10436)


def test_host_weights_are_repacked_if_no_device_pins_memory(measured):
    """With remote devices q4_k experts get a buffer of their own; with CUDA they do not."""
    remote = devices(24000, backend="RPC")
    estimate = estimated(measured, remote, n_cpu_moe=24)
    assert estimate.host.repack_mib == pytest.approx(24 * 432)
    assert estimate.host.weights_mib == pytest.approx(68)
    assert estimated(measured, remote, n_cpu_moe=24, repack="off").host.repack_mib == 0
    assert estimated(measured, devices="CUDA0", n_cpu_moe=24).host.repack_mib == 0


def test_candidate_without_devices_has_host_memory_only(measured):
    """All weights and the cache are on the host."""
    estimate = estimated(measured, devices="none")
    assert estimate.devices == ()
    assert estimate.host.kv_mib == pytest.approx(1280)
    assert estimate.fits


def test_reported_buffers_replace_the_estimated_ones(measured):
    """The runtime's figures are taken as they are; memory that it does not count stays."""
    plain = estimated(measured, n_cpu_moe=20, tensor_split="30,11")
    reported = {
        "CUDA0": ReportedMemory(4684, 960, 480),
        "CUDA1": ReportedMemory(4509, 320, 454),
        "host": ReportedMemory(8708, 0, 128),
    }
    merged = apply_reported(plain, reported)
    assert merged.estimator == "runtime"
    assert [(d.weights_mib, d.kv_mib, d.compute_mib) for d in merged.devices] == [
        (4684, 960, 480),
        (4509, 320, 454),
    ]
    assert [d.other_mib for d in merged.devices] == [d.other_mib for d in plain.devices]
    assert (merged.host.weights_mib, merged.host.compute_mib) == (8708, 128)
    partly = apply_reported(plain, {"CUDA0": reported["CUDA0"]})
    assert partly.estimator == "arithmetic"
    assert partly.device("CUDA1") == plain.device("CUDA1")


def test_server_keeps_logits_of_its_slots_only(measured):
    """With as many outputs as tokens the device of the output layer needs more."""
    settings = SERVED.with_params(devices="CUDA0", n_cpu_moe=24)
    served = estimate_memory(measured, settings, CARDS)
    planned = estimate_memory(measured, settings, CARDS, outputs=2048)
    assert planned.devices[0].compute_mib >= served.devices[0].compute_mib


def test_batch_and_context_limit_the_ubatch():
    """A ubatch above the batch or the context is reduced, as the runtime does."""
    model = handmade([30.0] * 4)
    base = Candidate({"devices": "CUDA0", "context": 1024, "batch": 512, "ubatch": 256})
    wide = base.with_params(ubatch=4096)
    assert estimate_memory(model, wide, CARDS) == estimate_memory(
        model, base.with_params(ubatch=512), CARDS
    )
    small = base.with_params(context=128, batch=4096, ubatch=4096)
    assert estimate_memory(model, small, CARDS) == estimate_memory(
        model, small.with_params(ubatch=128), CARDS
    )


def test_dense_layers_on_the_host_are_staged_too():
    """Matrices of FFNs on the host pass through the first device's buffer."""
    model = handmade([0.0] * 4, dense_mib=300.0)
    base = Candidate({"devices": "CUDA0", "context": 1024})
    kept = estimate_memory(model, base, CARDS).devices[0]
    moved = estimate_memory(model, base.with_params(n_cpu_ffn=4), CARDS).devices[0]
    assert kept.weights_mib - moved.weights_mib == pytest.approx(1200)
    assert moved.compute_mib >= 100 > kept.compute_mib
