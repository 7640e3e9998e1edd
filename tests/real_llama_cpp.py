"""Asks the real llama.cpp's no-load estimator, and runs its RPC server as a device."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)
_CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \(")
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_COLUMNS = {"model": 0, "KV": 1, "RS": 1, "compute": 2}
_REMOTE = re.compile(r"RPC\d+\[(.+)\]")


@dataclass(frozen=True)
class FitPrint:
    """`--fit-print`: (model, context, compute) MiB by device, rounded down; caches by the log."""

    rows: dict[str, tuple[int, int, int]]
    kv_mib: float


def caches_mib(log: str) -> float:
    """Return the sum of all attention caches in a log, in MiB."""
    return sum(float(size) for size in _CACHE.findall(log))


def clean_environment() -> dict[str, str]:
    """The environment without llama.cpp's own variables, and without a debugger on abort."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    return {**kept, "GGML_NO_BACKTRACE": "1"}


def fit_print(folder: Path, model: Path, *arguments: str) -> FitPrint:
    """Return the table of `llama-fit-params`, without repacking so that all weights have a row."""
    argv = [str(folder / "llama-fit-params"), "-m", str(model), "--fit-print", "on"]
    argv += ["--no-repack", "-lv", "5", *arguments]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=clean_environment(), timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    rows = {name: (int(m), int(c), int(p)) for name, m, c, p in _ROW.findall(done.stdout)}
    return FitPrint(rows, caches_mib(done.stderr))


def server_log(folder: Path, model: Path, log_path: Path, *arguments: str) -> str:
    """The log of a server from its start until the model is loaded; then it is killed."""
    argv = [str(folder / "llama-server"), "-m", str(model), "--port", str(free_port())]
    argv += ["--no-warmup", "--no-repack", "-lv", "4", *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(argv, env=clean_environment(), stdout=log, stderr=log)
    try:
        for _ in range(600):
            text = log_path.read_text(errors="replace")
            if "model loaded" in text:  # a remote device may fail if its client ends earlier
                return text
            assert process.poll() is None, text[-1000:]
            time.sleep(0.05)
        raise AssertionError(text[-1000:])
    finally:
        process.kill()
        process.wait(10)


def buffers_mib(log: str, addresses: Sequence[str]) -> dict[str, list[float]]:
    """Return weights, cache and compute buffer by device, `RPC0` first, and of the `Host`."""
    rows: dict[str, list[float]] = {}
    for name, kind, size in _BUFFER.findall(log):
        remote = _REMOTE.fullmatch(name)
        device = f"RPC{addresses.index(remote[1])}" if remote else "Host"
        row = rows.setdefault(device, [0.0, 0.0, 0.0])
        row[_COLUMNS[kind]] += float(size)
    return rows


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def rpc_device(folder: Path, limit_mib: int | None = None) -> Iterator[str]:
    """A running RPC server; its `host:port` for `--rpc`.

    With a limit, the server's process cannot have more memory than that.
    """
    port = free_port()
    argv = [str(folder / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port)]
    if limit_mib is not None:
        argv = ["sh", "-c", f'ulimit -v {limit_mib * 1024}; exec "$0" "$@"', *argv]
    process = subprocess.Popen(
        argv, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)
