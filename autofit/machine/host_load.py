"""The state of the host: is it quiet enough to measure on, and what is it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.machine.cpu import Cores, read_cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_memory import HostMemory
from autofit.machine.nvml import nvidia_states
from autofit.units import MIB

BUSY_CORES = 0.5  # so much work of others disturbs a runtime on any machine
BUSY_SHARE = 0.1  # or so much of all cores
STEAL_SHARE = 0.05
SWAP_SHARE = 0.5
WINDOW_S = 0.5


@dataclass(frozen=True, slots=True)
class HostState:
    """The host over a stretch of time; None where it does not tell.

    `others_cores` are the cores kept busy by other processes than ours, `steal_share` the part
    of all CPU time that a hypervisor gave to others.
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
        """Whether others take so much that timings mean little."""
        limit = max(BUSY_CORES, BUSY_SHARE * self.cores.logical)
        return self.others_cores > limit or self.steal_share > STEAL_SHARE

    def words(self) -> tuple[str, ...]:
        """What a person should know before trusting a measurement; empty when all is well."""
        found = []
        if self.others_cores > max(BUSY_CORES, BUSY_SHARE * self.cores.logical):
            found.append(
                f"other processes keep {self.others_cores:.1f} of {self.cores.logical} cores busy"
            )
        if self.steal_share > STEAL_SHARE:
            found.append(f"the hypervisor gives {self.steal_share:.0%} of the CPU time to others")
        if self.swap_total_mib and self.swap_used_mib > SWAP_SHARE * self.swap_total_mib:
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
    def now(cls, clock: Callable[[], float], also: Collection[int]) -> _CpuTime:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        steal_s = getattr(times, "steal", 0.0)
        # Time of guests is counted in user and nice, too.
        guests_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        total_s = sum(times) - guests_s
        return cls(clock(), total_s, total_s - idle_s - steal_s, steal_s, _ours_s(also))


def _ours_s(also: Collection[int]) -> float:
    """CPU time of autofit and everything it started, the dead included."""
    me = psutil.Process()
    pids = {process.pid for process in (me, *me.children(recursive=True))}
    seconds = 0.0
    for pid in pids.union(also):
        try:
            process = psutil.Process(pid)
            times = process.cpu_times()
        except psutil.Error:
            continue
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


class HostWatcher:
    """Tells the state of the host since it was last asked.

    `also` are processes that autofit did not start but that work for it.
    """

    def __init__(
        self, *, also: Collection[int] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._also = also
        self._cgroup = Cgroup.find()
        self._memory = HostMemory(self._cgroup)
        self._before = _CpuTime.now(clock, also)

    def state(self) -> HostState:
        """The state over the time since the last call, or since this object was made."""
        before, now = self._before, _CpuTime.now(self._clock, self._also)
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
            memory_available_mib=self._memory.available_mib(),
            memory_limit_mib=self._cgroup.memory().limit_mib,
            swap_total_mib=swap.total / MIB,
            swap_used_mib=swap.used / MIB,
            gpus=nvidia_states(),
        )


def host_state(
    window_s: float = WINDOW_S,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> HostState:
    """The state of the host, watched for a short while."""
    watcher = HostWatcher(clock=clock)
    sleep(window_s)
    return watcher.state()


def cpu_mhz() -> float | None:
    """The mean clock of all cores now, None where it is not told."""
    try:
        # None in some virtual machines, whatever the stubs say.
        return getattr(psutil.cpu_freq(), "current", None) or None
    except (OSError, NotImplementedError, RuntimeError):
        return None
