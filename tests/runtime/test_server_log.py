"""The facts of a log: devices, buffers, settings and memory."""

from __future__ import annotations

import pytest
from runtime.log_corpus import all_cases

from autofit.runtime.diagnosis.diagnose import diagnose
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.logs.server_log import ServerLog, find_device_by_index, locate_buffer

CASES = {case.name: case for case in all_cases()}
TYPES = load_dialect("llama_server").log.buffer_types


def facts(name: str) -> ServerLog:
    """Return the facts of a log of the corpus."""
    return diagnose(CASES[name].text.splitlines(), load_dialect("llama_server")).log


def test_facts_of_a_cuda_log():
    """Devices, buffers, settings and the memory table are found."""
    log = facts("cuda-ok-ncmoe24")

    assert [(d.name, d.free_mib, d.is_used) for d in log.devices] == [("CUDA0", 11671.0, True)]
    assert log.mib("weights", "CUDA0") == pytest.approx(7465.71)
    assert log.mib("kv", "CUDA0") == pytest.approx(1280)
    assert log.mib("compute", "CUDA0") == pytest.approx(480.05)
    assert log.host_mib("weights") == pytest.approx(10436)
    assert log.host_mib("compute") == pytest.approx(128.07)
    assert log.reported["CUDA0"].free_mib == 2203
    assert log.reported["CUDA0"].unaccounted_mib == 131726
    assert log.reported["Host"].model_mib == 10436
    assert log.reported["Host"].total_mib is None
    assert (log.integer("context"), log.integer("batch"), log.integer("ubatch")) == (
        16384,
        4096,
        2048,
    )
    assert log.values["flash_attn"] == "on"
    assert log.values["kv_unified"] == "off"
    assert log.values["cache_type_k"] == "f16"
    assert log.values["load_mode"] == "none"
    assert log.integer("n_gpu_layers") == log.integer("units") == 41
    assert log.integer("layers") == 40
    assert (log.integer("splits_prompt"), log.integer("splits_generate")) == (74, 50)
    assert log.integer("threads_taken") == 32
    assert log.integer("sched_copies") == 1
    assert log.headroom_mib["CUDA0"] == pytest.approx(11671 - 9225.76)


def test_buffers_belong_to_the_device_in_their_name():
    """The buffers of two devices are counted separately."""
    log = facts("cuda2-ncmoe20-ts30-11")

    assert log.mib("weights", "CUDA0") == pytest.approx(4684.28)
    assert log.mib("weights", "CUDA1") == pytest.approx(4509.43)
    assert log.mib("kv", "CUDA1") == pytest.approx(320)
    assert log.mib("kv") == pytest.approx(1280)


def test_unused_devices_are_marked():
    """A device without a part of the model has no headroom."""
    log = facts("vk-ok-ncmoe26")

    assert [device.name for device in log.devices] == ["Vulkan0", "Vulkan1"]
    assert [device.name for device in log.used_devices] == ["Vulkan0"]
    assert set(log.headroom_mib) == {"Vulkan0"}
    assert (log.integer("splits_prompt"), log.integer("splits_generate")) == (80, 54)
    assert log.notices[0].startswith("llama_model_loader: tensor overrides to CPU are used")


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("vk-ok-ncmoe26", {"Vulkan0": "0000:00:06.0", "Vulkan1": None}),
        ("cuda2-balanced-ot", {"CUDA0": "0000:00:06.0", "CUDA1": "0000:00:07.0"}),
        ("rpc2-ok", {"RPC0": None, "RPC1": None}),
    ],
)
def test_pci_addresses_of_used_devices_are_read(name, addresses):
    """A device has the address in the log, or none if it is unknown."""
    assert {device.name: device.pci_id for device in facts(name).devices} == addresses


def test_device_line_without_an_address_is_read():
    """Builds that print no address still report name and free memory."""
    line = "llama_model_load_from_file_impl: using device Vulkan0 (NVIDIA H200) - 12145 MiB free"
    (device,) = diagnose([line], load_dialect("llama_server")).log.devices

    assert (device.name, device.description) == ("Vulkan0", "NVIDIA H200")
    assert (device.free_mib, device.is_used, device.pci_id) == (12145.0, True, None)


def test_remote_buffers_belong_to_the_device_of_their_server():
    """The index in a remote buffer's name counts the devices of its server."""
    log = facts("rpc2-ok")

    assert log.mib("weights", "RPC0") == pytest.approx(1.90)
    assert log.mib("weights", "RPC1") == pytest.approx(1.82)
    assert log.reported["RPC1"].total_mib == 24105


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("CUDA0", ("device", "CUDA0")),
        ("MTL0_Mapped", ("device", "MTL0")),
        ("CUDA_Host", ("pinned", None)),
        ("Vulkan_Host", ("pinned", None)),
        ("CPU", ("host", None)),
        ("CPU_Mapped", ("host", None)),
        ("CPU_REPACK", ("host", None)),
        ("RPC0[10.0.0.1:50052]", ("device", "RPC0")),
        ("RPC1[10.0.0.1:50052]", ("device", "RPC1")),
        ("RPC0[10.0.0.2:50052]", ("device", "RPC2")),
        ("RPC0[10.0.0.3:50052]", ("device", "RPC0[10.0.0.3:50052]")),
    ],
)
def test_buffer_types_are_located(name: str, place: tuple[str, str | None]):
    """The name of a buffer type determines its place, with several remote servers."""
    devices = {
        "RPC0": "10.0.0.1:50052",
        "RPC1": "10.0.0.1:50052",
        "RPC2": "10.0.0.2:50052",
        "CUDA0": "NVIDIA H200",
        "MTL0": "Apple M4",
    }

    assert locate_buffer(name, TYPES, devices) == place


def test_device_number_must_be_unique():
    """A number that devices of two backends have finds none of them."""
    remote = {"RPC0": "10.0.0.1:50052"}

    assert find_device_by_index("0", remote | {"ROCm0": "gfx1100"}, TYPES) == "ROCm0"
    assert find_device_by_index("0", {"ROCm0": "gfx1100", "Vulkan0": "gfx1100"}, TYPES) is None
    assert find_device_by_index("1", {"ROCm0": "gfx1100"}, TYPES) is None


def test_pipeline_parallelism_is_a_fact():
    """The number of graph copies is read."""
    assert facts("rpc2-ok-pipeline").integer("sched_copies") == 4
    assert facts("rpc2-ok").integer("sched_copies") == 1
    assert facts("cuda-unknown-flag").integer("sched_copies") is None


def test_values_of_fitting_are_not_applied_values():
    """Memory tables that fitting prints are ignored."""
    log = facts("cuda2-fit-on")

    assert log.values["fit"] == "successfully"
    assert log.reported["CUDA0"].model_mib == 9337
    assert log.mib("weights", "CUDA0") == pytest.approx(9337.14)


def test_retry_without_pipeline_is_a_notice():
    """A silent change of settings becomes a notice."""
    notices = facts("cuda-pipeline-retried").notices

    assert any("retrying without pipeline parallelism" in notice for notice in notices)


def test_old_build_has_the_same_facts():
    """Builds with other function names have the same facts."""
    new, old = facts("cuda-ok-ncmoe24"), facts("cuda-ok-old-build")

    assert old.buffers == new.buffers
    assert old.reported == new.reported
    assert {**old.values, "load_mode": "none"} == dict(new.values)


def test_json_log_has_the_same_facts():
    """A log in JSON has the same facts as a plain log."""
    plain, jsonl = facts("cpu-ok"), facts("cpu-ok-jsonl")

    assert set(jsonl.values) == set(plain.values)
    assert jsonl.reported == plain.reported
    assert jsonl.buffers == plain.buffers


def test_expert_cache_is_read():
    """The size and device of an expert cache are facts, and its warning is a notice."""
    log = facts("moe-cache-on")

    assert log.values["moe_cache_mib"] == 2048.0
    assert log.mib("cache", "CUDA0") == 2048.0
    assert any("MoE cache budget is too small" in notice for notice in log.notices)


@pytest.mark.parametrize(
    ("line", "mib", "state"),
    [
        (
            "llama_moe_cache:      CUDA0 MoE cache size =   398.25 MiB for 1 MiB of host",
            398.25,
            None,
        ),
        (
            "expert cache: 40 layers x 112 slots, 8164.00 MiB uploaded to CUDA0",
            8164.0,
            None,
        ),
        ("init_moe_expert_cache: expert cache disabled", 0.0, "off"),
        ("llama_moe_cache: no layer has all of its experts, MoE cache is disabled", 0.0, "off"),
    ],
)
def test_expert_caches_of_all_builds_are_read(line, mib, state):
    """The caches of llama.cpp and of a fork are read, and that a cache is disabled."""
    log = diagnose([line], load_dialect("llama_server")).log

    assert log.mib("cache", "CUDA0") == mib
    assert log.values.get("moe_cache") == state


def test_refused_allocations_are_read():
    """The sizes of failed allocations are read for every backend."""
    lines = [
        "allocating 144.00 MiB on device 0: cudaMalloc failed: out of memory",
        "ggml_vulkan: Device memory allocation of size 150994944 failed.",
    ]

    assert diagnose(lines, load_dialect("llama_server")).log.refused_mib == (144.0, 144.0)


def test_disabled_flash_attention_is_a_fact():
    """The runtime's decision replaces `auto`."""
    lines = CASES["flash-attention-off"].text.replace("= enabled", "= auto").splitlines()

    log = diagnose(lines, load_dialect("llama_server")).log

    assert log.values["flash_attn"] == "off"


def test_retried_allocation_has_the_reason_of_the_log():
    """An allocation before a retry that worked is not one of a prefetch slot."""
    lines = next(case for case in all_cases() if case.name == "cuda-pipeline-retried").text

    log = diagnose(lines.splitlines(), load_dialect("llama_server")).log

    assert log.refused_mib == ()
    assert any("retrying without pipeline parallelism" in notice for notice in log.notices)
