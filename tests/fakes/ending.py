"""The end of a fake server: in order, by a signal, or with a backend's last words."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import NoReturn

from fakes import failure_text, launch_log
from fakes.failure_text import RAW, SIGNALS, Line
from fakes.faults import Faults
from fakes.launch import Launch, StoppedError
from fakes.log import Log
from fakes.memory_state import SharedMemory
from fakes.own_fit import memory_table
from fakes.placement import buffer_name
from fakes.startup_log import host_buffer


class Ending:
    """Knows the log, the memory and the faults of one process."""

    def __init__(self, log: Log, memory: SharedMemory, faults: Faults, path: str) -> None:
        self.log, self.memory, self.faults, self.path = log, memory, faults, path

    def write(self, lines: list[Line]) -> None:
        """Print lines of a failure."""
        for level, text in lines:
            if level == RAW:
                self.log.raw(text + "\n")
            else:
                self.log.say(level, text)

    def exit(self, status: int) -> NoReturn:
        """Give memory back and end."""
        self.memory.release()
        os._exit(status)

    def signal(self, number: int) -> NoReturn:
        """End by a signal, leaving no core file."""
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.kill(os.getpid(), number)
        time.sleep(3600)  # a thread may run on for a moment
        os._exit(1)

    def fail(self, lines: list[Line]) -> NoReturn:
        """A failed start: words, then status 1."""
        self.write(lines)
        self.exit(1)

    def strike(self, stage: str) -> None:
        """End the process if a fault says so for this stage."""
        if self.faults.at("silent", stage, "load"):
            self.exit(1)
        for name, number in SIGNALS.items():
            if self.faults.at(name, stage, "load"):
                if name == "abort":
                    self.log.raw(
                        "ggml/src/ggml.c:1234: GGML_ASSERT(ggml_can_mul_mat(a, b)) failed\n"
                    )
                self.signal(number)

    # ---- memory

    def refuse(self, launch: Launch, stopped: StoppedError) -> NoReturn:
        """An allocation was refused while loading."""
        failure = stopped.failure
        if failure.is_killed:
            self.signal(signal.SIGKILL)
        traits = launch.machine.runtime
        is_old = traits.log_format == "old"
        mib = failure.requested_mib or 0.0
        if failure.where != "device":
            lines = failure_text.refused_host(mib, is_old=is_old)
            buffer = "CPU" if failure.where == "host" else host_buffer(
                launch.machine, launch.settings
            )  # fmt: skip
        else:
            index, name, buffer = self._device(launch, failure.device)
            backend = launch.machine.devices[index].backend
            place = self.ordinal(launch, index)
            if failure.buffer == "compute":
                lines = failure_text.refused_compute(backend, name, place, buffer, mib)
            else:
                lines = failure_text.refused_device(
                    backend, name, place, buffer, mib, is_old=is_old
                )
        if failure.stage == "load":
            self.fail([*lines, *failure_text.weights_end(self.path, buffer)])
        why = {
            "kv": "failed to allocate buffer for kv cache",
            "recurrent": "failed to allocate buffer for rs cache",
            "compute": "failed to allocate compute pp buffers",
        }
        reason = why.get(failure.buffer or "", "failed to reserve initial output buffer")
        self.fail([*lines, *failure_text.context_end(self.path, reason)])

    @staticmethod
    def _device(launch: Launch, name: str | None) -> tuple[int, str, str]:
        names = [device.name for device in launch.machine.devices]
        index = names.index(name) if name in names else launch.settings.devices[0]
        return index, names[index], buffer_name(launch.machine, index)

    @staticmethod
    def ordinal(launch: Launch, index: int) -> int:
        """The number a backend gives its device: its place among those of its kind."""
        backend = launch.machine.devices[index].backend
        return sum(d.backend == backend for d in launch.machine.devices[:index])

    def run_out(self, launch: Launch, stopped: StoppedError) -> None:
        """Memory ran out while computing; returns only where the server lives on."""
        failure = stopped.failure
        if failure.is_killed:
            self.signal(signal.SIGKILL)
        index, _name, _ = self._device(launch, failure.device)
        backend = launch.machine.devices[index].backend
        if backend == "Metal" or failure.reason == "decode":
            self.write(
                failure_text.metal_loss()
                if backend == "Metal"
                else [
                    ("E", "process_ubatch: failed to allocate graph"),
                    ("E", "decode: failed to decode, ret = -2"),
                ]
            )
            self.log.error_line(
                "srv        decode: Compute error. off = 0, n_batch = "
                f"{launch.settings.batch}, ret = -3"
            )
            return
        if failure.reason == "slot":
            mib = failure.requested_mib or 0.0
            self.write(failure_text.slot_loss(mib, self.ordinal(launch, index)))
            self.signal(signal.SIGABRT)
        by_cublas = failure.reason == "cublas" or (failure.requested_mib or 0) % 2 > 1
        self.write(
            failure_text.run_time_loss(
                backend, self.ordinal(launch, index), failure.requested_mib or 0.0,
                by_cublas=by_cublas,
            )
        )  # fmt: skip
        self.signal(signal.SIGABRT)

    def lose_device(self, launch: Launch) -> None:
        """The driver gives up; returns only where the server lives on."""
        index = launch.settings.devices[0]
        device = launch.machine.devices[index]
        is_old = launch.machine.runtime.log_format == "old"
        lines, is_dead = failure_text.device_lost(device.backend, device.name, is_old=is_old)
        self.write(lines)
        if is_dead:
            self.signal(signal.SIGABRT)
        self.log.error_line(
            "srv        decode: decode() failed: vk::Queue::submit: ErrorDeviceLost"
        )

    # ---- the end

    def finish(self, launch: Launch) -> NoReturn:
        """The ordinary end: the memory table, then status 0."""
        self.log.trace_line("srv    operator(): operator(): cleaning up before exit...")
        if not self.faults.get("no-table"):
            rows = [
                (launch.machine.devices[index], self.memory.free_mib(index),
                 launch.allocation.devices[at])
                for at, index in enumerate(launch.settings.devices)
            ]  # fmt: skip
            host = launch.allocation.host
            for _, text in memory_table(
                rows, host.weights_mib, host.kv_mib, host.compute_mib, host.repack_mib
            ):
                self.log.trace_line(text)
        launch_log.cache_hits(self.log, launch)
        status = self.faults.get("exit-status")
        self.exit(int(status.number(1)) if status else 0)
