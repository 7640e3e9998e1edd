"""Control groups of both versions, on hosts and in containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.machine.cgroup import Cgroup, CgroupMemory

V2_MOUNT = "31 23 0:28 {inside} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "35 31 0:32 {inside} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 31 0:29 {inside} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def system(root: Path, groups: str, mounts: str, files: dict[str, str]) -> Cgroup:
    """Return the control groups of a system with these files."""
    texts = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Cgroup.find(root=root)


def v2_files(folder: str, limit: str, used: int) -> dict[str, str]:
    """Return a group's memory files with sizes in MiB, 10 MiB of them page cache."""
    return {
        f"{folder}/memory.max": limit + "\n",
        f"{folder}/memory.current": f"{used << 20}\n",
        f"{folder}/memory.stat": f"anon 5\nactive_file {4 << 20}\ninactive_file {6 << 20}\n",
        f"{folder}/memory.events": "low 0\noom 4\noom_kill 3\noom_group_kill 0\n",
    }


def test_version_2(tmp_path: Path):
    """The tighter limit of an outer group counts."""
    group = system(
        tmp_path,
        "0::/user.slice/app.scope\n",
        V2_MOUNT.format(inside="/"),
        {
            **v2_files("sys/fs/cgroup/user.slice/app.scope", "max", 60),
            **v2_files("sys/fs/cgroup/user.slice", str(100 << 20), 80),
            "sys/fs/cgroup/user.slice/app.scope/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/user.slice/cpu.max": "max 100000\n",
        },
    )

    assert group.memory() == CgroupMemory(100, 80, 10)
    assert group.memory().free_mib == 30
    assert group.cpu_limit() == 1.5
    assert group.oom_kills() == 3


def test_version_1(tmp_path: Path):
    """Each controller of version 1 has its own hierarchy; a huge number means no limit."""
    memory = "sys/fs/cgroup/memory/docker/abc"
    group = system(
        tmp_path,
        "9:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
        V1_MOUNTS.format(inside="/"),
        {
            f"{memory}/memory.limit_in_bytes": f"{50 << 20}\n",
            f"{memory}/memory.usage_in_bytes": f"{45 << 20}\n",
            f"{memory}/memory.stat": "total_active_file 1048576\ntotal_inactive_file 0\n",
            f"{memory}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        },
    )

    assert group.memory() == CgroupMemory(50, 45, 1)
    assert group.memory().free_mib == 6
    assert group.cpu_limit() is None
    assert group.oom_kills() == 2


@pytest.mark.parametrize(
    ("path", "inside"), [("/", "/"), ("/docker/abc", "/docker/abc"), ("/../x", "/docker/abc")]
)
def test_a_container_has_its_own_group(tmp_path: Path, path: str, inside: str):
    """Inside a container the mount starts at the container's group, for any of its names."""
    group = system(
        tmp_path,
        f"0::{path}\n",
        V2_MOUNT.format(inside=inside),
        v2_files("sys/fs/cgroup", str(64 << 20), 60),
    )

    assert group.memory().limit_mib == 64
    assert group.memory().free_mib == 14


@pytest.mark.parametrize("name", ["x" * 5000, "..", "", "\\x00"])
def test_a_group_with_an_odd_name_has_no_limit(name, tmp_path: Path):
    """A name that the system cannot have, as of a damaged file, is no group."""
    group = system(tmp_path, f"0::/{name}\n", V2_MOUNT.format(inside="/"), {})

    assert group.memory() is None or group.memory().limit_mib is None
    assert group.cpu_limit() is None
    assert group.oom_kills() is None


def test_no_limit_and_no_counter_are_none(tmp_path: Path):
    """Without control groups there are no limits, and kills of the whole machine count."""
    group = system(tmp_path, "", "", {"proc/vmstat": "nr_free_pages 5\noom_kill 7\n"})

    assert group.memory() == CgroupMemory(None, None, None)
    assert group.memory().free_mib is None
    assert group.cpu_limit() is None
    assert group.oom_kills() == 7
    (tmp_path / "proc/vmstat").unlink()
    assert group.oom_kills() is None


def test_this_system_can_be_read():
    """The control groups of this system are read without an error."""
    group = Cgroup.find()

    assert (group.cpu_limit() or 1) > 0
    assert (group.memory().used_mib or 1) > 0


def test_available_memory(tmp_path: Path):
    """The available memory is limited by the control group."""
    (tmp_path / "memory.max").write_text(f"{100 << 20}\n")
    (tmp_path / "memory.current").write_text(f"{70 << 20}\n")

    assert Cgroup((tmp_path,)).available_mib() == 30
    assert Cgroup().available_mib() > 30
