"""Where a buffer lies, told by the runtime's name of its type.

llama.cpp names a type after its device (`CUDA0`), with a suffix for a special kind
(`MTL0_Mapped`, `CUDA_Split`), `CUDA_Host` for pinned host memory, `CPU...` for plain host
memory. A remote device's type is `RPC0[host:port]`, where the number counts the devices of
that server alone, while the device list counts over all servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from autofit.runtime.dialect.log_pattern import BufferTypes
from autofit.trial.outcome import Where


def place_of(
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


def device_with_index(index: str, devices: Mapping[str, str], types: BufferTypes) -> str | None:
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
