"""Short runs of programs: cached output, failures, and lists of devices."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from real_llama_cpp import free_port, rpc_device
from runtime.sample_programs import (
    IK,
    questions,
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


def test_answers_are_kept_until_the_program_changes(tmp_path: Path) -> None:
    """A program is asked once; after a change of it, or of a library, it is asked again."""
    program = write_program(tmp_path / "bin")
    for _ in range(2):
        find_runtime(program, cache=tmp_path / "cache")
    assert questions(program) == ["--help", "--version"]
    (program.parent / "libggml-base.so").write_bytes(b"new")
    find_runtime(program, cache=tmp_path / "cache")
    assert len(questions(program)) == 4
    write_program(tmp_path / "bin", more_help=CACHE)
    runtime = find_runtime(program, cache=tmp_path / "cache")
    assert runtime.dialect.name == "llama_server_moe_cache"


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"answers": {"--help": 3}}', "\udcff"])
def test_a_damaged_record_is_ignored(damage: str, tmp_path: Path) -> None:
    """Kept answers that cannot be read are asked for again."""
    program = write_program(tmp_path / "bin")
    find_runtime(program, cache=tmp_path / "cache")
    [record] = (tmp_path / "cache").iterdir()
    record.write_bytes(damage.encode(errors="surrogateescape"))
    assert find_runtime(program, cache=tmp_path / "cache").dialect.name == "llama_server"


def test_a_cache_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    """Where the cache folder cannot be made, programs are asked each time."""
    program = write_program(tmp_path / "bin")
    (tmp_path / "file").write_text("")
    for _ in range(2):
        find_runtime(program, cache=tmp_path / "file" / "cache")
    assert len(questions(program)) == 4


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
def test_a_program_that_is_no_runtime_is_told(
    script: str, message: str, hint: str, tmp_path: Path
) -> None:
    """What is wrong with a program is said, and what to do."""
    program = write_script(tmp_path / "llama-server", script)
    with pytest.raises(UsageError) as raised:
        find_runtime(program, cache=tmp_path / "cache")
    assert message in raised.value.message
    assert str(program) in raised.value.message
    assert hint in raised.value.hint


def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    """A help that never comes ends with the dialect's time-out."""
    program = write_script(tmp_path / "llama-server", "exec sleep 50")
    dialect = tmp_path / "hasty.yaml"
    dialect.write_text(
        "description: hasty\nextends: llama_server\nask: {timeout_s: 0.5}\n"
        "detect: {all: [{flag: --ctx-size}]}\n"
    )
    with pytest.raises(UsageError, match="does not answer --help within"):
        find_runtime(program, str(dialect), cache=tmp_path / "cache")


def test_a_program_that_hangs_is_told_of_before_it_is_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits learns after two seconds for what, and for how long at most."""
    program = write_script(tmp_path / "llama-server", "exec sleep 50")
    inspector = ProgramInspector(program, (str(program),), tmp_path / "cache")

    with pytest.raises(UsageError, match="does not answer --help within 3 s"):
        inspector.read_output(("--help",), timeout_s=2.6)
    assert [record.getMessage() for record in caplog.records] == [
        f"autofit: waiting for `{program} --help`, at most 3 s"
    ]


def test_libraries_beside_a_program_are_found_for_it(tmp_path: Path) -> None:
    """A program without a run path is started with its own folder in LD_LIBRARY_PATH."""
    help_program = write_program(tmp_path / "help")
    program = write_script(
        tmp_path / "bin" / "llama-server",
        f'case ":$LD_LIBRARY_PATH:" in *:{tmp_path}/bin:*) exec {help_program} "$@";; esac\n'
        "echo 'error while loading shared libraries: libllama.so: cannot open' >&2; exit 127",
    )
    for _ in range(2):  # the second time from the kept answers
        runtime = find_runtime(program, cache=tmp_path / "cache")
        assert runtime.env["LD_LIBRARY_PATH"].split(":")[0] == f"{tmp_path}/bin"


def test_files_that_cannot_be_run_are_told(tmp_path: Path) -> None:
    """A file without the right to be executed, or that is no program, is no runtime."""
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
def test_a_real_program_without_its_libraries_is_told(llama_cpp: Path, tmp_path: Path) -> None:
    """The loader's own message names the library that is missing."""
    shutil.copy(llama_cpp / "llama-server", tmp_path)
    with pytest.raises(UsageError, match=r"shared library libllama"):
        find_runtime(tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("0.00.055.102 E failed to connect to foo\n0.00.055.103 I \n", "failed to connect to foo"),
        ("error: no such device\nsee the help\n", "error: no such device"),
        ("one\ntwo\n", "two"),
    ],
)
def test_the_reason_is_told_before_what_comes_last(said, told):
    """Times, levels and lines without words are no reason."""
    words = ("-c", f"printf '%s' '{said}' >&2; exit 1")
    finished = run_program(("sh", *words), {}, 20)

    with pytest.raises(UsageError, match=rf"status 1: {re.escape(told)}$"):
        check_run(Path("llama-server"), ("--list-devices",), finished, 20)


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
