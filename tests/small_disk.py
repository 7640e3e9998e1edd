"""Small disks and read-only folders of one process, where mounting is allowed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest


def _can_mount() -> bool:
    """Return whether this user may mount a file system, as most Linux systems allow."""
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and not subprocess.run(
            [unshare, "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"],
            check=False,
            capture_output=True,
        ).returncode
    )


needs_small_disk = pytest.mark.skipif(
    not _can_mount(), reason="no user namespaces: no small disk can be mounted"
)


def read_only(*folders: Path) -> list[str]:
    """Return the start of a command line for which folders are read-only, also for root."""
    mounts = "".join(
        f"mount --bind {one} {one} && mount -o remount,bind,ro {one} && "
        for one in (shlex.quote(str(folder)) for folder in folders)
    )
    return ["unshare", "-Urm", "sh", "-c", f'{mounts}exec "$@"', "sh"]


def full_disk(folder: Path) -> list[str]:
    """Return the start of a command line for which a folder is a disk without any room."""
    place = shlex.quote(str(folder))
    script = f"mount -t tmpfs -o size=4k none {place} && head -c 4096 /dev/zero > {place}/all"
    return ["unshare", "-Urm", "sh", "-c", f'{script} && exec "$@"', "sh"]
