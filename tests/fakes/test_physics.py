"""The simulated machine holds and refuses what real ones were seen to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine import RuntimeTraits
from fakes.physics import Simulation
from fakes.physics_sample import (
    BASE,
    CARD,
    MODEL,
    ONE,
    REQUESTS,
    TWO,
    cached,
    prefetching,
    truth,
)
from fakes.simulated_trial import measurement_of, outcome_of
from hypothesis import given, settings
from hypothesis import strategies as st


def test_buffers_have_the_sizes_that_a_real_server_logged():
    """Weights, KV and compute of the launch in cuda-ok-ncmoe24.log come out as logged."""
    device = truth(ONE, n_cpu_moe=24).devices[0]

    assert device.weights_mib == pytest.approx(7465.71, abs=0.5)
    assert device.kv_mib == pytest.approx(1280.0)
    assert device.compute_mib == pytest.approx(480.05, abs=0.5)


@pytest.mark.parametrize(
    ("params", "stage", "buffer"),
    [
        ({"n_cpu_moe": 0}, "load", "weights"),
        ({"n_cpu_moe": 18, "context": 65536}, "context", "kv"),
        ({"n_cpu_moe": 17, "ubatch": 4096}, "context", "compute"),
    ],
)
def test_a_launch_fails_where_memory_ends(params, stage, buffer):
    """Each stage of loading can be the one that fails, with the device and the MiB asked."""
    failure = truth(ONE, **params).failure

    assert (failure.stage, failure.buffer, failure.device) == (stage, buffer, "CUDA0")
    assert failure.requested_mib > 0


def test_a_server_that_loads_can_die_at_the_first_large_prompt():
    """Run-time pools are asked for by a large batch, not by loading nor by a short prompt."""
    tight = replace(ONE, devices=(replace(CARD, total_mib=500 + 9226 + 40),))

    assert truth(tight, [(8, 4)], n_cpu_moe=24).failure is None
    failure = truth(tight, [(8, 4), (8192, 4)], n_cpu_moe=24).failure
    assert (failure.stage, failure.buffer) == ("prompt", "pool")


def test_quantized_kv_asks_for_more_as_the_context_fills():
    """A long prompt needs memory that a short one did not, where the KV type is narrow."""
    run = {n: truth(ONE, [(n, 4)], n_cpu_moe=24, cache_type_k="q4_0", cache_type_v="q4_0")
           for n in (4096, 16000)}  # fmt: skip

    assert run[16000].devices[0].pool_mib > run[4096].devices[0].pool_mib


def test_each_host_layer_frees_its_experts():
    """One more host expert layer frees exactly that layer's expert bytes."""
    more, fewer = truth(ONE, n_cpu_moe=30).devices[0], truth(ONE, n_cpu_moe=29).devices[0]

    expert_mib = MODEL.blocks[29].expert_bytes / 1024 / 1024
    assert fewer.weights_mib - more.weights_mib == pytest.approx(expert_mib)


def test_an_override_counts_as_the_layers_it_names():
    """The same layers moved by -ncmoe and by a regex are the same launch."""
    by_number = truth(ONE, n_cpu_moe=24)
    names = "|".join(map(str, range(24)))
    by_regex = truth(ONE, override_tensor=rf"blk\.({names})\.ffn_(up|down|gate)_exps=CPU")

    assert by_regex.samples == by_number.samples
    assert by_regex.devices == by_number.devices


def test_the_first_matching_override_wins():
    """An exemption before a wider rule keeps its tensors on the device."""
    rules = r"blk\.3\.ffn_(up|down|gate)_exps=CUDA0,blk\.[0-9]\.ffn_(up|down|gate)_exps=CPU"

    assert truth(ONE, override_tensor=rules, n_cpu_moe=0).hosted_layers == 9


def test_split_integers_that_sum_to_the_units_land_exactly():
    """30,11 puts thirty layers on the first device and ten with the output on the second."""
    run = truth(TWO, n_cpu_moe=30, tensor_split="30,11", n_gpu_layers=41)

    assert [round(device.kv_mib) for device in run.devices] == [960, 320]


def test_pipeline_parallelism_takes_memory_and_gives_speed():
    """It comes on only without overrides, with larger compute buffers and faster prompts."""
    roomy = replace(TWO, devices=tuple(replace(d, total_mib=24000) for d in TWO.devices))
    without = truth(roomy, override_tensor="nothing_like_this=CPU")
    with_it = truth(roomy)

    assert (without.has_pipeline, with_it.has_pipeline) == (False, True)
    assert with_it.devices[0].compute_mib > 1.5 * without.devices[0].compute_mib
    assert with_it.samples[0].prompt_s < 0.8 * without.samples[0].prompt_s


def test_a_pipeline_that_does_not_fit_is_given_up():
    """The runtime goes on without pipeline parallelism where its buffers do not fit."""
    roomy = replace(TWO, devices=tuple(replace(d, total_mib=24000) for d in TWO.devices))
    needed_mib = max(device.used_mib for device in truth(roomy, tensor_split="21,20").devices)
    tight = replace(
        TWO, devices=tuple(replace(d, total_mib=needed_mib - 200) for d in TWO.devices)
    )
    run = truth(tight, tensor_split="21,20")

    assert run.failure is None
    assert not run.has_pipeline


def test_prefetch_slots_that_do_not_fit_are_left_out():
    """Too little memory for the slots is no failure; the launch runs with fewer."""
    run = truth(prefetching(), n_cpu_moe=20, prefetch_slots=8)

    assert run.failure is None
    assert run.devices[0].free_mib < 144
    assert run.devices[0].pool_mib > 2 * 144


def test_one_prefetch_slot_is_none():
    """If only one slot fits it is given back, and prompts take as long as without."""
    fits = truth(prefetching(), n_cpu_moe=20)
    pools = fits.devices[0].free_mib - 200
    card = replace(CARD, other_mib=CARD.other_mib + pools)
    tight = replace(prefetching(), devices=(card,))
    off, on = (truth(tight, n_cpu_moe=20, prefetch_slots=n) for n in (0, 4))

    assert on.devices[0].used_mib == off.devices[0].used_mib
    assert on.samples[0].prompt_s == off.samples[0].prompt_s


def test_some_builds_die_where_prefetch_slots_do_not_fit():
    """They load, and run out of memory at the first large batch."""
    traits = RuntimeTraits(prefetch="slots", prefetch_dies=True)
    run = truth(replace(ONE, runtime=traits), n_cpu_moe=20, prefetch_slots=8)

    assert (run.failure.kind, run.failure.stage, run.failure.device) == (
        "out_of_memory", "prompt", "CUDA0",
    )  # fmt: skip
    assert not run.samples


def test_an_expert_cache_takes_whole_slots_and_no_more_than_there_is():
    """An expert of a layer is a slot; without host experts the cache takes nothing."""
    off, on = (truth(cached(), n_cpu_moe=34, moe_cache_mib=n).devices[0] for n in (0, 1000))
    roomy = cached(total_mib=40000.0)
    none, disabled = (truth(roomy, moe_cache_mib=n).devices[0] for n in (0, 1000))

    assert 998 < on.used_mib - off.used_mib <= 1000
    assert disabled.used_mib == none.used_mib


def test_an_expert_cache_must_hold_one_token():
    """Less is refused, as is a cache without a device that takes work on host weights."""
    small = truth(cached(), n_cpu_moe=34, moe_cache_mib=2)
    alone = truth(cached(), n_cpu_moe=34, moe_cache_mib=512, op_offload=False)

    assert "too small to hold the experts of one token" in small.failure.reason
    assert "requires a GPU backend" in alone.failure.reason


def test_a_spilling_machine_never_fails_and_gets_slow():
    """Past the card memory stays at its ceiling, the rest lies with the host, speed collapses."""
    windows = replace(ONE, policy="spill")
    fits, spills = truth(windows, n_cpu_moe=20), truth(windows, n_cpu_moe=12)

    assert (fits.spilled_mib, spills.failure) == (0, None)
    assert spills.spilled_mib > 1000
    assert spills.devices[0].used_mib == CARD.total_mib
    assert spills.samples[0].tg_per_s < 0.5 * fits.samples[0].tg_per_s
    assert outcome_of(spills).kind == "spilled"


@pytest.mark.parametrize(
    "params",
    [
        {"flash_attn": "off", "cache_type_v": "q4_0"},
        {"cache_type_k": "q9"},
        {"devices": "CUDA7"},
    ],
)
def test_combinations_that_the_runtime_refuses_are_refused(params):
    """A refused combination ends before anything is allocated, with the runtime's words."""
    run = truth(ONE, n_cpu_moe=30, **params)

    assert run.failure.kind == "rejected"
    assert run.failure.reason
    assert outcome_of(run).kind == "rejected"


def test_context_and_batches_are_clamped_as_the_runtime_does():
    """A slot's context is padded, and a ubatch is at most the batch, that at most the context."""
    asked = truth(ONE, [(200, 4)], n_cpu_moe=30, context=300, batch=4096)
    applied = truth(ONE, [(200, 4)], n_cpu_moe=30, context=300, batch=300, ubatch=300)

    assert (asked.samples, asked.devices) == (applied.samples, applied.devices)
    assert asked.devices == truth(ONE, [(200, 4)], n_cpu_moe=30, context=512, batch=300).devices


def test_other_programs_can_take_memory_between_launches():
    """A drifting floor makes a launch fail that fitted before."""
    drifting = replace(ONE, floor_drift_mib=200, floor_drift_limit_mib=2000)
    simulation = Simulation(drifting, MODEL)
    params = {**BASE, "n_cpu_moe": 20}

    outcomes = [simulation.launch(params, REQUESTS).is_completed for _ in range(6)]
    assert outcomes[0]
    assert not outcomes[-1]


def test_a_run_speaks_autofits_own_types():
    """Samples, memory and outcome of a simulated launch are those of a real one."""
    run = truth(ONE, n_cpu_moe=24)
    measured = measurement_of(run)

    assert measured.samples[0].tg_per_s == run.samples[0].tg_per_s
    assert measured.peak_mib["CUDA0"] == run.devices[0].used_mib
    assert outcome_of(run).kind == "completed"
    assert outcome_of(truth(ONE, n_cpu_moe=0)).buffer == "weights"


@st.composite
def launches(draw):
    """Parameters and a prompt length."""
    kind = draw(st.sampled_from(["f16", "q8_0", "q4_0"]))
    params = {
        "n_cpu_moe": draw(st.integers(0, 40)),
        "ubatch": draw(st.sampled_from([16, 64, 512, 700, 2048, 8192])),
        "cache_type_k": kind,
        "cache_type_v": kind,
        "load_mode": draw(st.sampled_from(["none", "mmap", "mlock", "dio"])),
        "tensor_split": draw(st.sampled_from(["", "1,1", "41,0", "0,41", "30,11"])),
    }
    return params, draw(st.integers(1, 16000))


@settings(max_examples=40, deadline=None)
@given(launches())
def test_every_setting_gives_a_failure_or_positive_times(launch):
    """No setting breaks the physics, and more memory never makes a fitting launch fail."""
    params, prompt = launch
    run = truth(TWO, [(prompt, 9)], **params)
    roomier = replace(TWO, devices=tuple(replace(d, total_mib=14000) for d in TWO.devices))

    if run.failure is None:
        assert run.samples[0].prompt_s > 0
        assert run.samples[0].predicted_s > 0
        if params["tensor_split"]:  # without one, more memory moves layers about
            assert truth(roomier, [(prompt, 9)], **params).failure is None
