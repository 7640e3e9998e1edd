"""Memory of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autofit.machine.process_memory import ProcessTree, locked_memory_mib

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
    """Yield a process that uses some memory of a kind."""
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
def test_kinds_of_memory(tmp_path: Path, kind: str, field: str):
    """Allocated, mapped and shared memory count separately, with those of descendants."""
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


def test_a_dead_process_has_no_memory(tmp_path: Path):
    """The memory of a dead process is None and not 0."""
    with holder("anonymous", tmp_path, 1) as pid:
        tree = ProcessTree(pid)
        assert tree.read() is not None

    assert tree.read() is None


def test_without_proc_the_resident_size_counts(tmp_path: Path):
    """On systems without /proc only the resident size is known."""
    memory = ProcessTree(os.getpid(), proc=tmp_path / "none").read()

    assert memory.total_mib == pytest.approx(
        psutil.Process().memory_info().rss / (1 << 20), rel=0.2
    )
    assert memory.major_faults is None


ASK = """
import resource, sys
from pathlib import Path
from autofit.machine.process_memory import locked_memory_mib
resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[1]),) * 2)
print(locked_memory_mib(Path(sys.argv[2])))
"""
NO_LIMIT = -1


def _status(root, capabilities):
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")


@pytest.mark.parametrize(
    ("capabilities", "printed"),
    [(0, "4.0"), (1 << 14, "None"), ((1 << 40) - 1 - (1 << 14), "4.0"), (None, "4.0")],
)
def test_locked_memory_limit(tmp_path, capabilities, printed):
    """RLIMIT_MEMLOCK counts unless the process has CAP_IPC_LOCK."""
    if capabilities is not None:
        _status(tmp_path, capabilities)
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(4 << 20), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert done.stdout.strip() == printed


def test_locked_memory_limit_of_this_process():
    """This process has a limit of some size, or none."""
    limit = locked_memory_mib()

    assert limit is None or limit >= 0
