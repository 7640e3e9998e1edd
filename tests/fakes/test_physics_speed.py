"""The simulated machine is as fast and as slow as real ones were seen to be."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from fakes.machine import Machine, Noise, Quirks
from fakes.physics import Simulation
from fakes.physics_sample import (
    BASE,
    CARD,
    HOST,
    MODEL,
    ONE,
    REQUESTS,
    TWO,
    cached,
    prefetching,
    truth,
)


def test_pinned_host_weights_upload_faster_than_mapped_ones():
    """Load mode none speeds prompts up and leaves generation alone."""
    none, mapped = (truth(ONE, n_cpu_moe=30, load_mode=mode).samples[0]
                    for mode in ("none", "mmap"))  # fmt: skip

    assert none.prompt_s < 0.85 * mapped.prompt_s
    assert none.predicted_s == pytest.approx(mapped.predicted_s)


def test_a_larger_ubatch_uploads_fewer_times():
    """With host experts a ubatch four times as large is more than half as slow per token."""
    small, large = (truth(ONE, n_cpu_moe=34, ubatch=size).samples[0].prompt_s
                    for size in (512, 2048))  # fmt: skip

    assert large < 0.6 * small


def test_batches_under_the_threshold_stay_on_the_cpu():
    """The 32nd token of a prompt makes it an upload; a higher threshold defers that."""

    def seconds(tokens, **params):
        return truth(ONE, [(tokens, 4)], n_cpu_moe=34, **params).samples[0].prompt_s  # fmt: skip

    jump = seconds(32) - seconds(31)
    no_jump = seconds(32, op_offload_min_batch=64) - seconds(31, op_offload_min_batch=64)
    assert abs(jump) > 5 * abs(no_jump)


def test_the_first_device_uploads_everybodys_experts():
    """The card with the slow link in front makes prompts slow, whoever owns the layers."""
    half = {"n_cpu_moe": 36, "n_gpu_layers": 41, "tensor_split": "21,20"}
    fast = truth(TWO, devices="CUDA0,CUDA1", **half).samples[0].prompt_s
    slow = truth(TWO, devices="CUDA1,CUDA0", **half).samples[0].prompt_s

    assert slow > 1.5 * fast


def test_prefetch_hides_uploads_and_takes_memory_at_the_first_large_batch():
    """Slots speed prompts up, are not there after loading, and change nothing in generation."""
    off, on = (truth(prefetching(), n_cpu_moe=30, prefetch_slots=n) for n in (0, 4))
    short = truth(prefetching(), [(16, 4)], n_cpu_moe=30, prefetch_slots=4)

    assert on.samples[0].prompt_s < 0.8 * off.samples[0].prompt_s
    assert on.samples[0].predicted_s == off.samples[0].predicted_s
    assert on.devices[0].used_mib - off.devices[0].used_mib == pytest.approx(4 * 144)
    assert short.devices[0].pool_mib == 0


def test_prefetch_can_lose():
    """On a machine whose link suffers from whole-tensor copies, prefetch makes prompts slower."""
    off, on = (truth(prefetching(prefetch_link_share=0.3), n_cpu_moe=34, prefetch_slots=n)
               for n in (0, 4))  # fmt: skip

    assert on.samples[0].prompt_s > off.samples[0].prompt_s


def test_prefetch_can_slow_short_prompts_and_speed_long_ones():
    """Whole tensors are uploaded where a small batch wants some of their experts only."""
    machine = prefetching(prefetch_link_share=0.7)
    ttft_s = {
        (tokens, slots): truth(machine, [(tokens, 4)], n_cpu_moe=34, prefetch_slots=slots)
        .samples[0]
        .prompt_s
        for tokens in (64, 8192)
        for slots in (0, 4)
    }

    assert ttft_s[64, 4] > 1.2 * ttft_s[64, 0]
    assert ttft_s[8192, 4] < 0.95 * ttft_s[8192, 0]


def test_an_expert_cache_gains_by_its_size_and_its_link():
    """A large one beats slow memory; a small one over a slow link slows generation down."""

    def tg(machine: Machine, mib: int) -> float:
        run = truth(machine, [(512, 64)], n_cpu_moe=34, moe_cache_mib=mib)
        assert run.failure is None
        return run.samples[0].tg_per_s

    slow = replace(cached(), host=replace(HOST, memory_gb_s=25.0))
    assert tg(slow, 4000) > 1.2 * tg(slow, 0)
    assert tg(cached(link_gb_s=3.0), 512) < 0.6 * tg(cached(link_gb_s=3.0), 0)


def test_layers_beyond_a_small_cache_stay_with_the_cpu():
    """A budget for some of the layers costs the misses of those only."""
    machine = cached(link_gb_s=3.0)
    times = [
        truth(machine, [(512, 64)], n_cpu_moe=34, moe_cache_mib=mib).samples[0].predicted_s
        for mib in (0, 200, 512)
    ]

    assert times[0] < times[1] < times[2]


def test_unified_memory_is_one_memory():
    """Moving experts to the host frees nothing there, and uploads cost nothing."""
    unified = replace(ONE, policy="unified", devices=(replace(CARD, total_mib=40000),))
    device, host = truth(unified), truth(unified, n_cpu_moe=30)

    assert device.host_used_mib == pytest.approx(host.host_used_mib, rel=0.02)
    assert host.samples[0].prompt_s < 1.2 * device.samples[0].prompt_s


def test_a_backend_can_turn_the_slope_round():
    """If routed experts run badly on the device, host layers generate faster."""
    bad = replace(ONE, devices=(replace(CARD, total_mib=24000, expert_decode_share=0.03),))
    good = replace(ONE, devices=(replace(CARD, total_mib=24000),))

    def rate(machine, layers):
        return truth(machine, n_cpu_moe=layers).samples[0].tg_per_s

    assert rate(bad, 30) > rate(bad, 0)
    assert rate(good, 30) < rate(good, 0)


def test_generation_reads_the_cache():
    """Deep contexts generate slower, and a narrower KV type reads less."""
    shallow, deep = (truth(ONE, [(n, 64)], n_cpu_moe=24).samples[0] for n in (512, 16000))
    narrow = truth(
        ONE, [(16000, 64)], n_cpu_moe=24, cache_type_k="q8_0", cache_type_v="q8_0"
    ).samples[0]  # fmt: skip

    assert shallow.tg_per_s > narrow.tg_per_s > deep.tg_per_s


def test_too_many_threads_collapse_where_the_cpu_is_shared():
    """A machine whose threads fight for cores loses most of its generation to the last one."""
    shared = replace(ONE, host=replace(HOST, collapse_threads=8))

    def rate(threads):
        return truth(shared, n_cpu_moe=34, threads=threads).samples[0].tg_per_s

    assert rate(8) < 0.5 * rate(7)


def test_little_free_memory_can_cost_speed_without_a_word():
    """The last layer that fits is slower than the one before where the driver needs room."""
    edge = replace(ONE, quirks=Quirks(edge_mib=900, edge_loss=3.0))

    assert truth(edge, n_cpu_moe=19).samples[0].tg_per_s < (
        0.7 * truth(edge, n_cpu_moe=21).samples[0].tg_per_s
    )


NOISY = replace(ONE, noise=Noise(launch_decode=0.08, within_decode=0.04, first_prompt_s=2.0))


def test_noise_is_repeatable_and_centred_on_the_truth():
    """The same seed gives the same launches, another seed others, and the median is the truth."""
    params = {**BASE, "n_cpu_moe": 24}

    def rates(seed):
        simulation = Simulation(NOISY, MODEL, seed)
        return [simulation.launch(params, REQUESTS).samples[0].tg_per_s for _ in range(200)]

    assert rates(1) == rates(1) != rates(2)
    assert median(rates(1)) == pytest.approx(
        truth(ONE, n_cpu_moe=24).samples[0].tg_per_s, rel=0.02
    )


def test_the_first_request_of_a_launch_is_penalised():
    """Only the first prompt pays for warming up."""
    simulation = Simulation(NOISY, MODEL)
    run = simulation.launch({**BASE, "n_cpu_moe": 24}, [(8192, 8), (8192, 8)])

    assert run.samples[0].prompt_s - run.samples[1].prompt_s > 1.5
