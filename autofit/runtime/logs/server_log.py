"""The facts of one launch in a server's log: devices, buffers, settings, memory, timings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from autofit.runtime.dialect.log_patterns import BufferTypes, Facts
from autofit.trial.measurement import ReportedMemory
from autofit.trial.outcome import Where
from autofit.units import MIB

BufferKind = Literal["weights", "kv", "recurrent", "compute", "output", "cache"]
Value = int | float | str
FACT_KINDS = tuple(kind.name for kind in fields(Facts))

_BUFFER_KINDS: dict[str, BufferKind] = {
    "model": "weights",
    "KV": "kv",
    "RS": "recurrent",
    "compute": "compute",
    "output": "output",
    "MoE cache": "cache",
    "expert cache": "cache",
}
_SWITCH_VALUES = {"enabled": "on", "disabled": "off", "true": "on", "false": "off"}
_HOST_TOTAL = "host_total_mib"
_MOST_NOTICES = 20
_MOST_REFUSED = 20


@dataclass(frozen=True, slots=True)
class LoggedDevice:
    """A device in the log; `is_used` if the model was placed on it.

    `pci_id` is its address as the runtime prints it, if it does.
    """

    name: str
    description: str
    total_mib: float | None = None
    free_mib: float | None = None
    is_used: bool = False
    pci_id: str | None = None


@dataclass(frozen=True, slots=True)
class LoggedBuffer:
    """All buffers of one kind in one place; `device` is None for the host."""

    kind: BufferKind
    where: Where
    device: str | None
    mib: float


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The facts of one launch.

    Attributes:
        devices: the devices in the runtime's order.
        buffers: the memory that the runtime allocated.
        values: facts by name. Settings have autofit's names (`context`, `ubatch`, ...); names
            that begin with `fit` are results of the fitting before the launch.
        reported: the runtime's memory table at the end, by device name or `Host`.
        refused_mib: the first allocations that failed, without those after which the runtime tried
            again.
        notices: lines that users should see.
    """

    devices: tuple[LoggedDevice, ...] = ()
    buffers: tuple[LoggedBuffer, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    reported: Mapping[str, ReportedMemory] = field(default_factory=dict)
    refused_mib: tuple[float, ...] = ()
    notices: tuple[str, ...] = ()

    def integer(self, name: str) -> int | None:
        """Return a fact that is an integer, or None if the log does not contain it."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    @property
    def used_devices(self) -> tuple[LoggedDevice, ...]:
        """The devices that the model was placed on; all devices if the log does not say."""
        return tuple(d for d in self.devices if d.is_used) or self.devices

    def mib(self, kind: BufferKind | None = None, device: str | None = None) -> float:
        """Return the logged MiB of a kind (None: all kinds) on a device (None: everywhere)."""
        return sum(
            buffer.mib
            for buffer in self.buffers
            if kind in (None, buffer.kind) and device in (None, buffer.device)
        )

    def host_mib(self, kind: BufferKind | None = None) -> float:
        """Return the logged MiB in host memory, pinned or not."""
        return sum(b.mib for b in self.buffers if b.where != "device" and kind in (None, b.kind))

    def free_mib(self, device: LoggedDevice) -> float | None:
        """Return the free memory at the start less all logged buffers of a device."""
        return None if device.free_mib is None else device.free_mib - self.mib(device=device.name)

    @property
    def headroom_mib(self) -> dict[str, float]:
        """The memory left by all logged buffers on each used device.

        The driver's context and pools that grow later are not included: a server can be out of
        memory with several hundred MiB of headroom.
        """
        return {
            device.name: free_mib
            for device in self.used_devices
            if (free_mib := self.free_mib(device)) is not None and self.mib(device=device.name) > 0
        }


class FactReader:
    """A collector of the facts of one launch, from lines that match the dialect's `log.facts`."""

    def __init__(self, types: BufferTypes) -> None:
        self._types = types
        self._devices: dict[str, LoggedDevice] = {}
        self._buffers: dict[tuple[BufferKind, str], float] = {}
        self._values: dict[str, Value] = {}
        self._reported: dict[str, ReportedMemory] = {}
        self._refused_mib: list[float] = []
        self._notices: dict[str, str] = {}
        self._readers: dict[str, Callable[[Mapping[str, str], str], None]] = {
            kind: getattr(self, f"_read_{kind}") for kind in FACT_KINDS
        }

    def read(self, kind: str, groups: Mapping[str, str], text: str) -> None:
        """Read a line of a kind of fact, with the named groups of its pattern."""
        with suppress(ValueError):  # a number of a damaged line, such as `7600.4.5`
            self._readers[kind](groups, text)

    def forget_fitting(self) -> None:
        """Drop the facts about settings that fitting only computed."""
        self._buffers.clear()
        self._values = {
            name: value
            for name, value in self._values.items()
            if name.startswith("fit") or name == _HOST_TOTAL
        }

    def facts(self) -> ServerLog:
        """Return all facts so far."""
        return ServerLog(
            devices=tuple(self._devices.values()),
            buffers=self._locate_buffers(),
            values=dict(self._values),
            reported=dict(self._reported),
            refused_mib=tuple(self._refused_mib),
            notices=tuple(self._notices.values()),
        )

    def _read_device(self, groups: Mapping[str, str], _text: str) -> None:
        name = groups["name"]
        if self._types.host and re.search(self._types.host, name):
            self._values.setdefault(_HOST_TOTAL, float(groups["total_mib"]))
            return
        self._devices[name] = LoggedDevice(
            name, groups["description"], _known(groups["total_mib"]), _known(groups["free_mib"])
        )

    def _read_used_device(self, groups: Mapping[str, str], _text: str) -> None:
        name = groups["name"]
        known = self._devices.get(name) or LoggedDevice(name, groups["description"])
        self._devices[name] = replace(
            known,
            free_mib=_known(groups["free_mib"]),
            is_used=True,
            pci_id=groups.get("pci_id", known.pci_id),
        )

    def _read_buffer(self, groups: Mapping[str, str], _text: str) -> None:
        # Builds of 2024 print no kind for weights.
        key = (_BUFFER_KINDS[groups.get("kind", "model")], groups["name"])
        self._buffers[key] = self._buffers.get(key, 0.0) + float(groups["mib"])

    def _read_memory_row(self, groups: Mapping[str, str], _text: str) -> None:
        def mib(name: str) -> float | None:
            return float(groups[name]) if name in groups else None

        self._reported[groups["name"]] = ReportedMemory(
            model_mib=float(groups["model"]),
            context_mib=float(groups["context"]),
            compute_mib=float(groups["compute"]),
            free_mib=mib("free"),
            unaccounted_mib=mib("unaccounted"),
            total_mib=mib("total"),
        )

    def _read_values(self, groups: Mapping[str, str], _text: str) -> None:
        # The first line with a fact counts: later ones are about a draft model's context. Only
        # `auto` is replaced, by the runtime's decision.
        for name, text in groups.items():
            if self._values.get(name, "auto") == "auto":
                self._values[name] = _convert(text)

    def _read_latest(self, groups: Mapping[str, str], _text: str) -> None:
        self._values.update({name: _convert(text) for name, text in groups.items()})

    def _read_retried(self, _groups: Mapping[str, str], _text: str) -> None:
        self._refused_mib.clear()

    def _read_refused(self, groups: Mapping[str, str], _text: str) -> None:
        if len(self._refused_mib) < _MOST_REFUSED:
            mib = float(groups["mib"]) if "mib" in groups else float(groups["bytes"]) / MIB
            self._refused_mib.append(mib)

    def _read_notice(self, _groups: Mapping[str, str], text: str) -> None:
        if len(self._notices) < _MOST_NOTICES:
            self._notices.setdefault(re.sub(r"\d+", "", text), text)

    def _locate_buffers(self) -> tuple[LoggedBuffer, ...]:
        # All devices are known only at the end.
        devices = {device.name: device.description for device in self._devices.values()}
        located: dict[tuple[BufferKind, Where, str | None], float] = {}
        for (kind, name), mib in self._buffers.items():
            where, device = locate_buffer(name, self._types, devices)
            located[kind, where, device] = located.get((kind, where, device), 0.0) + mib
        return tuple(LoggedBuffer(*place, mib) for place, mib in located.items())


def _known(mib: str) -> float | None:
    """Return the memory of a device; a driver that does not know it reports 0."""
    return float(mib) or None


def _convert(text: str) -> Value:
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if re.fullmatch(r"-?\d+\.\d+", text):
        return float(text)
    return _SWITCH_VALUES.get(text, text)


def locate_buffer(
    name: str, types: BufferTypes, devices: Mapping[str, str]
) -> tuple[Where, str | None]:
    """Return where buffers of this type are, and on which device (None for the host).

    llama.cpp names a type after its device (`CUDA0`), with a suffix for a special kind
    (`MTL0_Mapped`, `CUDA_Split`). `CUDA_Host` is pinned and `CPU...` plain host memory. The type
    of a remote device is `RPC0[host:port]`. Its number counts the devices of one server. The list
    of devices counts those of all servers.

    `devices` are the descriptions by device name, in the runtime's order. The description of a
    remote device is the address of its server.
    """
    if types.pinned and re.search(types.pinned, name):
        return "pinned", None
    if types.host and re.search(types.host, name):
        return "host", None
    remote = re.search(types.remote, name) if types.remote else None
    if remote:
        endpoint, index = remote["endpoint"], int(remote["index"])
        of_server = [device for device, text in devices.items() if text == endpoint]
        return "device", of_server[index] if index < len(of_server) else name
    if name not in devices:
        for device in devices:
            if name.startswith(f"{device}_"):
                return "device", device
    return "device", name


def find_device_by_index(index: str, devices: Mapping[str, str], types: BufferTypes) -> str | None:
    """Return the local device with this number, or None unless there is exactly one."""
    found = [
        name
        for name, description in devices.items()
        if re.fullmatch(rf"[A-Za-z]+{index}", name)
        and not (types.host and re.search(types.host, name))
        and not re.search(r":\d+$", description)
    ]
    return found[0] if len(found) == 1 else None
