"""A small disk that a test can fill, where mounting is allowed."""

from __future__ import annotations

import shutil
import subprocess

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
