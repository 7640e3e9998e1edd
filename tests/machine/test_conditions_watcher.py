"""What is seen of the machine while a launch is measured."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import pytest

from autofit.machine.conditions_watcher import ConditionsWatcher
from autofit.machine.gpu import GpuState
from autofit.trial.launch_conditions import Conditions

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
    """The kernel's counters of a machine with two threads of one core."""
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


def test_clocks_heat_and_waiting_are_seen(tmp_path: Path):
    """Counters tell by how much they grew meanwhile, clocks by the middle of their samples."""
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


def test_a_short_look_says_nothing_of_others(tmp_path: Path):
    """Below half a second ticks of CPU time say too little, and no counter is no zero."""
    with ConditionsWatcher(gpus=tuple, root=tmp_path) as watcher:
        pass
    seen = watcher.conditions

    assert seen is not None
    assert (seen.others_cores, seen.steal_share, seen.cpu_throttles) == (None, None, None)
    assert (seen.pressure, seen.gpus) == ({}, ())
    assert seen.cores >= 1


def test_work_is_seen_on_this_machine():
    """On a real machine the figures hold together."""
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
    """An interrupted look is thrown away, and its thread is gone."""
    watcher = ConditionsWatcher()
    with pytest.raises(KeyboardInterrupt), watcher:
        raise KeyboardInterrupt

    assert watcher.conditions is None
