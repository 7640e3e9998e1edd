"""What is advised after a failure, and by how much."""

from __future__ import annotations

import re

import pytest
from runtime.log_corpus import all_cases

from autofit.runtime.diagnosis.advice import advise, expert_layer_mib, shortfall_mib
from autofit.runtime.diagnosis.diagnose import Diagnosis, diagnose
from autofit.runtime.diagnosis.exit_status import parse_exit_status
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.logs.server_log import LoggedBuffer, LoggedDevice, ServerLog
from autofit.trial.outcome import Completed, OutOfMemory

CASES = {case.name: case for case in all_cases()}
# The model of the logs: 40 layers of 432 MiB of experts in 17.48 GiB.
LAYER_MIB = 447


def told(name: str) -> Diagnosis:
    """The diagnosis of a log of the corpus."""
    case = CASES[name]
    status = parse_exit_status(case.exit) if case.exit else None
    return diagnose(case.text.splitlines(), load_dialect("llama_server"), exit_status=status)


def test_weights_that_do_not_fit_want_more_expert_layers_on_the_host():
    """The number of layers makes up for what the device lacked of what was asked."""
    diagnosis = told("cuda-oom-load")

    # Asked 17833.71 of 11671 MiB: 6162.71 MiB and the reserve are 15 layers of 447 MiB.
    assert diagnosis.advice[0].startswith("raise n_cpu_moe by 15 (about 447 MiB each)")


def test_kv_that_does_not_fit_can_be_narrower_or_shorter():
    """The saving of a narrower type and the context that would fit are told in numbers."""
    advice = told("cuda-oom-kv").advice

    assert advice[0].startswith("use q8_0 for cache_type_k and cache_type_v: saves 4800 MiB")
    assert advice[1] == "lower context 131072 -> 17152 (113920 tokens less: 8883 MiB)"
    assert advice[2].startswith("raise n_cpu_moe by 20")


def test_the_advised_context_would_have_fitted():
    """KV of the context advised is within what the device had left, the reserve kept."""
    diagnosis = told("cuda-oom-kv")
    found = re.search(r"lower context (\d+) -> (\d+)", " ".join(diagnosis.advice))

    assert found is not None
    left = 11671 - diagnosis.log.mib("weights", "CUDA0")
    assert 10240 * int(found[2]) / int(found[1]) + 256 <= left
    assert 10240 * (int(found[2]) + 256) / int(found[1]) + 256 > left


def test_a_compute_buffer_that_does_not_fit_wants_a_smaller_ubatch():
    """The ubatch is halved until what was asked would fit, the reserve kept."""
    advice = told("cuda-oom-compute").advice

    assert advice[0] == "lower ubatch 4096 -> 256 (about 915 MiB)"
    assert advice[1].startswith("raise n_cpu_moe by 3 (about 447 MiB each)")
    # 1280 MiB of KV for 16384 tokens: what is missing are 11507 of them, in steps of 256.
    assert advice[2] == "lower context 16384 -> 4864 (11520 tokens less: 899 MiB)"


def test_a_death_at_the_first_large_batch_wants_one_step_back():
    """Where no size was told, the next smaller ubatch or one layer is advised."""
    advice = told("cuda-first-large-batch").advice

    assert advice[0] == "lower ubatch 2048 -> 1024 (about 240 MiB)"
    assert advice[1].startswith("raise n_cpu_moe by 1")
    assert re.match(r"lower context \d+ -> \d+ \(\d+ tokens less: 256 MiB\)", advice[3])


def test_a_device_with_room_is_pointed_out():
    """Two devices of which one is full should share otherwise."""
    advice = told("cuda-kv-second-device").advice

    assert any(text.startswith("give CUDA1 fewer layers in tensor_split") for text in advice)


def test_refused_pinned_memory_can_be_mapped():
    """The host's side is advised when the host's memory was refused."""
    advice = told("pinned-refused-fatally").advice

    assert advice[0].startswith("use load_mode mmap: weights in host memory (10436 MiB)")
    assert not any("raise n_cpu_moe" in text for text in advice)


def test_an_exceeded_context_is_told_with_what_it_needs():
    """The context advised holds the prompt that was refused."""
    advice = told("cuda-ctx-exceeded").advice

    assert advice[0] == "raise context 2048 -> 4352 plus what is to be generated"


@pytest.mark.parametrize(
    "name",
    [name for name, case in CASES.items() if case.kind in {"out_of_memory", "rejected"}],
)
def test_want_of_memory_and_refusals_come_with_advice(name: str):
    """Nobody is left alone with a failure of their settings."""
    advice = told(name).advice

    assert advice
    assert len(set(advice)) == len(advice)


def test_a_good_launch_needs_no_advice():
    """Nothing is advised where nothing failed."""
    assert told("cuda-ok-ncmoe24").advice == ()
    assert advise(Completed(), ServerLog()) == ()


def test_a_layer_is_a_part_of_the_file():
    """The size of a layer comes from the file's size and its layers, where both are told."""
    assert expert_layer_mib(told("cuda-oom-load").log) == pytest.approx(LAYER_MIB, abs=1)
    assert expert_layer_mib(ServerLog(values={"layers": 40})) is None
    assert expert_layer_mib(ServerLog(values={"layers": 10, "file_mib": 55.0})) == 5.5


def test_a_dense_model_wants_fewer_layers_on_the_device():
    """Without experts it is the whole layer that moves."""
    log = ServerLog(values={"layers": 40, "experts": 0, "file_mib": 8000.0})
    outcome = OutOfMemory("load", "", "device", "weights", "CUDA0", 500.0)

    assert advise(outcome, log) == (
        "lower n_gpu_layers by 4 (about 200 MiB each) or more: KV and compute buffers follow",
    )


@pytest.mark.parametrize(
    ("asked", "free", "held", "short"),
    [(1000.0, 600.0, 0.0, 656.0), (1000.0, 600.0, 500.0, 1156.0), (1000.0, None, 0.0, 1256.0)],
)
def test_what_was_short_is_what_the_device_had_not_left(
    asked: float, free: float | None, held: float, short: float
):
    """Memory that was free less what the log says is held counts against what was asked."""
    log = ServerLog(
        devices=(LoggedDevice("CUDA0", "card", 8000.0, free, is_used=True),),
        buffers=(LoggedBuffer("weights", "device", "CUDA0", held),),
    )

    assert shortfall_mib(OutOfMemory("context", "", device="CUDA0", requested_mib=asked), log) == (
        short
    )


def test_without_figures_the_direction_is_still_told():
    """A log that tells no sizes gives advice without numbers."""
    outcome = OutOfMemory("prompt", "CUDA error: out of memory", "device", "pool")

    assert advise(outcome, ServerLog()) == (
        "lower ubatch by half",
        "lower n_gpu_layers: keep more of the model in host memory",
    )
