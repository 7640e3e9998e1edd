"""Memory of a simulated machine shared by processes, in a JSON file under a lock.

Owners are processes: one that ended, killed or not, gives its memory back at the next look
(after the machine's `release_s`). Other programs hold memory too, and may take more.
"""

# ruff: noqa: PTH104, PTH123 -- importing pathlib would slow every start of the fake server

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fakes.ledger import FullError, Ledger
from fakes.machine import Machine


def _started(pid: int) -> str | None:
    """Return the start of a process, in clock ticks; None when it ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


class State:
    """The file; `edit` is the only way in."""

    def __init__(self, path: str, machine: Machine) -> None:
        self.path, self.machine = path, machine

    def _fresh(self) -> dict[str, Any]:
        return {"launches": 0, "holders": [], "owners": {}, "lingering": [], "faults": []}

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        """The state under the lock, dead owners dropped; written back at the end."""
        with open(self.path + ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                with open(self.path, encoding="utf-8") as file:
                    state = json.load(file)
            except FileNotFoundError:
                state = self._fresh()
            self._drop_dead(state)
            yield state
            written = f"{self.path}.{os.getpid()}"
            with open(written, "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.rename(written, self.path)

    def _drop_dead(self, state: dict[str, Any]) -> None:
        now = time.time()
        for pid in list(state["owners"]):
            if _started(int(pid)) != state["owners"][pid]["started"]:
                self.release(state, pid, now)
        state["lingering"] = [item for item in state["lingering"] if item["until"] > now]

    def release(self, state: dict[str, Any], pid: str, now: float) -> None:
        """Take an owner off the list; its memory may linger."""
        owner = state["owners"].pop(pid, None)
        linger = self.machine.release_s if owner is None else owner.get("linger_s", 0.0)
        if owner and linger:
            state["lingering"].append({**owner, "until": now + linger})

    def floors(self, state: dict[str, Any]) -> tuple[list[float], float]:
        """Return the memory of all other programs: by device, and of the host."""
        machine = self.machine
        drift = machine.floor_drift_mib * max(0, state["launches"] - 1)
        drift = min(drift, machine.floor_drift_limit_mib)
        devices = [device.other_mib + drift for device in machine.devices]
        host = machine.host.other_mib
        names = {device.name: i for i, device in enumerate(machine.devices)}
        for holder in state["holders"]:
            if holder["device"] in names:
                devices[names[holder["device"]]] += holder["mib"]
            else:
                host += holder["mib"]
        return devices, host

    def others(self, state: dict[str, Any], own: str | None = None) -> tuple[list[float], float]:
        """Floors and every owner but one, lingering ones included."""
        devices, host = self.floors(state)
        owners = [owner for pid, owner in state["owners"].items() if pid != own]
        for owner in [*owners, *state["lingering"]]:
            devices = [a + b for a, b in zip(devices, owner["used"], strict=True)]
            host += owner["host"]
        return devices, host


class SharedMemory:
    """The memory of this process in a shared state; see `launch.Memory`."""

    def __init__(self, state: State) -> None:
        self.state, self.machine = state, state.machine
        self.pid = str(os.getpid())
        count = len(self.machine.devices)
        self.used_mib, self.host_used_mib = [0.0] * count, 0.0
        self.spilled_mib = [0.0] * count
        with state.edit() as data:
            data["launches"] += 1
            self.launch = data["launches"]
            self.faults = list(data["faults"])
            self._write(data)

    def _write(self, data: dict[str, Any]) -> None:
        data["owners"][self.pid] = {
            "started": _started(int(self.pid)),
            "used": self.used_mib,
            "spilled": self.spilled_mib,
            "host": self.host_used_mib,
            "linger_s": self.machine.release_s,
        }

    def _ledger(self, data: dict[str, Any]) -> Ledger:
        devices, host = self.state.others(data, self.pid)
        return Ledger(
            self.machine, tuple(devices), host, self.used_mib, self.spilled_mib,
            self.host_used_mib,
        )  # fmt: skip

    def free_mib(self, index: int) -> float:
        """Return the free memory of a device."""
        with self.state.edit() as data:
            return self._ledger(data).free_mib(index)

    def host_free_mib(self) -> float:
        """Return the free memory of the host."""
        with self.state.edit() as data:
            return self._ledger(data).host_free_mib()

    def take(self, index: int, mib: float) -> None:
        """Take device memory; `FullError` where there is not enough."""
        with self.state.edit() as data:
            ledger = self._ledger(data)
            try:
                ledger.take(index, mib)
            except FullError:
                ledger.host_used_mib = self.host_used_mib
                raise
            self.host_used_mib = ledger.host_used_mib
            self._write(data)

    def take_host(self, mib: float) -> None:
        """Take host memory; `FullError` where there is not enough."""
        with self.state.edit() as data:
            ledger = self._ledger(data)
            ledger.take_host(mib)
            self.host_used_mib = ledger.host_used_mib
            self._write(data)

    def give(self, index: int, mib: float) -> None:
        """Take device memory back."""
        with self.state.edit() as data:
            ledger = self._ledger(data)
            ledger.give(index, mib)
            self.host_used_mib = ledger.host_used_mib
            self._write(data)

    def spill(self, index: int, mib: float) -> None:
        """Have part of a device's memory lie in the host's, whatever the machine's policy."""
        self.take_host(mib)
        with self.state.edit() as data:
            moved = min(mib, self.used_mib[index])
            self.used_mib[index] -= moved
            self.spilled_mib[index] += moved
            self._write(data)

    def release(self) -> None:
        """Give everything back."""
        with self.state.edit() as data:
            self.state.release(data, self.pid, time.time())


def reading(state: State) -> list[tuple[str, float, float, float]]:
    """(name, total, free, used) of every device and of the host, as a monitor sees them."""
    with state.edit() as data:
        devices, host = state.others(data)
    rows = []
    for device, used in zip(state.machine.devices, devices, strict=True):
        shown = min(device.total_mib, used + device.reserve_mib)
        rows.append((device.name, device.total_mib, device.total_mib - shown, shown))
    ram = state.machine.host.ram_mib
    rows.append(("host", ram, max(0.0, ram - host), min(ram, host)))
    return rows


def lent(state: State) -> list[tuple[str, float]]:
    """(name, MiB in host memory) of every device."""
    with state.edit() as data:
        owners = [*data["owners"].values(), *data["lingering"]]
    return [
        (device.name, sum(owner["spilled"][place] for owner in owners))
        for place, device in enumerate(state.machine.devices)
    ]
