"""The state of the host."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autofit.machine.cpu import Cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import HostState, HostWatcher, host_state

QUIET = HostState(
    window_s=1.0,
    cores=Cores(logical=16, usable=16, physical=8, performance=8),
    load_1m=0.1,
    others_cores=0.2,
    steal_share=0.0,
    cpu_mhz=3000.0,
    memory_total_mib=64000.0,
    memory_available_mib=60000.0,
    memory_limit_mib=None,
    swap_total_mib=8000.0,
    swap_used_mib=100.0,
)
# Uses a second of CPU time as soon as a line comes, then says so and waits.
BURN = """
import sys, time
sys.stdin.readline()
while time.process_time() < 1.0: pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def burner() -> Iterator[subprocess.Popen]:
    """A process that uses the CPU when told to."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.stdin.close()


def burn(process: subprocess.Popen) -> None:
    """Let a burner use its second."""
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"


def test_this_machine():
    """The state of this machine holds together."""
    state = host_state(0.05)

    assert 0 < state.memory_available_mib <= state.memory_total_mib
    assert 0 <= state.others_cores <= state.cores.logical + 1
    assert 0 <= state.steal_share <= 1
    assert state.is_busy == bool(
        [word for word in state.words() if "other processes" in word or "hypervisor" in word]
    )


@pytest.mark.parametrize("whose", ["others", "ours"])
def test_work_of_others_is_seen(whose: str):
    """CPU time of a process that is not ours counts as others', unless it works for us."""
    script = (
        "import sys, json; from autofit.machine.host_load import HostWatcher\n"
        "also = [int(word) for word in sys.argv[1:]]; watcher = HostWatcher(also=also)\n"
        "ours_s = watcher._before.ours_s; print('ready', flush=True); sys.stdin.readline()\n"
        "state = watcher.state(); "
        "print(json.dumps([state.others_cores * state.window_s, watcher._before.ours_s - ours_s]))"
    )
    with (
        burner() as other,
        subprocess.Popen(
            [sys.executable, "-c", script, *[str(other.pid)] * (whose == "ours")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as watching,
    ):
        assert watching.stdout.readline() == b"ready\n"
        burn(other)
        others_s, ours_s = json.loads(watching.communicate(b"go\n")[0])

    assert (ours_s if whose == "ours" else others_s) > 0.8


def test_our_own_work_is_not_others():
    """CPU time of our offspring is ours, while it lives and after its death."""
    with burner() as ours:
        watcher = HostWatcher()
        before = watcher._before
        burn(ours)
        watcher.state()
        alive = watcher._before
    watcher.state()
    dead = watcher._before

    assert alive.ours_s - before.ours_s > 0.9
    assert dead.ours_s >= alive.ours_s


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ()),
        ({"others_cores": 3.2}, ("other processes keep 3.2 of 16 cores busy",)),
        ({"steal_share": 0.12}, ("the hypervisor gives 12% of the CPU time to others",)),
        ({"swap_used_mib": 7000.0}, ("7000 of 8000 MiB swap space are in use",)),
        (
            {"gpus": (GpuState("RTX 3060", "0000:01:00.0", throttled_by=("power limit",)),)},
            ("RTX 3060 (0000:01:00.0) is slowed down by power limit",),
        ),
    ],
)
def test_words(change: dict, words: tuple[str, ...]):
    """What a person should know is said, and nothing when all is well."""
    state = dataclasses.replace(QUIET, **change)

    assert state.words() == words
    assert state.is_busy == bool({"others_cores", "steal_share"} & set(change))
