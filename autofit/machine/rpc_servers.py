"""RPC servers on this host, whose process memory is the memory counter of a remote device.

A remote CPU device uses the memory of its server's process. A server on another host, or one that
uses a GPU, has no counter here.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from autofit.machine.cgroup import Cgroup
from autofit.machine.memory_counter import UNKNOWN, MemoryCounter
from autofit.machine.process_memory import ProcessTree

_ENDPOINT = re.compile(r"^(?P<host>\[[0-9A-Fa-f:]+\]|[^\s:]+):(?P<port>\d{1,5})$")
_GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


class RpcMemory:
    """A source of memory counters of RPC devices, for servers on this host."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        """Watch the servers at `endpoints`, which maps the runtime's device names to `host:port`.

        Devices that share a server have no counter, because its memory cannot be divided.
        """
        shared = [*endpoints.values()]
        self._names = tuple(endpoints)
        self._endpoints = {name: end for name, end in endpoints.items() if shared.count(end) == 1}
        self._servers: dict[str, tuple[psutil.Process, ProcessTree]] = {}
        self._cgroup = Cgroup.find()

    def read(self) -> dict[str, MemoryCounter]:
        """Return the memory of each server's process, and what this host has left."""
        return {name: self._read_one(name) for name in self._names}

    def _read_one(self, name: str) -> MemoryCounter:
        server, tree = self._servers.get(name, (None, None))
        if server is None or tree is None or not server.is_running():
            pid = find_rpc_server(self._endpoints.get(name, ""))
            if pid is None or uses_gpu(pid):
                return UNKNOWN
            tree = ProcessTree(pid)
            self._servers[name] = (psutil.Process(pid), tree)
        memory = tree.read()
        if memory is None:
            return UNKNOWN
        return MemoryCounter(memory.total_mib, self._cgroup.available_mib())


def split_endpoint(text: str) -> tuple[str, int] | None:
    """Return host and port of `host:port` or `[::1]:port`, or None for any other text."""
    match = _ENDPOINT.match(text.strip())
    return (match["host"].strip("[]"), int(match["port"])) if match else None


def find_rpc_server(endpoint: str) -> int | None:
    """Return the process on this host that listens on an endpoint, or None if none is visible."""
    parts = split_endpoint(endpoint)
    if parts is None or not is_local(parts[0]):
        return None
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:
        return None
    for connection in connections:
        if (
            connection.status == psutil.CONN_LISTEN
            and connection.laddr
            and connection.laddr.port == parts[1]
        ):
            return connection.pid
    return None


def is_local(host: str) -> bool:
    """Return whether a host name or address is this machine's."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in {"localhost", socket.gethostname()}
    return address.is_loopback or str(address) in {
        found.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for found in addresses
    }


def uses_gpu(pid: int) -> bool:
    """Return whether a process has a GPU open, as far as we may see."""
    try:
        return any(
            str(path.readlink()).startswith(_GPU_FILES)
            for path in Path(f"/proc/{pid}/fd").iterdir()
        )
    except OSError:
        return False
