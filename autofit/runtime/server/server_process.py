"""The process of a server: its start, and the detection of kills, hangs and paging."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.process.environment import scrubbed_environment
from autofit.process.managed_process import ManagedProcess, Readiness
from autofit.runtime.command.redaction import launch_secrets
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.server.client import Client
from autofit.trial.candidate import LaunchPlan
from autofit.trial.measurement import MemoryReading

LOOPBACK = "127.0.0.1"
# A process that waits for a disk, a device or the network makes progress within this time.
_OBSERVE_S = 3.0
# Threads that only poll use at most this share of one CPU.
_IDLE_SHARE = 0.02
# Weights that are in memory cause no page faults from disk, except for a few pages.
_MANY_FAULTS = 2000
_MUCH_SWAPPED_MIB = 64.0


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server; `limit_s` is the time limit until it is ready."""

    process: ManagedProcess
    client: Client
    limit_s: float

    def wait_ready(self) -> Readiness:
        """Wait until the server answers, has exited, or the time limit has passed."""
        return self.process.wait_ready(self.client.is_ready, deadline_s=self.limit_s)


def find_free_port() -> int:
    """Return a port on which nothing listens at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def start_server(plan: LaunchPlan, dialect: Dialect, log_path: Path) -> Iterator[RunningServer]:
    """Start a plan's server; the end of the block stops it, also after an error.

    Raises:
        UsageError: there is no such program, or it cannot run here.
        AutofitError: the log cannot be written, or the system refused to start the server.
    """
    port = find_free_port()
    client = Client(f"http://{LOOPBACK}:{port}", dialect)
    with start_planned(plan, dialect, log_path, port) as process:
        yield RunningServer(process, client, plan.limits.load_s)


def start_planned(
    plan: LaunchPlan, dialect: Dialect, log_path: Path, port: int = 0
) -> ManagedProcess:
    """Start the command of a plan, with its variables and with its secrets removed from the log.

    Raises:
        UsageError, AutofitError: as `start_server`.
    """
    return ManagedProcess.start(
        [word.replace("{port}", str(port)) for word in plan.argv],
        env=scrubbed_environment(plan.env, also_remove=dialect.variables),
        log_path=log_path,
        grace_s=plan.limits.stop_s,
        secrets=launch_secrets(plan, os.environ),
    )


class OomKillCounter:
    """The number of processes that the kernel killed to free memory since it was created."""

    def __init__(self, count: Callable[[], int | None] | None = None) -> None:
        self._count = count or Cgroup.find().oom_kills
        self._before = self._count()

    def kills(self) -> int | None:
        """Return the number so far, or None if the kernel does not count."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before


def describe_paging(ready: MemoryReading, end: MemoryReading) -> str:
    """Return a note if the server was paged between two readings, otherwise an empty text.

    It is not a failure: a model larger than the memory cannot run otherwise.
    """
    faults = (end.major_faults or 0) - (ready.major_faults or 0)
    swapped_mib = (end.process_swapped_mib or 0.0) - (ready.process_swapped_mib or 0.0)
    signs = []
    if faults >= _MANY_FAULTS and ready.major_faults is not None:
        signs.append(f"waited {faults} times for pages from disk")
    if swapped_mib >= _MUCH_SWAPPED_MIB:
        signs.append(f"had {swapped_mib:.0f} MiB swapped out")
    if not signs:
        return ""
    available = end.host_available_mib
    free = "" if available is None else f" ({available:.0f} MiB were available)"
    return f"host memory is short{free}: the server {' and '.join(signs)} while it computed"


@dataclass(frozen=True, slots=True)
class _Progress:
    cpu_s: float
    read_bytes: int
    log_bytes: int


def is_hung(pid: int, log_path: Path, *, observe_s: float = _OBSERVE_S) -> bool:
    """Return whether a process and its children use no CPU time, read nothing and print nothing.

    It takes `observe_s` seconds. A process that has exited is not hung.
    """
    before = _read_progress(pid, log_path)
    time.sleep(observe_s)
    after = _read_progress(pid, log_path)
    if before is None or after is None:
        return False
    return (
        after.cpu_s - before.cpu_s <= _IDLE_SHARE * observe_s
        and after.read_bytes == before.read_bytes
        and after.log_bytes == before.log_bytes
    )


def _read_progress(pid: int, log_path: Path) -> _Progress | None:
    try:
        server = psutil.Process(pid)
        processes = [server, *server.children(recursive=True)]
    except psutil.Error:
        return None
    cpu_s, read_bytes, log_bytes = 0.0, 0, 0
    for process in processes:
        with suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if hasattr(process, "io_counters"):  # not on macOS
                read_bytes += process.io_counters().read_bytes
    with suppress(OSError):
        log_bytes = log_path.stat().st_size
    return _Progress(cpu_s, read_bytes, log_bytes)
