"""Memory of RPC servers on this host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autofit.machine.device_source import find_device_source
from autofit.machine.memory_counter import MemoryCounter
from autofit.machine.rpc_servers import RpcMemory, find_rpc_server, is_local, split_endpoint
from autofit.process.managed_process import ManagedProcess
from autofit.trial.device import Device

LISTEN = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
held = bytearray(60 << 20)
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def listener(port: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the endpoint and pid of a process that listens and uses 60 MiB."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", LISTEN, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield f"127.0.0.1:{int(process.stdout.readline())}", process.pid
        process.stdin.close()


def test_memory_of_a_server():
    """A server on this host is found by its port, and its memory is that of the device."""
    with listener() as (endpoint, pid):
        assert find_rpc_server(endpoint) == pid

        source = RpcMemory({"RPC0": endpoint})
        used_mib, free_mib = source.read()["RPC0"]

        assert 60 <= used_mib < 100
        assert free_mib > 0
    assert source.read() == {"RPC0": MemoryCounter(None, None)}


def test_a_restarted_server_is_found_again():
    """A server that was restarted is counted again."""
    with listener() as (endpoint, _):
        source = RpcMemory({"RPC0": endpoint})
        assert source.read()["RPC0"].used_mib >= 60
    assert find_rpc_server(endpoint) is None

    with listener(int(endpoint.rpartition(":")[2])):
        assert source.read()["RPC0"].used_mib >= 60


def test_devices_of_one_server_have_no_counter():
    """Two devices of one server have no counter."""
    with listener() as (endpoint, _):
        source = RpcMemory({"RPC0": endpoint, "RPC1": endpoint})

        assert source.read() == {
            "RPC0": MemoryCounter(None, None),
            "RPC1": MemoryCounter(None, None),
        }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:50052", ("127.0.0.1", 50052)),
        ("gpu-box:50052", ("gpu-box", 50052)),
        ("[::1]:50052", ("::1", 50052)),
        ("NVIDIA GeForce RTX 3060", None),
        ("AMD Radeon: RX 480", None),
    ],
)
def test_endpoints(text: str, expected: tuple[str, int] | None):
    """Only `host:port` is an endpoint."""
    assert split_endpoint(text) == expected


def test_only_this_host_is_local():
    """Loopback addresses and own names are local, others are not."""
    assert is_local("127.0.0.1")
    assert is_local("::1")
    assert is_local("localhost")
    assert not is_local("192.0.2.1")
    assert not is_local("example.org")


@pytest.mark.runtime
def test_memory_of_a_real_rpc_server(tmp_path: Path, llama_cpp: Path):
    """A device that llama.cpp describes by an address has the memory of the local server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [str(llama_cpp / "ggml-rpc-server"), "-p", str(port)]
    with ManagedProcess.start(argv, env=os.environ, log_path=tmp_path / "rpc.log") as process:
        endpoint = f"127.0.0.1:{port}"
        process.wait_ready(lambda: find_rpc_server(endpoint) == process.pid, deadline_s=30)

        source = find_device_source([Device("RPC0", endpoint, 24000, 24000)], env=os.environ)

        assert source.read()["RPC0"].used_mib > 1
