"""The machine that an entry of a suite needs."""

from __future__ import annotations

import platform
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated

import psutil
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from autofit.errors import UsageError
from autofit.machine.cpu import read_cores
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.session.task_options import parse_mib
from autofit.trial.device import Device
from autofit.units import MIB

# Firmware and kernel keep a part of the memory that a machine was bought with.
_MEMORY_SHARE = 0.9


def _check_size(text: str) -> str:
    try:
        parse_mib(text, "", 65536)
    except UsageError as error:
        raise ValueError(error.message) from error
    return text


Size = Annotated[str, AfterValidator(_check_size)]


class Needs(BaseModel):
    """The abilities of a machine that can measure an entry."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    host: str | None = None
    """Its host name; may contain * and ?."""
    devices: int | None = Field(default=None, ge=1, le=1000)
    """At least this number of devices, as the entry's runtime lists them."""
    device: str | None = Field(default=None, min_length=1)
    """A part of the description of these devices: RTX 3090."""
    device_memory: Size | None = None
    """At least this memory on each of these devices: 24GiB."""
    memory: Size | None = None
    """At least this memory of the host: 128GiB."""
    cores: int | None = Field(default=None, ge=1, le=100_000)
    """At least this number of processor cores."""

    def find_unmet(self, runtime: str | None, dialect: str | None, rpc: str) -> str:
        """Return the need that this machine does not meet, or an empty text.

        The devices are those of the given runtime.
        """
        host = platform.node()
        if self.host and not fnmatchcase(host.lower(), self.host.lower()):
            return f"it needs the host {self.host}, and this one is {host}"
        cores = read_cores().physical
        if self.cores and cores < self.cores:
            return f"it needs {self.cores} cores, and this machine has {cores}"
        memory_mib = psutil.virtual_memory().total / MIB
        if self.memory and memory_mib < _MEMORY_SHARE * parse_mib(self.memory, "", 65536):
            return f"it needs {self.memory} of memory, and this machine has {memory_mib:,.0f} MiB"
        if self.devices is None and self.device is None and self.device_memory is None:
            return ""
        try:
            present = _devices(runtime, dialect, rpc)
        except UsageError as error:
            return error.message
        least_mib = parse_mib(self.device_memory, "", 65536) if self.device_memory else 0.0
        found = [
            device
            for device in present
            if (self.device or "").lower() in device.description.lower()
            and device.total_mib >= _MEMORY_SHARE * least_mib
        ]
        count = self.devices or 1
        if len(found) >= count:
            return ""
        kind = " ".join(text for text in (self.device, self.device_memory) if text)
        text = f"devices of {kind}" if kind else "devices"
        return f"it needs {count} {text}, and this machine has {len(found)}"


@cache
def _devices(runtime: str | None, dialect: str | None, rpc: str) -> tuple[Device, ...]:
    return list_devices(find_runtime(runtime, dialect), rpc) or ()
