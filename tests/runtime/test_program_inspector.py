"""Short runs of programs: cached output, failures, and lists of devices."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from real_llama_cpp import free_port, rpc_device
from runtime.sample_programs import (
    IK,
    read_calls,
    write_program,
    write_script,
)

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.program_inspector import (
    ProgramInspector,
    check_run,
    list_devices,
    read_devices,
    run_program,
)

ASK = load_dialect("llama_server").ask
CUDA = """Available devices:
  CUDA0: NVIDIA H200 (143155 MiB, 11671 MiB free)
  CUDA1: NVIDIA GeForce RTX 3060 (LHR) (12288 MiB, 6551 MiB free)
"""
CACHE = "--moe-cache-mib N                       MiB of experts (default: 0)\n"


def test_output_is_cached_until_the_program_changes(tmp_path: Path) -> None:
    """A program runs once, and again after a change of it or of a library."""
    program = write_program(tmp_path / "bin")
    for _ in range(2):
        find_runtime(program, cache=tmp_path / "cache")
    assert read_calls(program) == ["--help", "--version"]
    (program.parent / "libggml-base.so").write_bytes(b"new")
    find_runtime(program, cache=tmp_path / "cache")
    assert len(read_calls(program)) == 4
    write_program(tmp_path / "bin", more_help=CACHE)
    runtime = find_runtime(program, cache=tmp_path / "cache")
    assert runtime.dialect.name == "llama_server_moe_cache"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"answers": {"--help": 3}}', "\udcff"])
def test_damaged_cache_is_ignored(damage: str, tmp_path: Path) -> None:
    """With an unreadable cache entry, the program runs again."""
    program = write_program(tmp_path / "bin")
    find_runtime(program, cache=tmp_path / "cache")
    [record] = (tmp_path / "cache").iterdir()
    record.write_bytes(damage.encode(errors="surrogateescape"))
    assert find_runtime(program, cache=tmp_path / "cache").dialect.name == "llama_server"


def test_unwritable_cache_is_not_an_error(tmp_path: Path) -> None:
    """Without a cache folder, programs run every time."""
    program = write_program(tmp_path / "bin")
    (tmp_path / "file").write_text("")
    for _ in range(2):
        find_runtime(program, cache=tmp_path / "file" / "cache")
    assert len(read_calls(program)) == 4


@pytest.mark.parametrize(
    ("script", "message", "hint"),
    [
        ("exit 0", "prints nothing", "--runtime"),
        ("echo hello", "lists no flags", "--runtime"),
        ("echo broken >&2; exit 3", "ends with status 3: broken", "--runtime"),
        ("kill -ILL $$", "illegal instruction", "AMX"),
        ("kill -SEGV $$", "ends with status -11", "--runtime"),
        (
            "echo 'x: error while loading shared libraries: libcublas.so.13: no' >&2; exit 127",
            "needs the shared library libcublas.so.13",
            "LD_LIBRARY_PATH",
        ),
    ],
)
def test_failing_program_is_reported(script: str, message: str, hint: str, tmp_path: Path) -> None:
    """The error names the program and the problem, and the hint says what to do."""
    program = write_script(tmp_path / "llama-server", script)
    with pytest.raises(UsageError) as raised:
        find_runtime(program, cache=tmp_path / "cache")
    assert message in raised.value.message
    assert str(program) in raised.value.message
    assert hint in raised.value.hint


def test_hanging_program_times_out(tmp_path: Path) -> None:
    """A program that prints no help ends with the dialect's time limit."""
    program = write_script(tmp_path / "llama-server", "exec sleep 50")
    dialect = tmp_path / "hasty.yaml"
    dialect.write_text(
        "description: hasty\nextends: llama_server\nask: {timeout_s: 0.5}\n"
        "detect: {all: [{flag: --ctx-size}]}\n"
    )
    with pytest.raises(UsageError, match="does not answer --help within"):
        find_runtime(program, str(dialect), cache=tmp_path / "cache")


def test_slow_program_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After two seconds a warning names the command and the time limit."""
    program = write_script(tmp_path / "llama-server", "exec sleep 50")
    inspector = ProgramInspector(program, (str(program),), tmp_path / "cache")

    with pytest.raises(UsageError, match="does not answer --help within 3 s"):
        inspector.read_output(("--help",), timeout_s=2.6)
    assert [record.getMessage() for record in caplog.records] == [
        f"autofit: waiting for `{program} --help`, at most 3 s"
    ]


def test_libraries_in_the_program_folder_are_found(tmp_path: Path) -> None:
    """A program without a run path is started with its own folder in LD_LIBRARY_PATH."""
    help_program = write_program(tmp_path / "help")
    program = write_script(
        tmp_path / "bin" / "llama-server",
        f'case ":$LD_LIBRARY_PATH:" in *:{tmp_path}/bin:*) exec {help_program} "$@";; esac\n'
        "echo 'error while loading shared libraries: libllama.so: cannot open' >&2; exit 127",
    )
    for _ in range(2):  # the second time from the cache
        runtime = find_runtime(program, cache=tmp_path / "cache")
        assert runtime.env["LD_LIBRARY_PATH"].split(":")[0] == f"{tmp_path}/bin"


def test_files_that_cannot_run_are_rejected(tmp_path: Path) -> None:
    """A file that is not executable or not a program is rejected."""
    program = tmp_path / "llama-server"
    program.write_text("not a program")
    with pytest.raises(UsageError, match="is not executable"):
        find_runtime(program, cache=tmp_path / "cache")
    program.chmod(0o755)
    program.write_bytes(b"\x7fELF and no more")
    with pytest.raises(UsageError) as raised:
        find_runtime(program, cache=tmp_path / "cache")
    assert str(program) in raised.value.message


@pytest.mark.runtime
def test_missing_library_of_the_real_program_is_named(llama_cpp: Path, tmp_path: Path) -> None:
    """The error names the missing library."""
    shutil.copy(llama_cpp / "llama-server", tmp_path)
    with pytest.raises(UsageError, match=r"shared library libllama"):
        find_runtime(tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("0.00.055.102 E failed to connect to foo\n0.00.055.103 I \n", "failed to connect to foo"),
        ("error: no such device\nsee the help\n", "error: no such device"),
        ("one\ntwo\n", "two"),
    ],
)
def test_reason_is_the_last_line_about_a_failure(output, reason):
    """The reason is the last line about a failure, or else the last line with a word."""
    words = ("-c", f"printf '%s' '{output}' >&2; exit 1")
    finished = run_program(("sh", *words), {}, 20)

    with pytest.raises(UsageError, match=rf"status 1: {re.escape(reason)}$"):
        check_run(Path("llama-server"), ("--list-devices",), finished, 20)


def test_devices_are_read_in_order() -> None:
    """Names, descriptions with brackets, and sizes are read."""
    devices = read_devices(CUDA, ASK)
    assert [(d.name, d.description, d.total_mib, d.usable_mib) for d in devices] == [
        ("CUDA0", "NVIDIA H200", 143155, 11671),
        ("CUDA1", "NVIDIA GeForce RTX 3060 (LHR)", 12288, 6551),
    ]


def test_empty_device_list_is_valid() -> None:
    """A build for the CPU lists no devices."""
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
def test_unified_memory_is_marked(line: str, is_unified: bool) -> None:  # noqa: FBT001
    """Integrated graphics use the host's memory, and cards have their own."""
    [device] = read_devices(f"Available devices:\n  {line}\n", ASK)
    assert device.is_unified is is_unified


def test_devices_are_unknown_without_an_option_to_list_them(tmp_path: Path) -> None:
    """The devices of a runtime that cannot list them are None, not empty."""
    program = write_program(tmp_path, help_name=IK)
    assert list_devices(find_runtime(program, cache=tmp_path / "cache")) is None


def test_hanging_device_list_times_out(tmp_path: Path) -> None:
    """A device list that hangs ends with the time limit and a hint about devices in use."""
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
    """Two real RPC servers are two devices, in the given order."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    with rpc_device(llama_cpp) as first, rpc_device(llama_cpp) as second:
        devices = list_devices(runtime, f"{second},{first}")
        assert devices is not None
        assert [(d.name, d.description) for d in devices] == [("RPC0", second), ("RPC1", first)]
        assert all(d.total_mib > 0 for d in devices)
    assert list_devices(runtime) == ()


@pytest.mark.runtime
def test_unreachable_remote_server_is_an_error(llama_cpp: Path, tmp_path: Path) -> None:
    """An unreachable RPC server is a usage error with a hint about remote servers."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    with pytest.raises(UsageError) as raised:
        list_devices(runtime, f"127.0.0.1:{free_port()}")
    assert "--list-devices ends with status" in raised.value.message
    assert "remote servers" in raised.value.hint
