"""The search for a runtime, and the detection of its dialect."""

from __future__ import annotations

from pathlib import Path

import pytest
from runtime.sample_programs import FORK, IK, write_program, write_script

from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_all_dialects
from autofit.runtime.discovery.find_runtime import find_programs, find_runtime

SLOTS = "--prefetch-experts-slots N              slots (default: 0)\n"
WEIGHTS = "-pw,   --prefetch-weights <0|1>         prefetch (default: 0)\n"
CACHE = "--moe-cache-mib N                       MiB of experts (default: 0)\n"
REMOVED = "--moe-cache-mib N                       the argument has been removed\n"


@pytest.mark.parametrize(
    ("help_name", "more_help", "dialect"),
    [
        ("llama-server-b11434", "", "llama_server"),
        (FORK, "", "llama_server"),
        (IK, "", "ik_llama_server"),
        ("llama-server-b11434", SLOTS, "llama_server_prefetch_slots"),
        ("llama-server-b11434", WEIGHTS, "llama_server_prefetch_weights"),
        ("llama-server-b11434", CACHE, "llama_server_moe_cache"),
        ("llama-server-b11434", REMOVED, "llama_server"),
    ],
)
def test_most_specific_dialect_is_chosen(
    help_name: str, more_help: str, dialect: str, tmp_path: Path
) -> None:
    """The flags of a program's help determine its dialect."""
    program = write_program(tmp_path, help_name=help_name, more_help=more_help)
    assert find_runtime(program, cache=tmp_path / "cache").dialect.name == dialect


@pytest.mark.parametrize("folder", [".", "../lib"])
def test_text_in_a_library_identifies_a_fork(folder: str, tmp_path: Path) -> None:
    """The name of a variable in a library near the program identifies the fork."""
    program = write_program(tmp_path / "bin", help_name=FORK)
    library = tmp_path / "bin" / folder / "libggml-base.so.0"
    library.parent.mkdir(exist_ok=True)
    library.write_bytes(b"\x7fELF" + b"\0" * 5000 + b"GGML_SCHED_PREFETCH_EXPERTS\0" + b"\1" * 99)
    runtime = find_runtime(program, cache=tmp_path / "cache")
    assert runtime.dialect.name == "llama_server_prefetch_env"
    assert runtime.supports("prefetch_slots", 4)
    assert not runtime.supports("prefetch_slots", 1)


def test_named_dialect_is_used(tmp_path: Path) -> None:
    """A dialect that the user names is used without detection."""
    program = write_program(tmp_path)
    runtime = find_runtime(program, "ik_llama_server", cache=tmp_path / "cache")
    assert runtime.dialect.name == "ik_llama_server"


def test_folder_of_a_checkout_is_searched(tmp_path: Path) -> None:
    """The program is found in a folder or in its build/bin."""
    program = write_program(tmp_path / "llama.cpp" / "build" / "bin")
    assert find_runtime(tmp_path / "llama.cpp", cache=tmp_path / "cache").program == program


def test_path_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a path the llama-server on PATH is used."""
    program = write_program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    assert find_runtime(cache=tmp_path / "cache").program == program


def test_embedded_runtime_is_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded runtime is found by its name, with its command."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    runtime = find_runtime(dialect="embedded", cache=tmp_path)
    assert runtime.dialect.name == "embedded"
    assert runtime.program.suffix == ".so"
    assert runtime.command[1:] == ("-m", "autofit.runtime.embedded")
    assert runtime.companions == {}


def test_missing_runtime_lists_the_others(tmp_path: Path) -> None:
    """The hints for a missing path and a folder without a runtime list what was found."""
    write_script(tmp_path / "llama-bench", "exit 0")
    with pytest.raises(UsageError, match="no llama-server in") as raised:
        find_runtime(tmp_path, cache=tmp_path / "cache")
    assert "llama-bench" in raised.value.hint
    with pytest.raises(UsageError, match="no such runtime") as raised:
        find_runtime(tmp_path / "nowhere", cache=tmp_path / "cache")
    assert "xllamacpp" in raised.value.hint


def test_program_without_a_dialect_is_rejected(tmp_path: Path) -> None:
    """The error for a program with unknown flags lists the dialects."""
    program = write_script(tmp_path / "tool", "echo '  -o, --output FILE   where to write'")
    with pytest.raises(UsageError, match="is not a supported llama-server") as raised:
        find_runtime(program, cache=tmp_path / "cache")
    assert "llama_server" in raised.value.hint


@pytest.mark.runtime
def test_program_on_path_and_in_a_package_is_listed_once(
    llama_cpp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is found twice is one runtime."""
    monkeypatch.setenv("PATH", str(llama_cpp))
    found = [each.program.resolve() for each in find_programs(load_all_dialects())]
    assert found.count((llama_cpp / "llama-server").resolve()) == 1


@pytest.mark.runtime
def test_real_llama_server_is_found(llama_cpp: Path, tmp_path: Path) -> None:
    """The real program is found in its folder with its companions and version."""
    runtime = find_runtime(llama_cpp, cache=tmp_path)
    assert runtime.dialect.name == "llama_server"
    assert (runtime.version.version, runtime.version.build) == ("0.6.0-dev", 0)
    assert set(runtime.companions) == {"fit_params", "bench", "perplexity"}
    assert {"f16", "q8_0", "q4_0"} < set(runtime.kv_types)
    assert not runtime.supports("prefetch_slots")
