"""What the system allows a process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autofit.machine.system_limits import closed_files, locked_memory_mib, slow_governors

ASK = """
import resource, sys
from pathlib import Path
from autofit.machine.system_limits import locked_memory_mib
resource.setrlimit(resource.RLIMIT_MEMLOCK, (int(sys.argv[1]),) * 2)
print(locked_memory_mib(Path(sys.argv[2])))
"""
NO_LIMIT = -1


def _status(root, capabilities):
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities:016x}\n")


@pytest.mark.parametrize(
    ("capabilities", "told"),
    [(0, "4.0"), (1 << 14, "None"), ((1 << 40) - 1 - (1 << 14), "4.0"), (None, "4.0")],
)
def test_locked_memory_is_limited_without_the_right(tmp_path, capabilities, told):
    """RLIMIT_MEMLOCK counts unless the process may lock what it likes (CAP_IPC_LOCK)."""
    if capabilities is not None:
        _status(tmp_path, capabilities)
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(4 << 20), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )

    assert done.stdout.strip() == told


def test_this_process_is_asked():
    """On this machine there is a limit of some size, or none."""
    limit = locked_memory_mib()

    assert limit is None or limit >= 0


def test_governors_are_told_once(tmp_path):
    """All governors but `performance` are listed; unreadable ones are passed over."""
    for number, text in enumerate(["performance", "powersave", "powersave", "schedutil"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(text + "\n")
    (tmp_path / "sys/devices/system/cpu/cpu9/cpufreq/scaling_governor").mkdir(parents=True)

    assert slow_governors(tmp_path) == ("powersave", "schedutil")
    assert slow_governors(tmp_path / "nowhere") == ()


def test_closed_device_files_are_found(tmp_path):
    """A device file that may not be opened is told; an open or missing one is not."""
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    # A link to nothing may not be opened by anyone, root included.
    (tmp_path / "dev/kfd").symlink_to("gone")

    assert closed_files(["/dev/dri/renderD*", "/dev/none"], tmp_path) == ()
    found = closed_files(["/dev/kf?", "/dev/dri/renderD*"], tmp_path)
    assert [os.path.relpath(path, tmp_path) for path in found] == ["dev/kfd"]
