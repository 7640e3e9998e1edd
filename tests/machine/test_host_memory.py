"""Memory of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autofit.machine.cgroup import Cgroup
from autofit.machine.host_memory import HostMemory, ProcessTree

HOLD = """
import mmap, os, sys
kind, path, mib = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "fork" and os.fork() != 0:
    os.wait()
if kind in {"anonymous", "fork"}:
    held = bytearray(os.urandom(4096) * 256 * mib)
elif kind == "shared":
    held = mmap.mmap(-1, mib << 20)
    for page in range(0, mib << 20, 4096):
        held[page] = 1
else:
    held = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ)
    sum(held[page] for page in range(0, mib << 20, 4096))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(kind: str, path: Path, mib: int) -> Iterator[int]:
    """A process that holds so much memory of a kind."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, kind, str(path), str(mib)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("anonymous", "anonymous_mib"),
        ("fork", "anonymous_mib"),
        ("file", "file_mib"),
        ("shared", "shared_mib"),
    ],
)
def test_kinds_are_told_apart(tmp_path: Path, kind: str, field: str):
    """Allocated, mapped and shared memory are counted each as what it is, offspring included."""
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1 << 20) * 40)
    with holder(kind, path, 40) as pid:
        memory = ProcessTree(pid).read()

    sizes = {name: getattr(memory, name) for name in ("anonymous_mib", "file_mib", "shared_mib")}
    assert 40 <= sizes.pop(field) < 80
    assert all(size < 30 for size in sizes.values())
    assert memory.total_mib == pytest.approx(
        memory.anonymous_mib + memory.file_mib + memory.shared_mib
    )
    assert memory.major_faults >= 0


def test_dead_process_has_no_memory(tmp_path: Path):
    """A process that is gone has no memory, which is not 0."""
    with holder("anonymous", tmp_path, 1) as pid:
        tree = ProcessTree(pid)
        assert tree.read() is not None

    assert tree.read() is None


def test_without_proc_the_sum_is_known(tmp_path: Path):
    """On systems without /proc the resident size still counts."""
    memory = ProcessTree(os.getpid(), proc=tmp_path / "none").read()

    assert memory.total_mib == pytest.approx(
        psutil.Process().memory_info().rss / (1 << 20), rel=0.2
    )
    assert memory.major_faults is None


def test_limit_of_a_container_counts(tmp_path: Path):
    """The host has no more left than the control group allows."""
    (tmp_path / "memory.max").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{70 << 20}\n")

    assert HostMemory(Cgroup((tmp_path,))).available_mib() == 30
    assert HostMemory(Cgroup()).available_mib() > 30
