"""What a runtime can, and the devices it lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_llama_cpp import free_port, rpc_device
from runtime.stand_in import FORK, IK, SERVER, runtime_of, write_program, write_script

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import read_version
from autofit.runtime.discovery.program_inspector import list_devices, read_devices

ASK = load_dialect("llama_server").ask
CUDA = """Available devices:
  CUDA0: NVIDIA H200 (143155 MiB, 11671 MiB free)
  CUDA1: NVIDIA GeForce RTX 3060 (LHR) (12288 MiB, 6551 MiB free)
"""


def test_devices_are_read_in_the_runtimes_order() -> None:
    """Names, descriptions with brackets, and sizes are read."""
    devices = read_devices(CUDA, ASK)
    assert [(d.name, d.description, d.total_mib, d.usable_mib) for d in devices] == [
        ("CUDA0", "NVIDIA H200", 143155, 11671),
        ("CUDA1", "NVIDIA GeForce RTX 3060 (LHR)", 12288, 6551),
    ]


def test_no_device_is_no_fault() -> None:
    """A build for the CPU lists none."""
    assert read_devices("Available devices:\n  (none)\n", ASK) == ()


@pytest.mark.parametrize(
    ("line", "is_unified"),
    [
        ("MTL0: Apple M3 Max (98304 MiB, 98303 MiB free)", True),
        ("Vulkan0: AMD Radeon 780M Graphics (RADV PHOENIX) (32093 MiB, 30000 MiB free)", True),
        ("Vulkan0: AMD Radeon(TM) Graphics (8192 MiB, 8000 MiB free)", True),
        ("Vulkan0: Intel(R) Iris(R) Xe Graphics (24000 MiB, 20000 MiB free)", True),
        ("CUDA0: NVIDIA GB10 (122570 MiB, 100000 MiB free)", True),
        ("CUDA0: Orin (62841 MiB, 60000 MiB free)", True),
        ("Vulkan0: AMD Radeon RX 9070 XT (RADV GFX1201) (16384 MiB, 16000 MiB free)", False),
        ("ROCm0: AMD Radeon Graphics (32768 MiB, 32000 MiB free)", False),
        ("Vulkan0: Intel(R) Arc(tm) A770 Graphics (16384 MiB, 16000 MiB free)", False),
        ("CUDA0: NVIDIA GeForce RTX 5080 (16303 MiB, 15000 MiB free)", False),
    ],
)
def test_memory_shared_with_the_host_is_marked(line: str, is_unified: bool) -> None:  # noqa: FBT001
    """A processor's own graphics use the host's memory; cards have their own."""
    [device] = read_devices(f"Available devices:\n  {line}\n", ASK)
    assert device.is_unified is is_unified


@pytest.mark.parametrize(
    ("text", "version", "build", "commit"),
    [
        ("version: 0.5.0-dev (build 11434, commit 1a2b3c4)\nbuilt", "0.5.0-dev", 11434, "1a2b3c4"),
        ("version: 0.6.0-dev (build 0, commit unknown)\n", "0.6.0-dev", 0, "unknown"),
        ("version: 6123 (79c1160b)\nbuilt with cc", None, 6123, "79c1160b"),
        ("something else", None, None, None),
    ],
)
def test_versions_are_read(
    text: str, version: str | None, build: int | None, commit: str | None
) -> None:
    """New and old answers are read, others kept as they are."""
    read = read_version(text, ASK.version_patterns)
    assert (read.version, read.build, read.commit) == (version, build, commit)
    assert read.text == text.strip()


def test_a_runtime_tells_what_it_can() -> None:
    """Parameters and KV types are those of the build, not those of the dialect."""
    new, old, ik = (
        runtime_of("llama_server", SERVER),
        runtime_of("llama_server", FORK),
        runtime_of("ik_llama_server", IK),
    )
    assert "n_cpu_ffn" in new.parameters
    assert "n_cpu_ffn" not in old.parameters
    assert "moe_cache_mib" not in new.parameters
    assert "override_tensor" in ik.parameters
    assert new.supports("load_mode", "dio")
    assert not old.supports("load_mode", "dio")
    assert "q6_0" in ik.kv_types
    assert "q6_0" not in new.kv_types
    assert new.values("context") == ()
    assert new.supports("repack", False)


def test_a_program_without_a_question_for_devices_has_none_known(tmp_path: Path) -> None:
    """Where a runtime cannot be asked, devices are unknown rather than none."""
    program = write_program(tmp_path, help_name=IK)
    assert list_devices(find_runtime(program, cache=tmp_path / "cache")) is None


def test_a_list_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A device that is in use can hang the list; the time-out says what may be the cause."""
    dialect = tmp_path / "hasty.yaml"
    dialect.write_text(
        "description: hasty\nextends: llama_server\nask: {timeout_s: 0.3}\n"
        "detect: {all: [{flag: --ctx-size}]}\n"
    )
    program = write_program(tmp_path / "bin")
    runtime = find_runtime(program, str(dialect), cache=tmp_path / "cache")
    write_script(program, "exec sleep 50")
    with pytest.raises(UsageError, match="does not answer --list-devices") as raised:
        list_devices(runtime)
    assert "device" in raised.value.hint


@pytest.mark.runtime
def test_remote_devices_are_listed(llama_cpp: Path, tmp_path: Path) -> None:
    """Two real RPC servers are two devices, in the order given; without them there is none."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    with rpc_device(llama_cpp) as first, rpc_device(llama_cpp) as second:
        devices = list_devices(runtime, f"{second},{first}")
        assert devices is not None
        assert [(d.name, d.description) for d in devices] == [("RPC0", second), ("RPC1", first)]
        assert all(d.total_mib > 0 for d in devices)
    assert list_devices(runtime) == ()


@pytest.mark.runtime
def test_a_remote_server_that_is_not_there_is_told(llama_cpp: Path, tmp_path: Path) -> None:
    """A build that gives up on an unreachable server is a usage error with its own words."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    with pytest.raises(UsageError) as raised:
        list_devices(runtime, f"127.0.0.1:{free_port()}")
    assert "--list-devices ends with status" in raised.value.message
    assert "remote servers" in raised.value.hint
