"""One running server: a free port, the process, and a client once it is ready."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.process import ManagedProcess, Ready, scrubbed_environment
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.server.client import Client
from autofit.trial.candidate import LaunchPlan
from autofit.trial.measurement import MemoryReading

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A started server; it is ready within `limit_s`, or not at all."""

    process: ManagedProcess
    client: Client
    limit_s: float

    def wait_ready(self, check_stop: Callable[[], None]) -> Ready:
        """Wait until it answers, has exited, or its limit has passed."""

        def is_ready() -> bool:
            check_stop()
            return self.client.is_ready()

        return self.process.wait_ready(is_ready, deadline_s=self.limit_s)


def find_free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def start_server(plan: LaunchPlan, dialect: Dialect, log_path: Path) -> Iterator[RunningServer]:
    """Start a plan's server; it is stopped when the block is left, whatever ends it.

    Raises:
        UsageError: there is no such program, or it cannot run here.
        AutofitError: the log cannot be written, or the system refused to start it.
    """
    port = find_free_port()
    # The client first: its imports take their time, and a load should not be timed with them.
    with (
        Client(f"http://{HOST}:{port}", dialect) as client,
        ManagedProcess.start(
            [word.replace("{port}", str(port)) for word in plan.argv],
            env=scrubbed_environment(plan.env, also_remove=dialect.variables),
            log_path=log_path,
            grace_s=plan.limits.stop_s,
        ) as process,
    ):
        yield RunningServer(process, client, plan.limits.load_s)


# A process that waits for a disk, a device or the network does one of these within it.
_LOOK_S = 3.0
# Threads that only poll take this share of one CPU at most.
_IDLE_SHARE = 0.02
# Weights that lie in memory are read from disk by nobody; a few pages always are.
_MANY_FAULTS = 2000
_MUCH_SWAPPED_MIB = 64.0


class OomKillCounter:
    """How many processes the kernel has killed for want of memory since this was made."""

    def __init__(self, count: Callable[[], int | None] | None = None) -> None:
        self._count = count or Cgroup.find().oom_kills
        self._before = self._count()

    def since(self) -> int | None:
        """How many since then; None where the kernel does not count them."""
        now = self._count()
        return None if now is None or self._before is None else now - self._before


def describe_paging(ready: MemoryReading, end: MemoryReading) -> str:
    """That a server was paged while it computed, from when it was ready; empty if it was not.

    It is no failure: a model larger than the memory can be run no other way.
    """
    faults = (end.major_faults or 0) - (ready.major_faults or 0)
    swapped_mib = (end.process_swapped_mib or 0.0) - (ready.process_swapped_mib or 0.0)
    told = []
    if faults >= _MANY_FAULTS and ready.major_faults is not None:
        told.append(f"waited {faults} times for pages from disk")
    if swapped_mib >= _MUCH_SWAPPED_MIB:
        told.append(f"had {swapped_mib:.0f} MiB swapped out")
    if not told:
        return ""
    left = end.host_available_mib
    room = "" if left is None else f" ({left:.0f} MiB were available)"
    return f"while it computed, the server {' and '.join(told)}: host memory is short{room}"


@dataclass(frozen=True, slots=True)
class _Progress:
    cpu_s: float
    read_bytes: int
    log_bytes: int


def is_hung(
    pid: int,
    log_path: Path,
    *,
    look_s: float = _LOOK_S,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether a process and its offspring do nothing: no CPU time, no reading, no output.

    It takes `look_s` to tell. A process that is gone does not stand still.
    """
    before = _progress(pid, log_path)
    sleep(look_s)
    after = _progress(pid, log_path)
    if before is None or after is None:
        return False
    return (
        after.cpu_s - before.cpu_s <= _IDLE_SHARE * look_s
        and after.read_bytes == before.read_bytes
        and after.log_bytes == before.log_bytes
    )


def _progress(pid: int, log_path: Path) -> _Progress | None:
    try:
        server = psutil.Process(pid)
        family = [server, *server.children(recursive=True)]
    except psutil.Error:
        return None
    cpu_s, read_bytes = 0.0, 0
    for process in family:
        try:
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if hasattr(process, "io_counters"):  # not on macOS
                read_bytes += process.io_counters().read_bytes
        except psutil.Error:
            continue
    try:
        log_bytes = log_path.stat().st_size
    except OSError:
        log_bytes = 0
    return _Progress(cpu_s, read_bytes, log_bytes)
