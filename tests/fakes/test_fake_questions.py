"""The fake llama-server answers what is asked of it without serving, as the real one does."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fakes.machine import Device, Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine


def ask(fake: FakeMachine, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the fake with a question."""
    return subprocess.run([fake.server, *words], capture_output=True, text=True, timeout=20,
                          check=False)  # fmt: skip


def test_devices_are_listed_with_what_they_have_left(fake: FakeMachine):
    """Total and free memory by device, each opened and another program's share left out."""
    fake.hold("CUDA1", 300)
    done = ask(fake, "--list-devices")

    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "Available devices:",
        "  CUDA0: NVIDIA GeForce RTX 3060 (2400 MiB, 2200 MiB free)",
        "  CUDA1: NVIDIA GeForce RTX 3060 (2000 MiB, 1500 MiB free)",
    ]


def test_rpc_devices_appear_when_their_server_is_named(tmp_path: Path):
    """A device of an RPC server is listed, first, only after --rpc."""
    remote = Device("RPC0", "remote", "RPC", endpoint="10.0.0.7:50052", context_mib=0)
    fake = FakeMachine(tmp_path, Machine("rpc", (Device("CUDA0"), remote)))

    assert "RPC0" not in ask(fake, "--list-devices").stdout
    listed = ask(fake, "--rpc", "10.0.0.7:50052", "--list-devices").stdout.splitlines()
    assert listed[1].startswith("  RPC0: 10.0.0.7:50052 (12288 MiB")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prefetch-experts-slots", "4"], "error: invalid argument: --prefetch-experts-slots"),
        (["-c"], 'error while handling argument "-c": expected value for argument'),
        (["-c", "lots"], 'error while handling argument "-c": stoi'),
        (["-fa", "maybe"], "error: unknown value for --flash-attn: 'maybe'"),
        (["-ctk", "q9"], "Unsupported cache type: q9"),
        (["-np", "0"], "error: invalid value for n_parallel"),
        (["-lm", "fast"], 'error while handling argument "-lm": invalid value'),
        (["-dev", "CUDA9"], "invalid device: CUDA9"),
        (["-ot", "exps=GPU"], "unknown buffer type"),
        (["-ncmoe", "-1"], 'error while handling argument "-ncmoe": invalid value'),
    ],
)
def test_faulty_arguments_end_with_status_1(fake: FakeMachine, words: list[str], said: str):
    """Flags and values that the real one refuses are refused in its words."""
    done = ask(fake, *words)

    assert done.returncode == 1
    assert said in done.stderr


def test_buffer_names_are_listed_when_one_is_wrong(fake: FakeMachine):
    """A wrong override prints the names that there are, on stdout."""
    done = ask(fake, "-ot", "exps=GPU")

    assert done.stdout == "Available buffer types:\n  CPU\n  CUDA0\n  CUDA1\n"


@pytest.mark.parametrize(
    ("traits", "has", "lacks"),
    [
        (RuntimeTraits(), ["--load-mode", "--n-cpu-ffn"], ["--no-mmap", "--moe-cache-mib"]),
        (RuntimeTraits("old"), ["--load-mode", "--no-mmap"], ["--n-cpu-ffn", "--log-jsonl"]),
        (RuntimeTraits("old", has_load_mode=False), ["--no-mmap"], ["-lm, "]),
        (RuntimeTraits(prefetch="slots"), ["--prefetch-experts-slots N"], ["-pw"]),
        (RuntimeTraits(prefetch="weights"), ["-pw,   --prefetch-weights <0|1>"], []),
        (RuntimeTraits(has_moe_cache=True), ["(env: LLAMA_ARG_MOE_CACHE_MIB)"], []),
    ],
)
def test_help_lists_what_the_build_has(
    tmp_path: Path, traits: RuntimeTraits, has: list[str], lacks: list[str]
):
    """Old and new builds and forks list their own flags, and take them."""
    fake = FakeMachine(tmp_path, Machine("help", (Device("CUDA0"),), runtime=traits))
    text = ask(fake, "--help").stdout

    assert text.startswith("----- common params -----")
    assert all(flag in text for flag in has)
    assert not any(flag in text for flag in lacks)


def test_fifty_starts_leave_nothing_behind(fake: FakeMachine):
    """Help and device questions hold no memory and no process."""
    for _ in range(5):
        ask(fake, "--list-devices")

    assert not fake.owners
    assert fake.launches == 0
