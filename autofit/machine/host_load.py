"""The load of this machine, at one moment and during a launch."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Self

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.machine.cpu import Cores, count_cpu_throttles, cpu_celsius, cpu_mhz, read_cores
from autofit.machine.gpu import GpuState
from autofit.machine.kernel_files import read_fields, read_text
from autofit.machine.linux_gpus import amd_states
from autofit.machine.memory_watcher import READING_SHARE
from autofit.machine.nvml import nvidia_states
from autofit.trial.measurement import Conditions, GpuConditions
from autofit.units import MIB

STEAL_SHARE = 0.05
_BUSY_CORES = 0.5  # this much work of other processes disturbs a runtime on any machine
_BUSY_SHARE = 0.1  # or this share of all cores
_SWAP_SHARE = 0.5
_WINDOW_S = 0.5
# A pause of a busy program is not yet quiet.
_QUIET_WINDOW_S = 5.0
_INTERVAL_S = 1.0
# CPU time is counted in ticks of 10 ms, so shorter spans are too imprecise.
_LEAST_WINDOW_S = 0.5
_PRESSURES = ("cpu", "memory", "io")


def are_cores_busy(others_cores: float, cores: int) -> bool:
    """Return whether other processes use enough of a machine's cores to disturb timings."""
    return others_cores > max(_BUSY_CORES, _BUSY_SHARE * cores)


@dataclass(frozen=True, slots=True)
class HostState:
    """The host during a span of time; a field is None if unknown.

    `others_cores` is the number of cores that processes other than ours used. `steal_share` is
    the part of all CPU time that a hypervisor gave to others.
    """

    window_s: float
    cores: Cores
    load_1m: float | None
    others_cores: float
    steal_share: float
    cpu_mhz: float | None
    memory_total_mib: float
    memory_available_mib: float
    memory_limit_mib: float | None
    swap_total_mib: float
    swap_used_mib: float
    gpus: tuple[GpuState, ...] = ()

    @property
    def is_busy(self) -> bool:
        """True if other processes use so much that timings are unreliable."""
        is_stolen = self.steal_share > STEAL_SHARE
        return is_stolen or are_cores_busy(self.others_cores, self.cores.logical)

    def warnings(self) -> tuple[str, ...]:
        """Return the reasons why measurements now would be unreliable."""
        found = []
        if are_cores_busy(self.others_cores, self.cores.logical):
            found.append(
                f"other processes keep {self.others_cores:.1f} of {self.cores.logical} cores busy"
            )
        if self.steal_share > STEAL_SHARE:
            found.append(f"the hypervisor gives {self.steal_share:.0%} of the CPU time to others")
        if self.swap_total_mib and self.swap_used_mib > _SWAP_SHARE * self.swap_total_mib:
            found.append(
                f"{self.swap_used_mib:.0f} of {self.swap_total_mib:.0f} MiB swap space are in use"
            )
        found += [
            f"{gpu.name} ({gpu.pci_id}) is slowed down by {' and '.join(gpu.throttled_by)}"
            for gpu in self.gpus
            if gpu.throttled_by
        ]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _CpuTime:
    """CPU seconds since boot, of the machine and of our own processes."""

    at_s: float
    total_s: float
    busy_s: float
    steal_s: float
    ours_s: float

    @classmethod
    def now(cls, extra_pids: Collection[int]) -> _CpuTime:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        steal_s = getattr(times, "steal", 0.0)
        # User and nice include the time of guests.
        guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        total_s = sum(times) - guests_s
        return cls(
            time.monotonic(), total_s, total_s - idle_s - steal_s, steal_s, _ours_s(extra_pids)
        )


def _ours_s(extra_pids: Collection[int]) -> float:
    """Return the CPU time of autofit and of all processes that it started, also ended ones."""
    me = psutil.Process()
    pids = {process.pid for process in (me, *me.children(recursive=True))}
    seconds = 0.0
    for pid in pids.union(extra_pids):
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


class HostWatcher:
    """A reader of the host's state since its last call.

    `extra_pids` are processes that work for autofit but were not started by it.
    """

    def __init__(self, *, extra_pids: Collection[int] = ()) -> None:
        self._extra_pids = extra_pids
        self._cgroup = Cgroup.find()
        self._before = _CpuTime.now(extra_pids)

    def state(self) -> HostState:
        """Return the state since the last call, or since this object was created."""
        before, now = self._before, _CpuTime.now(self._extra_pids)
        self._before = now
        window_s = max(now.at_s - before.at_s, 1e-9)
        total_s = max(now.total_s - before.total_s, 1e-9)
        ours_s = max(now.ours_s - before.ours_s, 0.0)
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
        return HostState(
            window_s=window_s,
            cores=read_cores(self._cgroup),
            load_1m=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            others_cores=max(now.busy_s - before.busy_s - ours_s, 0.0) / window_s,
            steal_share=max(now.steal_s - before.steal_s, 0.0) / total_s,
            cpu_mhz=cpu_mhz(),
            memory_total_mib=memory.total / MIB,
            memory_available_mib=self._cgroup.available_mib(),
            memory_limit_mib=self._cgroup.memory().limit_mib,
            swap_total_mib=swap.total / MIB,
            swap_used_mib=swap.used / MIB,
            gpus=nvidia_states(),
        )


def watch_host(
    window_s: float = _WINDOW_S, *, sleep: Callable[[float], None] = time.sleep
) -> HostState:
    """Watch the host for a short time and return its state."""
    watcher = HostWatcher()
    sleep(window_s)
    return watcher.state()


def wait_until_quiet(
    limit_s: float,
    report: Callable[[str], None],
    *,
    watch: Callable[[float], HostState] = watch_host,
    clock: Callable[[], float] = time.monotonic,
) -> HostState:
    """Wait until the host is not busy, at most `limit_s` seconds, and return its last state.

    While it is busy, keep calling `report` with the reasons.
    """
    deadline = clock() + limit_s
    while (state := watch(_QUIET_WINDOW_S)).is_busy and clock() < deadline:
        report("; ".join(state.warnings()))
    return state


class ConditionsWatcher:
    """A context manager that watches the machine; `conditions` is its result.

    `extra_pids` are processes that work for autofit but were not started by it.
    """

    def __init__(
        self,
        *,
        extra_pids: Collection[int] = (),
        interval_s: float = _INTERVAL_S,
        gpus: Callable[[], Sequence[GpuState]] | None = None,
        root: Path = Path("/"),
    ) -> None:
        self.conditions: Conditions | None = None
        self._extra_pids = extra_pids
        self._interval_s = interval_s
        self._gpus = gpus or gpu_states
        self._root = root
        self._mhz: list[float] = []
        self._celsius: list[float] = []
        self._states: dict[tuple[str, str], list[GpuState]] = defaultdict(list)
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        self._host = HostWatcher(extra_pids=self._extra_pids)
        self._throttles = count_cpu_throttles(self._root)
        self._pressures = {kind: _waited_s(kind, self._root) for kind in _PRESSURES}
        self._began_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="conditions", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        if kind is None:
            self._sample()
            self.conditions = self._summarize()

    def _run(self) -> None:
        pause_s = self._interval_s / 2  # a launch has just started to compute
        while not self._is_over.wait(pause_s):
            began_s = time.monotonic()
            self._sample()
            reading_s = time.monotonic() - began_s
            pause_s = max(self._interval_s, reading_s * (1 / READING_SHARE - 1))

    def _sample(self) -> None:
        mhz, celsius = cpu_mhz(), cpu_celsius()
        self._mhz += [mhz] if mhz is not None else []
        self._celsius += [celsius] if celsius is not None else []
        for state in self._gpus():
            self._states[state.name, state.pci_id].append(state)

    def _summarize(self) -> Conditions:
        seconds = time.monotonic() - self._began_s
        state = self._host.state()
        is_long = seconds >= _LEAST_WINDOW_S
        throttles = count_cpu_throttles(self._root)
        return Conditions(
            seconds=round(seconds, 3),
            cores=state.cores.logical,
            others_cores=round(state.others_cores, 3) if is_long else None,
            steal_share=round(state.steal_share, 4) if is_long else None,
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
            if is_long
            else {},
            gpus=tuple(_summarize_gpu(states) for states in self._states.values()),
        )


def gpu_states() -> tuple[GpuState, ...]:
    """Return the state of each NVIDIA and AMD GPU."""
    return (*nvidia_states(), *amd_states())


def _summarize_gpu(states: Sequence[GpuState]) -> GpuConditions:
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
    """Return the seconds since boot in which a task waited, from the pressure counters."""
    some = read_fields(read_text(root / "proc/pressure" / kind), " ").get("some", "")
    fields = dict(field.partition("=")[::2] for field in some.split())
    return float(fields["total"]) / 1e6 if "total" in fields else None
