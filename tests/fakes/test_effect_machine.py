"""Every kind of invented machine rewards the setting that its effect is about."""

from __future__ import annotations

from itertools import pairwise

import pytest
from fakes.effect_machine import KIND_COUNT, effect_case, effect_cases
from fakes.machine import Machine
from fakes.physics import Run, Simulation
from fakes.random_machine import Case

CASES = effect_cases(2 * KIND_COUNT)
IDS = [f"{case.seed} {' '.join(case.effects)}" for case in CASES]


def cases_of(effect: str) -> list[Case]:
    """The cases of an effect."""
    return [case for case in CASES if effect in case.effects]


def run(case: Case, hosted: int, **params) -> Run:
    """A launch with equal slices and host layers from the first on."""
    count = len(case.machine.devices)
    share, rest = divmod(case.model.units, count)
    split = ",".join(str(share + (at >= count - rest)) for at in range(count))
    usual = {"context": case.context, "parallel": 1, "batch": 2048, "ubatch": 512,
             "n_gpu_layers": case.model.units, "tensor_split": split, "n_cpu_moe": hosted,
             "load_mode": "mmap", "flash_attn": "on"}  # fmt: skip
    done = Simulation(case.machine, case.model).truth({**usual, **params}, [(1024, 64)])
    assert done.is_completed, done.failure
    return done


def prompt_s(case: Case, **params) -> float:
    """Seconds of a prompt with all experts on the host."""
    return run(case, case.model.n_layer, **params).samples[0].prompt_s


def predicted_s(case: Case, **params) -> float:
    """Seconds of generation with all experts on the host."""
    return run(case, case.model.n_layer, **params).samples[0].predicted_s


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_each_case_is_a_function_of_its_seed_and_runs(case: Case):
    """A seed gives the same machine again, which survives JSON, and runs with host experts."""
    assert effect_case(case.seed).machine == case.machine
    assert Machine.from_json(case.machine.to_json()) == case.machine
    assert run(case, case.model.n_layer).samples


def test_half_of_the_cores_generate_faster_where_threads_saturate():
    """All cores lose against half of them, by a few percent to a third."""
    for case in cases_of("saturating_threads"):
        cores = case.machine.host.cores
        ratio = predicted_s(case, threads=cores) / predicted_s(case, threads=cores // 2)
        assert 1.02 < ratio < 1.5


def test_performance_cores_alone_are_faster_on_hybrid_processors():
    """The efficiency cores hold all others back."""
    for case in cases_of("hybrid_cores"):
        host = case.machine.host
        performance = host.cores - host.efficiency_cores
        assert predicted_s(case, threads=performance) < predicted_s(case, threads=host.cores)


def test_sockets_reward_numa():
    """On two sockets the runtime's placement of memory decides the speed."""
    for case in cases_of("two_sockets"):
        half = case.machine.host.cores // 2
        tuned = min(
            predicted_s(case, numa="distribute"), predicted_s(case, numa="isolate", threads=half)
        )
        assert tuned < predicted_s(case)


def test_a_fast_processor_beats_a_slow_link():
    """The processor computes host experts sooner than they are uploaded, on most such machines."""
    gains = [prompt_s(case) / prompt_s(case, op_offload=False) for case in cases_of("fast_cpu")]

    assert sum(gain > 1.1 for gain in gains) >= len(gains) / 2


def test_flash_attention_is_slower_on_old_cards():
    """Long prompts are faster without it there."""
    for case in cases_of("old_cards"):
        assert prompt_s(case, flash_attn="off") < prompt_s(case)


def test_the_order_of_devices_decides_prompts_where_the_first_link_is_slow():
    """The device with the fast link, first in order, uploads the experts sooner."""
    for case in cases_of("slow_first_link"):
        names = [device.name for device in case.machine.devices]
        swapped = ",".join(reversed(names))
        assert prompt_s(case, devices=swapped) < 0.8 * prompt_s(case)


def test_a_weak_device_is_weaker_than_the_others():
    """It has less memory, slower memory and a slower link."""
    for case in cases_of("weak_device"):
        ordered = sorted(case.machine.devices, key=lambda device: device.memory_gb_s)
        assert ordered[0].memory_gb_s < 0.6 * ordered[1].memory_gb_s
        assert ordered[0].total_mib < ordered[1].total_mib


def test_split_mode_tensor_generates_faster_where_the_model_is_on_equal_devices():
    """All devices work at once on every layer, and hold a part of every layer."""
    gains = []
    for case in cases_of("whole_model"):
        layer, tensor = (run(case, 0, split_mode=mode) for mode in ("layer", "tensor"))
        gains.append(layer.samples[0].predicted_s / tensor.samples[0].predicted_s)
        for one, other in pairwise(tensor.devices):
            assert one.weights_mib == pytest.approx(other.weights_mib, rel=0.1)

    assert sum(gain > 1.1 for gain in gains) >= len(gains) / 2
