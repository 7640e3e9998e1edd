"""Watches the machine while a launch is measured: what others do, how fast the clocks run."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

import psutil

from autofit.machine.amd_state import amd_states
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import HostWatcher, cpu_mhz
from autofit.machine.memory_watcher import DUTY
from autofit.machine.nvml import nvidia_states
from autofit.trial.launch_conditions import Conditions, GpuConditions

INTERVAL_S = 1.0
# CPU time is counted in ticks of 10 ms: over less than this it says little.
_LEAST_WINDOW_S = 0.5
_PRESSURES = ("cpu", "memory", "io")
# The sensors of processors, by the names of their drivers.
_CPU_SENSORS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")


class ConditionsWatcher:
    """Watches between entering and leaving; `conditions` then tells what was seen.

    `also` are processes that autofit did not start but that work for it.
    """

    def __init__(
        self,
        *,
        also: Collection[int] = (),
        interval_s: float = INTERVAL_S,
        gpus: Callable[[], Sequence[GpuState]] | None = None,
        root: Path = Path("/"),
    ) -> None:
        self.conditions: Conditions | None = None
        self._also = also
        self._interval_s = interval_s
        self._gpus = gpus or gpu_states
        self._root = root
        self._mhz: list[float] = []
        self._celsius: list[float] = []
        self._states: dict[tuple[str, str], list[GpuState]] = defaultdict(list)
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self._host = HostWatcher(also=self._also)
        self._throttles = _cpu_throttles(self._root)
        self._pressures = {kind: _waited_s(kind, self._root) for kind in _PRESSURES}
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="conditions", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if exception is None:
            self._sample()
            self.conditions = self._told()

    def _run(self) -> None:
        pause_s = self._interval_s / 2  # a launch has just begun to compute
        while not self._is_over.wait(pause_s):
            began_s = time.monotonic()
            self._sample()
            pause_s = max(self._interval_s, (time.monotonic() - began_s) * (1 / DUTY - 1))

    def _sample(self) -> None:
        mhz, celsius = cpu_mhz(), _cpu_celsius()
        self._mhz += [mhz] if mhz is not None else []
        self._celsius += [celsius] if celsius is not None else []
        for state in self._gpus():
            self._states[state.name, state.pci_id].append(state)

    def _told(self) -> Conditions:
        seconds = time.monotonic() - self._began_s
        state = self._host.state()
        is_told = seconds >= _LEAST_WINDOW_S
        throttles = _cpu_throttles(self._root)
        return Conditions(
            seconds=round(seconds, 3),
            cores=state.cores.logical,
            others_cores=round(state.others_cores, 3) if is_told else None,
            steal_share=round(state.steal_share, 4) if is_told else None,
            load_1m=state.load_1m,
            cpu_mhz=round(median(self._mhz), 1) if self._mhz else None,
            low_cpu_mhz=round(min(self._mhz), 1) if self._mhz else None,
            cpu_temperature_c=max(self._celsius, default=None),
            cpu_throttles=None
            if throttles is None or self._throttles is None
            else max(throttles - self._throttles, 0),
            pressure={
                kind: round(min(max(now - before, 0.0) / max(seconds, 1e-9), 1.0), 4)
                for kind, before in self._pressures.items()
                if before is not None and (now := _waited_s(kind, self._root)) is not None
            }
            if is_told
            else {},
            gpus=tuple(_gpu(states) for states in self._states.values()),
        )


def gpu_states() -> tuple[GpuState, ...]:
    """What each GPU does now, of vendors that tell it."""
    return (*nvidia_states(), *amd_states())


def _gpu(states: Sequence[GpuState]) -> GpuConditions:
    clocks = [state.clock_mhz for state in states if state.clock_mhz is not None]
    reasons = Counter(reason for state in states for reason in state.throttled_by)
    powers = [state.power_w for state in states if state.power_w is not None]
    degrees = [state.temperature_c for state in states if state.temperature_c is not None]
    return GpuConditions(
        states[0].name,
        states[0].pci_id,
        clock_mhz=median(clocks) if clocks else None,
        low_clock_mhz=min(clocks, default=None),
        max_clock_mhz=states[0].max_clock_mhz,
        temperature_c=max(degrees, default=None),
        power_w=max(powers, default=None),
        throttled_by={reason: round(n / len(states), 3) for reason, n in reasons.items()},
    )


def _waited_s(kind: str, root: Path) -> float | None:
    """Seconds since boot in which some task waited, from the kernel's pressure counters."""
    try:
        text = (root / "proc/pressure" / kind).read_text()
    except OSError:
        return None
    for line in text.splitlines():
        word, *fields = line.split()
        if word == "some":
            totals = [field[len("total=") :] for field in fields if field.startswith("total=")]
            return float(totals[0]) / 1e6 if totals else None
    return None


def _cpu_throttles(root: Path) -> int | None:
    """How often packages slowed down for heat since boot; None where that is not counted."""
    folder = root / "sys/devices/system/cpu"
    counts: dict[str, int] = {}
    for path in folder.glob("cpu[0-9]*/thermal_throttle/package_throttle_count"):
        try:
            package = (path.parent.parent / "topology/physical_package_id").read_text().strip()
            counts[package] = max(int(path.read_text()), counts.get(package, 0))
        except (OSError, ValueError):
            continue
    return sum(counts.values()) if counts else None


def _cpu_celsius() -> float | None:
    """The hottest of the processor's sensors; None where there is none."""
    if not hasattr(psutil, "sensors_temperatures"):  # not on macOS
        return None
    try:
        sensors = psutil.sensors_temperatures()
    except (OSError, ValueError):
        return None
    told = [one.current for name in _CPU_SENSORS for one in sensors.get(name, ())]
    return max((celsius for celsius in told if celsius), default=None)
