"""Memory of Intel GPUs from what processes hold."""

from __future__ import annotations

from pathlib import Path

from autofit.machine.fdinfo import FdinfoSource
from autofit.machine.memory_watcher import Counter

XE = """pos:\t0
drm-driver:\txe
drm-client-id:\t{client}
drm-pdev:\t{pci_id}
drm-total-vram0:\t9999 KiB
drm-resident-vram0:\t{kib} KiB
drm-resident-gtt:\t4096 KiB
"""


def descriptor(root: Path, pid: int, number: int, text: str, target: str) -> None:
    """A process's open file."""
    for name in ("fd", "fdinfo"):
        (root / "proc" / str(pid) / name).mkdir(parents=True, exist_ok=True)
    (root / "proc" / str(pid) / "fd" / str(number)).symlink_to(target)
    (root / "proc" / str(pid) / "fdinfo" / str(number)).write_text(text)


def test_clients_are_counted_once(tmp_path: Path):
    """Descriptors of one client are one use; clients of several processes add up."""
    first = XE.format(client=7, pci_id="0000:03:00.0", kib=2048)
    second = XE.format(client=8, pci_id="0000:03:00.0", kib=1024)
    other = XE.format(client=9, pci_id="0000:04:00.0", kib=512)
    descriptor(tmp_path, 1, 3, first, "/dev/dri/renderD128")
    descriptor(tmp_path, 1, 4, first, "/dev/dri/renderD128")
    descriptor(tmp_path, 1, 5, first, "/etc/passwd")
    descriptor(tmp_path, 2, 3, second, "/dev/dri/renderD128")
    descriptor(tmp_path, 2, 4, other, "/dev/dri/renderD129")

    source = FdinfoSource(
        {"SYCL0": "0000:03:00.0", "SYCL1": "0000:04:00.0", "SYCL2": "0000:05:00.0"},
        pids=lambda: [1, 2, 99],
        root=tmp_path,
    )

    assert source.read() == {
        "SYCL0": Counter(3, None),
        "SYCL1": Counter(0.5, None),
        "SYCL2": Counter(None, None),
    }


def test_own_offspring_is_looked_at():
    """By default the processes that we started are looked at, without an error."""
    assert FdinfoSource({"SYCL0": "0000:03:00.0"}).read() == {"SYCL0": Counter(None, None)}
