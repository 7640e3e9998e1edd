"""Asks the real llama.cpp's no-load estimator, and runs its RPC server as a device."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_ROW = re.compile(r"^(\S+) (\d+) (\d+) (\d+) *$", re.MULTILINE)
_CACHE = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")


@dataclass(frozen=True)
class FitPrint:
    """`--fit-print`: (model, context, compute) MiB by device, rounded down; caches by the log."""

    rows: dict[str, tuple[int, int, int]]
    caches: tuple[tuple[float, int, int], ...]

    @property
    def kv_mib(self) -> float:
        """All attention caches together."""
        return sum(size for size, _, _ in self.caches)


def clean_environment() -> dict[str, str]:
    """The environment without llama.cpp's own variables, and without a debugger on abort."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    return {**kept, "GGML_NO_BACKTRACE": "1"}


def fit_print(folder: Path, model: Path, *arguments: str) -> FitPrint:
    """What `llama-fit-params` says of a model, repacking off so that all weights have a row."""
    argv = [str(folder / "llama-fit-params"), "-m", str(model), "--fit-print", "on"]
    argv += ["--no-repack", "-lv", "5", *arguments]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=clean_environment(), timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
    rows = {name: (int(m), int(c), int(p)) for name, m, c, p in _ROW.findall(done.stdout)}
    caches = [(float(s), int(c), int(n)) for s, c, n in _CACHE.findall(done.stderr)]
    return FitPrint(rows, tuple(caches))


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def rpc_device(folder: Path) -> Iterator[str]:
    """A running RPC server; its `host:port` for `--rpc`."""
    port = free_port()
    argv = [str(folder / "ggml-rpc-server"), "-H", "127.0.0.1", "-p", str(port)]
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
