"""The state of the host, and the conditions of a measurement."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

from autofit.machine.cpu import Cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import (
    ConditionsWatcher,
    HostState,
    HostWatcher,
    wait_until_quiet,
    watch_host,
)
from autofit.trial.measurement import Conditions

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
# Uses a second of CPU time after a line of input, then prints a line and waits.
BURN = """
import sys, time
sys.stdin.readline()
while time.process_time() < 1.0: pass
print("done", flush=True)
sys.stdin.read()
"""


@contextmanager
def burner() -> Iterator[subprocess.Popen]:
    """Yield a process that uses the CPU on request."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        process.stdin.close()


def burn(process: subprocess.Popen) -> None:
    """Make a burner use its second."""
    process.stdin.write(b"go\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"done\n"


def test_state_of_this_machine():
    """The numbers of this machine are consistent."""
    state = watch_host(0.05)

    assert 0 < state.memory_available_mib <= state.memory_total_mib
    assert 0 <= state.others_cores <= state.cores.logical + 1
    assert 0 <= state.steal_share <= 1
    assert state.is_busy == bool(
        [word for word in state.warnings() if "other processes" in word or "hypervisor" in word]
    )


@pytest.mark.parametrize("whose", ["others", "ours"])
def test_work_of_other_processes(whose: str):
    """CPU time of a foreign process counts as others', unless it works for us."""
    script = (
        "import sys, json; from autofit.machine.host_load import HostWatcher\n"
        "pids = [int(word) for word in sys.argv[1:]]; watcher = HostWatcher(extra_pids=pids)\n"
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


def test_work_of_our_processes():
    """CPU time of our descendants is ours, also after their death."""
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
    ("change", "warnings"),
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
def test_warnings(change: dict, warnings: tuple[str, ...]):
    """Each disturbance has a warning; a quiet machine has none."""
    state = dataclasses.replace(QUIET, **change)

    assert state.warnings() == warnings
    assert state.is_busy == bool({"others_cores", "steal_share"} & set(change))


COOL = GpuState("RTX 3060", "0000:01:00.0", clock_mhz=1800, max_clock_mhz=1900, temperature_c=60)
HOT = GpuState(
    "RTX 3060",
    "0000:01:00.0",
    clock_mhz=1200,
    max_clock_mhz=1900,
    temperature_c=84,
    power_w=170.0,
    throttled_by=("temperature (software)",),
)


def write_counters(root: Path, waited_us: int, throttles: int) -> None:
    """Write the kernel's counters of a machine with two threads of one core."""
    for kind in ("cpu", "memory"):
        path = root / "proc/pressure" / kind
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}\n"
            "full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    for number in range(2):
        for name, text in (
            ("topology/physical_package_id", "0\n"),
            ("thermal_throttle/package_throttle_count", f"{throttles}\n"),
        ):
            path = root / f"sys/devices/system/cpu/cpu{number}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


BUSY = dataclasses.replace(QUIET, others_cores=9.0)


@pytest.mark.parametrize(
    ("states", "limit_s", "reports", "is_busy"),
    [
        ([QUIET], 60, 0, False),
        ([BUSY, BUSY, QUIET], 60, 2, False),
        ([BUSY, BUSY, BUSY, QUIET], 12, 2, True),
        ([BUSY, QUIET], 0, 0, True),
    ],
)
def test_a_wait_ends_when_the_host_is_quiet_or_the_time_is_over(states, limit_s, reports, is_busy):
    """While the host is busy the wait reports why; its end is the last state."""
    found, now_s = [], [0.0]

    def watch(window_s: float) -> HostState:
        now_s[0] += window_s
        return states.pop(0)

    state = wait_until_quiet(limit_s, found.append, watch=watch, clock=lambda: now_s[0])

    assert state.is_busy == is_busy
    assert len(found) == reports
    assert all("9.0 of 16 cores" in text for text in found)


def test_conditions_have_clocks_heat_and_pressure(tmp_path: Path):
    """Counters give their growth, clocks the median of their samples."""
    states = [COOL, COOL, HOT]
    write_counters(tmp_path, 5_000_000, 7)
    watcher = ConditionsWatcher(
        interval_s=0.1, gpus=lambda: [states.pop(0) if len(states) > 1 else HOT], root=tmp_path
    )
    with watcher:
        time.sleep(0.8)
        write_counters(tmp_path, 5_200_000, 9)
    seen = watcher.conditions

    assert seen is not None
    assert seen.seconds >= 0.8
    assert seen.cpu_throttles == 2
    assert set(seen.pressure) == {"cpu", "memory"}
    assert seen.pressure["cpu"] == pytest.approx(0.2 / seen.seconds, rel=0.01)
    (gpu,) = seen.gpus
    assert (gpu.name, gpu.pci_id, gpu.max_clock_mhz) == ("RTX 3060", "0000:01:00.0", 1900)
    assert (gpu.low_clock_mhz, gpu.temperature_c, gpu.power_w) == (1200, 84, 170.0)
    assert gpu.clock_mhz in {1200, 1800}
    assert 0 < gpu.throttled_by["temperature (software)"] < 1
    assert Conditions.from_dict(asdict(seen)) == seen


def test_a_short_measurement_has_no_load(tmp_path: Path):
    """Below half a second CPU times are unknown; a missing counter is not 0."""
    with ConditionsWatcher(gpus=tuple, root=tmp_path) as watcher:
        pass
    seen = watcher.conditions

    assert seen is not None
    assert (seen.others_cores, seen.steal_share, seen.cpu_throttles) == (None, None, None)
    assert (seen.pressure, seen.gpus) == ({}, ())
    assert seen.cores >= 1


def test_conditions_of_this_machine():
    """On a real machine the numbers are consistent."""
    with ConditionsWatcher() as watcher:
        time.sleep(0.6)
    seen = watcher.conditions

    assert seen is not None
    assert seen.others_cores is not None
    assert 0 <= seen.others_cores <= seen.cores + 1
    assert seen.steal_share is not None
    assert 0 <= seen.steal_share <= 1
    assert all(0 <= share <= 1 for share in seen.pressure.values())


def test_a_failed_measurement_has_no_conditions():
    """An interrupted measurement has no conditions, and its thread has ended."""
    watcher = ConditionsWatcher()
    with pytest.raises(KeyboardInterrupt), watcher:
        raise KeyboardInterrupt

    assert watcher.conditions is None
