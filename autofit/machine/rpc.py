"""Memory of remote devices that are not remote: ggml-rpc-server processes on this host.

A remote device with a CPU behind it lives in its server's own memory, so that the process's
size is a counter of it. A server on another host, or one that uses a GPU, has no counter here.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

from autofit.machine.host_memory import HostMemory, ProcessTree
from autofit.machine.memory_watcher import UNKNOWN, Counter

_ENDPOINT = re.compile(r"^(?P<host>\[[0-9A-Fa-f:]+\]|[^\s:]+):(?P<port>\d{1,5})$")
_GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


def split_endpoint(text: str) -> tuple[str, int] | None:
    """Host and port of `host:port` or `[::1]:port`; None when the text is none."""
    match = _ENDPOINT.match(text.strip())
    return (match["host"].strip("[]"), int(match["port"])) if match else None


class RpcSource:
    """Memory of RPC devices whose servers run on this host."""

    def __init__(self, endpoints: Mapping[str, str]) -> None:
        """`endpoints` are `host:port` by the runtime's name of the device.

        Devices that share a server have no counter: its memory cannot be told apart.
        """
        alone = [name for name, end in endpoints.items() if [*endpoints.values()].count(end) == 1]
        self._names = tuple(endpoints)
        self._endpoints = {name: endpoints[name] for name in alone}
        self._servers: dict[str, tuple[psutil.Process, ProcessTree]] = {}
        self._host = HostMemory()

    def read(self) -> dict[str, Counter]:
        """Memory of each server's process, and what this host has left."""
        return {name: self._read_one(name) for name in self._names}

    def _read_one(self, name: str) -> Counter:
        server, tree = self._servers.get(name, (None, None))
        if server is None or tree is None or not server.is_running():
            pid = find_server(self._endpoints.get(name, ""))
            if pid is None or uses_gpu(pid):
                return UNKNOWN
            tree = ProcessTree(pid)
            self._servers[name] = (psutil.Process(pid), tree)
        memory = tree.read()
        if memory is None:
            return UNKNOWN
        return Counter(memory.total_mib, self._host.available_mib())


def find_server(endpoint: str) -> int | None:
    """The process on this host that listens on an endpoint, if it is ours to see."""
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
    """Whether a host name or address means this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host in {"localhost", socket.gethostname()}
    return address.is_loopback or str(address) in {
        found.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for found in addresses
    }


def uses_gpu(pid: int, proc: Path = Path("/proc")) -> bool:
    """Whether a process has a GPU open, as far as we may see."""
    try:
        return any(
            str(path.readlink()).startswith(_GPU_FILES)
            for path in (proc / str(pid) / "fd").iterdir()
        )
    except OSError:
        return False
