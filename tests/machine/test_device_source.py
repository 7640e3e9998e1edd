"""The memory counters of a runtime's devices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machine.linux_files import add_card, add_kfd_node

from autofit.errors import AutofitError
from autofit.machine.device_source import MemoryCommand, find_device_source
from autofit.machine.memory_counter import MemoryCounter
from autofit.trial.device import Device


def script(folder: Path, text: str) -> list[str]:
    """Return the command line of a shell script that also counts its runs."""
    path = folder / "memory.sh"
    path.write_text(f"echo run >> {folder}/runs\n{text}\n")
    return ["sh", str(path)]


def test_other_lines_of_the_memory_command_are_ignored(tmp_path: Path):
    """Only lines `NAME total free used` are counters."""
    text = r"header\nCUDA0 24576 1000.5 23575.5\n  RPC0 100 90 10  \nCUDA1 1 2\n"

    assert MemoryCommand(script(tmp_path, f"printf '{text}'"), env={}).read() == {
        "CUDA0": MemoryCounter(23575.5, 1000.5),
        "RPC0": MemoryCounter(10, 90),
    }


def test_the_memory_command_gets_the_runtimes_environment(tmp_path: Path):
    """The command has the environment of the runtime."""
    source = MemoryCommand(
        script(tmp_path, "echo CUDA0 $TOTAL 60 40"), env={**os.environ, "TOTAL": "100"}
    )

    assert source.read() == {"CUDA0": MemoryCounter(40, 60)}


def test_each_reading_runs_the_memory_command(tmp_path: Path):
    """Each reading runs the command again, because memory changes."""
    source = MemoryCommand(script(tmp_path, f"echo A 10 5 $(wc -l < {tmp_path}/runs)"), env={})

    assert [source.read()["A"].used_mib for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("text", ["exit 3", "echo nonsense", "echo A 1 1 0; exit 1"])
def test_a_failing_memory_command_is_an_error(tmp_path: Path, text: str):
    """A command that fails or prints no counter is an error with a hint."""
    with pytest.raises(AutofitError, match="memory command") as caught:
        MemoryCommand(script(tmp_path, text), env=os.environ).read()

    assert "NAME total free used" in caught.value.hint


def test_memory_of_rocm_devices(tmp_path: Path):
    """Each ROCm device has the counters of its card, and of the host memory that it uses."""
    add_card(
        tmp_path, 0, "0000:43:00.0", "0x1002",
        vram_total=100, vram_used=30, gtt_total=50, gtt_used=7,
    )  # fmt: skip
    add_card(
        tmp_path, 1, "0000:03:00.0", "0x1002",
        vram_total=200, vram_used=20, gtt_total=50, gtt_used=0,
    )  # fmt: skip
    add_kfd_node(tmp_path, 1, 256, 0x4300)
    add_kfd_node(tmp_path, 2, 256, 0x0300)
    devices = [Device("ROCm0", "AMD", 100, 100), Device("ROCm1", "AMD", 200, 200)]

    source = find_device_source(devices, env={}, root=tmp_path)

    assert source.read() == {
        "ROCm0": MemoryCounter(30, 70),
        "ROCm0.gtt": MemoryCounter(7, 43),
        "ROCm1": MemoryCounter(20, 180),
        "ROCm1.gtt": MemoryCounter(0, 50),
    }


def test_memory_of_an_apu(tmp_path: Path):
    """On an APU the small reserved part and the host's memory count together."""
    add_card(
        tmp_path, 0, "0000:c4:00.0", "0x1002",
        vram_total=512, vram_used=100, gtt_total=60000, gtt_used=20000,
    )  # fmt: skip
    device = Device("Vulkan0", "AMD Radeon 8060S (RADV GFX1151)", 60512, 40000, is_unified=True)

    source = find_device_source([device], env={}, root=tmp_path)

    assert source.read() == {"Vulkan0": MemoryCounter(20100, 40412)}


def test_a_device_without_a_counter_is_unknown(tmp_path: Path):
    """A device without a source is reported as unknown."""
    source = find_device_source([Device("Metal", "Apple", 1, 1)], env={}, root=tmp_path)

    assert source.read() == {"Metal": MemoryCounter(None, None)}


def test_the_memory_command_has_precedence(tmp_path: Path):
    """A dialect's program overrides other sources; its failure does not affect them."""
    add_card(tmp_path, 0, "0000:03:00.0", "0x1002", vram_total=100, vram_used=30)
    devices = [Device("Vulkan0", "AMD Radeon (RADV)", 100, 100), Device("X", "", 1, 1)]
    env = {"PATH": "/usr/bin:/bin"}

    found = find_device_source(
        devices, env=env, root=tmp_path, memory_command=["echo", "X 10 4 6"]
    )
    failing = find_device_source(devices, env=env, root=tmp_path, memory_command=["false"])

    assert found.read() == {"Vulkan0": MemoryCounter(30, 70), "X": MemoryCounter(6, 4)}
    assert failing.read() == {"Vulkan0": MemoryCounter(30, 70), "X": MemoryCounter(None, None)}
    assert "memory command" in failing.failure
