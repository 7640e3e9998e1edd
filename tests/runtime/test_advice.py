"""Advice after a failure: the changes and their amounts."""

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
PARAMETERS = (
    *("n_cpu_moe", "n_gpu_layers", "ubatch", "context", "cache_type_k", "tensor_split"),
    *("load_mode", "parallel", "prompt cache", "host memory"),
)


def diagnose_case(name: str) -> Diagnosis:
    """Return the diagnosis of a log of the corpus."""
    case = CASES[name]
    status = parse_exit_status(case.exit) if case.exit else None
    return diagnose(case.text.splitlines(), load_dialect("llama_server"), exit_status=status)


def changes(advice: tuple[str, ...]) -> list[tuple[str, list[int]]]:
    """Return the parameter and the whole numbers of each advice."""
    return [
        (
            min((name for name in PARAMETERS if name in text), key=text.index),
            [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", text)],
        )
        for text in advice
    ]


def test_weights_out_of_memory_need_more_layers_on_the_host():
    """The advised number of layers covers the memory that the device lacked."""
    [(parameter, numbers), *_] = changes(diagnose_case("cuda-oom-load").advice)

    # Requested 17833.71 of 11671 MiB: 6162.71 MiB and the reserve are 15 layers of 447 MiB.
    assert (parameter, numbers) == ("n_cpu_moe", [15, LAYER_MIB])


def test_kv_out_of_memory_can_be_narrower_or_shorter():
    """The advice has the saving of a narrower KV type and the context that would fit."""
    advice = diagnose_case("cuda-oom-kv").advice

    assert "q8_0" in advice[0]
    assert changes(advice)[:3] == [
        ("cache_type_k", [4800]),
        ("context", [131072, 17152, 8883]),
        ("n_cpu_moe", [20, LAYER_MIB]),
    ]


def test_advised_context_would_have_fitted():
    """KV of the advised context and the reserve fit into the memory that the device had left."""
    diagnosis = diagnose_case("cuda-oom-kv")
    found = changes(diagnosis.advice)
    now, fitting, _ = next(numbers for parameter, numbers in found if parameter == "context")

    left = 11671 - diagnosis.log.mib("weights", "CUDA0")
    assert 10240 * fitting / now + 256 <= left
    assert 10240 * (fitting + 256) / now + 256 > left


def test_compute_buffer_out_of_memory_needs_a_smaller_ubatch():
    """The ubatch is halved until the buffer and the reserve fit."""
    # 1280 MiB of KV for 16384 tokens: 11507 tokens have the missing memory, in steps of 256.
    assert changes(diagnose_case("cuda-oom-compute").advice)[:3] == [
        ("ubatch", [4096, 256, 915]),
        ("n_cpu_moe", [3, LAYER_MIB]),
        ("context", [16384, 4864, 899]),
    ]


def test_exit_at_the_first_large_batch_needs_one_step_back():
    """Without a logged size the advice is half the ubatch, one layer, or 256 MiB of context."""
    found = changes(diagnose_case("cuda-first-large-batch").advice)

    assert found[:2] == [("ubatch", [2048, 1024, 240]), ("n_cpu_moe", [1, LAYER_MIB])]
    assert found[3][0] == "context"
    assert found[3][1][-1] == 256


def test_device_with_machine_facts_is_named():
    """If only one of two devices is full, the advice is to move layers to the other."""
    advice = diagnose_case("cuda-kv-second-device").advice

    assert any("from CUDA1 to CUDA0 with tensor_split" in text for text in advice)


def test_refused_pinned_memory_can_be_mapped():
    """For host memory the advice is about the host and its 10436 MiB of weights."""
    found = changes(diagnose_case("pinned-refused-fatally").advice)

    assert found[0] == ("load_mode", [10436])
    assert "n_cpu_moe" not in dict(found)


def test_exceeded_context_must_hold_the_prompt():
    """The advised context is large enough for the refused prompt."""
    assert changes(diagnose_case("cuda-ctx-exceeded").advice)[0] == ("context", [2048, 4352])


@pytest.mark.parametrize(
    "name",
    [name for name, case in CASES.items() if case.kind in {"out_of_memory", "rejected"}],
)
def test_memory_failures_and_refusals_have_advice(name: str):
    """Every log of these kinds has advice, without repetition."""
    advice = diagnose_case(name).advice

    assert advice
    assert len(set(advice)) == len(advice)


def test_completed_launch_has_no_advice():
    """Advice is only for failures."""
    assert diagnose_case("cuda-ok-ncmoe24").advice == ()
    assert advise(Completed(), ServerLog()) == ()


def test_layer_is_a_fraction_of_the_file():
    """The size of a layer is the file's size divided by its layers, if both are logged."""
    assert expert_layer_mib(diagnose_case("cuda-oom-load").log) == pytest.approx(LAYER_MIB, abs=1)
    assert expert_layer_mib(ServerLog(values={"layers": 40})) is None
    assert expert_layer_mib(ServerLog(values={"layers": 10, "file_mib": 55.0})) == 5.5


def test_dense_model_needs_fewer_layers_on_the_device():
    """Without experts, whole layers move to the host."""
    log = ServerLog(values={"layers": 40, "experts": 0, "file_mib": 8000.0})
    outcome = OutOfMemory("load", "", "device", "weights", "CUDA0", 500.0)

    assert changes(advise(outcome, log)) == [("n_gpu_layers", [4, 200])]


@pytest.mark.parametrize(
    ("requested", "free", "buffers", "short"),
    [(1000.0, 600.0, 0.0, 656.0), (1000.0, 600.0, 500.0, 1156.0), (1000.0, None, 0.0, 1256.0)],
)
def test_shortfall_is_the_requested_memory_less_what_was_left(
    requested: float, free: float | None, buffers: float, short: float
):
    """Free memory at the start less the logged buffers counts against the requested memory."""
    log = ServerLog(
        devices=(LoggedDevice("CUDA0", "card", 8000.0, free, is_used=True),),
        buffers=(LoggedBuffer("weights", "device", "CUDA0", buffers),),
    )
    outcome = OutOfMemory("context", "", device="CUDA0", requested_mib=requested)

    assert shortfall_mib(outcome, log) == short


def test_without_sizes_the_advice_has_no_numbers():
    """A log without sizes still shows which settings to change."""
    outcome = OutOfMemory("prompt", "CUDA error: out of memory", "device", "pool")

    assert changes(advise(outcome, ServerLog())) == [("ubatch", []), ("n_gpu_layers", [])]


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, case in CASES.items()
        if case.kind == "crashed" and case.expect.get("reason", 0) is None
    ],
)
def test_crash_of_a_device_has_no_advice_about_memory(name: str):
    """An operation that a device refuses is not avoided by less memory."""
    diagnosis = diagnose_case(name)
    if diagnosis.log.devices and diagnosis.reason is None:
        assert not any("memory" in text for text in diagnosis.advice)


def test_unknown_free_memory_gives_one_step():
    """Without the device's free memory the advice is the next smaller ubatch."""
    found = changes(diagnose_case("pipeline-retry").advice)

    assert found[0] == ("ubatch", [4096, 2048, 1280])
    assert ("context", [150272, 134656, 1280]) in found


@pytest.mark.parametrize("name", ["sycl-host-memory", "sycl-out-of-host-memory"])
def test_host_memory_of_a_driver_gives_advice_for_both(name: str):
    """A driver also reports host memory if a device is full."""
    advice = diagnose_case(name).advice

    assert changes(advice)[0][0] in {"ubatch", "n_cpu_moe"}
    assert "host memory" in advice[-1]


def host_advice(**values: float | str) -> str:
    """Return the advice after a kill while a prompt was processed, with facts of the log."""
    return " ".join(advise(OutOfMemory("prompt", "", "host"), ServerLog(values=values)))


def test_limit_of_the_prompt_cache_is_not_advised_twice():
    """The advice about saved prompts depends on their limit and on the last saved prompt."""
    assert "--cache-ram 0" in diagnose_case("oom-prompt-save").advice[0]
    assert "3,463" in diagnose_case("oom-prompt-save").advice[0]
    assert "less than 2,048" in host_advice(cache_ram_mib=2048, saved_prompt_mib=90.5)
    assert "8192" in host_advice()
    assert "--cache-ram 0" in host_advice(saved_prompt_mib=90.5)
    assert "cache-ram" not in host_advice(prompt_cache="off")
    assert "cache-ram" not in host_advice(cache_ram_mib=0)
