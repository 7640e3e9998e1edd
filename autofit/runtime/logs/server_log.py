"""What a server's log tells about the launch: devices, settings, memory, timings.

Read in one pass and in bounded memory by a `FactReader`, which is fed the lines that match
the dialect's `log.facts`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from autofit.runtime.dialect.log_patterns import BufferTypes
from autofit.trial.measurement import ReportedMemory
from autofit.trial.outcome import Where
from autofit.units import MIB

BufferKind = Literal["weights", "kv", "recurrent", "compute", "output", "cache"]
FactKind = Literal[
    "device",
    "used_device",
    "missing_device",
    "buffer",
    "memory_row",
    "prompt_timing",
    "generate_timing",
    "values",
    "refused",
    "notice",
]
FACT_KINDS: tuple[FactKind, ...] = get_args(FactKind)
Value = int | float | str

_BUFFER_KINDS: dict[str, BufferKind] = {
    "model": "weights",
    "KV": "kv",
    "RS": "recurrent",
    "compute": "compute",
    "output": "output",
    "MoE cache": "cache",
    "expert cache": "cache",
}
# The runtime's words for what autofit's settings call on and off.
_WORDS = {"enabled": "on", "disabled": "off", "true": "on", "false": "off"}
_HOST_TOTAL = "host_total_mib"
_MOST_TIMINGS = 256
_MOST_NOTICES = 20
_MOST_REFUSED = 20


@dataclass(frozen=True, slots=True)
class LoggedDevice:
    """A device as the log names it; `is_used` when the model was given to it.

    `pci_id` is its address as the runtime writes it, None where it tells none.
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
class SlotTiming:
    """One answered request; `predicted_s` is for all but the first token."""

    prompt_tokens: int
    prompt_s: float
    predicted_tokens: int = 0
    predicted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerLog:
    """The facts of one launch.

    `values` are named facts, settings by autofit's name for them (`context`, `ubatch`, ...),
    those that begin with `fit` of the fitting before the launch;
    `reported` is the runtime's own memory table at the end, by device name or `Host`;
    `timings` are the latest, `answered` counts all; `refused_mib` are allocations that were
    refused, the first ones.
    """

    devices: tuple[LoggedDevice, ...] = ()
    missing_devices: tuple[str, ...] = ()
    buffers: tuple[LoggedBuffer, ...] = ()
    values: Mapping[str, Value] = field(default_factory=dict)
    reported: Mapping[str, ReportedMemory] = field(default_factory=dict)
    timings: tuple[SlotTiming, ...] = ()
    answered: int = 0
    refused_mib: tuple[float, ...] = ()
    notices: tuple[str, ...] = ()

    def integer(self, name: str) -> int | None:
        """A fact that is a whole number, None where the log does not tell it."""
        value = self.values.get(name)
        return value if isinstance(value, int) else None

    @property
    def is_pipelined(self) -> bool | None:
        """Whether pipeline parallelism is on; None where the log does not tell."""
        copies = self.integer("sched_copies")
        return None if copies is None else copies > 1

    @property
    def used_devices(self) -> tuple[LoggedDevice, ...]:
        """The devices the model was given to; all, where the log does not tell."""
        return tuple(d for d in self.devices if d.is_used) or self.devices

    def mib(self, kind: BufferKind | None = None, device: str | None = None) -> float:
        """Logged MiB of a kind (all when None) on a device (everywhere when None)."""
        return sum(
            buffer.mib
            for buffer in self.buffers
            if kind in (None, buffer.kind) and device in (None, buffer.device)
        )

    def host_mib(self, kind: BufferKind | None = None) -> float:
        """Logged MiB in host memory, pinned or not."""
        return sum(b.mib for b in self.buffers if b.where != "device" and kind in (None, b.kind))

    @property
    def headroom_mib(self) -> dict[str, float]:
        """Free memory at the start less all logged buffers, for each used device.

        The driver's context and pools that grow later are not in it: a server with some
        hundred MiB of headroom can be out of memory.
        """
        return {
            device.name: device.free_mib - self.mib(device=device.name)
            for device in self.used_devices
            if device.free_mib is not None and self.mib(device=device.name) > 0
        }


class FactReader:
    """Gathers the facts of one launch from matched lines."""

    def __init__(self, types: BufferTypes) -> None:
        self._types = types
        self._devices: dict[str, LoggedDevice] = {}
        self._missing: list[str] = []
        self._buffers: dict[tuple[BufferKind, str], float] = {}
        self._values: dict[str, Value] = {}
        self._reported: dict[str, ReportedMemory] = {}
        self._timings: deque[SlotTiming] = deque(maxlen=_MOST_TIMINGS)
        self._answered = 0
        self._refused_mib: list[float] = []
        self._notices: dict[str, str] = {}
        self._readers: dict[FactKind, Callable[[Mapping[str, str], str], None]] = {
            "device": self._read_device,
            "used_device": self._read_used_device,
            "missing_device": self._read_missing_device,
            "buffer": self._read_buffer,
            "memory_row": self._read_memory_row,
            "prompt_timing": self._read_prompt_timing,
            "generate_timing": self._read_generate_timing,
            "values": self._read_values,
            "refused": self._read_refused,
            "notice": self._read_notice,
        }

    @property
    def descriptions(self) -> dict[str, str]:
        """The devices' descriptions by name, in the runtime's order."""
        return {device.name: device.description for device in self._devices.values()}

    def read(self, kind: FactKind, groups: Mapping[str, str], text: str) -> None:
        """Take in one line."""
        self._readers[kind](groups, text)

    def forget_fitting(self) -> None:
        """Drop what was told of launches that were only tried on paper."""
        self._buffers.clear()
        self._values = {
            name: value
            for name, value in self._values.items()
            if name.startswith("fit") or name == _HOST_TOTAL
        }

    def facts(self) -> ServerLog:
        """All that was told so far."""
        return ServerLog(
            devices=tuple(self._devices.values()),
            missing_devices=tuple(self._missing),
            buffers=self._placed_buffers(),
            values=dict(self._values),
            reported=dict(self._reported),
            timings=tuple(self._timings),
            answered=self._answered,
            refused_mib=tuple(self._refused_mib),
            notices=tuple(self._notices.values()),
        )

    def _read_device(self, groups: Mapping[str, str], _text: str) -> None:
        name = groups["name"]
        if self._types.host and re.search(self._types.host, name):
            self._values.setdefault(_HOST_TOTAL, float(groups["total_mib"]))
            return
        self._devices[name] = LoggedDevice(
            name, groups["description"], float(groups["total_mib"]), float(groups["free_mib"])
        )

    def _read_used_device(self, groups: Mapping[str, str], _text: str) -> None:
        name = groups["name"]
        known = self._devices.get(name) or LoggedDevice(name, groups["description"])
        self._devices[name] = replace(
            known,
            free_mib=float(groups["free_mib"]),
            is_used=True,
            pci_id=groups.get("pci_id", known.pci_id),
        )

    def _read_missing_device(self, groups: Mapping[str, str], _text: str) -> None:
        if groups["endpoint"] not in self._missing:
            self._missing.append(groups["endpoint"])

    def _read_buffer(self, groups: Mapping[str, str], _text: str) -> None:
        # Builds of 2024 leave out the word for weights.
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

    def _read_prompt_timing(self, groups: Mapping[str, str], _text: str) -> None:
        self._answered += 1
        self._timings.append(
            SlotTiming(int(groups["prompt_tokens"]), float(groups["prompt_ms"]) / 1000)
        )

    def _read_generate_timing(self, groups: Mapping[str, str], _text: str) -> None:
        if self._timings:
            self._timings[-1] = replace(
                self._timings[-1],
                predicted_tokens=int(groups["predicted_tokens"]),
                predicted_s=float(groups["predicted_ms"]) / 1000,
            )

    def _read_values(self, groups: Mapping[str, str], _text: str) -> None:
        # The first line that tells wins: later ones are of a draft model's context. What is
        # still to be decided by the runtime is replaced by its decision.
        for name, told in groups.items():
            if self._values.get(name, "auto") == "auto":
                self._values[name] = _value(told)

    def _read_refused(self, groups: Mapping[str, str], _text: str) -> None:
        if len(self._refused_mib) < _MOST_REFUSED:
            mib = float(groups["mib"]) if "mib" in groups else float(groups["bytes"]) / MIB
            self._refused_mib.append(mib)

    def _read_notice(self, _groups: Mapping[str, str], text: str) -> None:
        if len(self._notices) < _MOST_NOTICES:
            self._notices.setdefault(re.sub(r"\d+", "", text), text)

    def _placed_buffers(self) -> tuple[LoggedBuffer, ...]:
        # Placed at the end, when all devices are known.
        placed: dict[tuple[BufferKind, Where, str | None], float] = {}
        for (kind, name), mib in self._buffers.items():
            where, device = locate_buffer(name, self._types, self.descriptions)
            placed[kind, where, device] = placed.get((kind, where, device), 0.0) + mib
        return tuple(LoggedBuffer(*place, mib) for place, mib in placed.items())


def _value(told: str) -> Value:
    if re.fullmatch(r"-?\d+", told):
        return int(told)
    if re.fullmatch(r"-?\d+\.\d+", told):
        return float(told)
    return _WORDS.get(told, told)


def locate_buffer(
    name: str, types: BufferTypes, devices: Mapping[str, str]
) -> tuple[Where, str | None]:
    """Where a buffer of this type lies and on which device, None for the host.

    `devices` are the descriptions by device name, in the runtime's order; a remote device's
    description is its server's address.
    """
    if types.pinned and re.search(types.pinned, name):
        return "pinned", None
    if types.host and re.search(types.host, name):
        return "host", None
    remote = re.search(types.remote, name) if types.remote else None
    if remote:
        return "device", _remote_device(int(remote["index"]), remote["endpoint"], devices) or name
    if name not in devices:
        for device in devices:
            if name.startswith(f"{device}_"):
                return "device", device
    return "device", name


def find_device_by_index(index: str, devices: Mapping[str, str], types: BufferTypes) -> str | None:
    """The local device of this number, None unless there is exactly one."""
    addresses = re.compile(r":\d+$")
    found = [
        name
        for name, description in devices.items()
        if re.fullmatch(rf"[A-Za-z]+{index}", name)
        and not (types.host and re.search(types.host, name))
        and not addresses.search(description)
    ]
    return found[0] if len(found) == 1 else None


def _remote_device(index: int, endpoint: str, devices: Mapping[str, str]) -> str | None:
    of_server = [name for name, description in devices.items() if description == endpoint]
    return of_server[index] if index < len(of_server) else None
