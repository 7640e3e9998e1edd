"""The processor's cores and governors."""

from __future__ import annotations

import os
from pathlib import Path

from autofit.machine.cgroup import Cgroup
from autofit.machine.cpu import read_cores, slow_governors

ALLOWED = sorted(os.sched_getaffinity(0))


def topology(root: Path, core_of: dict[int, int]) -> None:
    """Add CPUs with their cores."""
    for cpu, core in core_of.items():
        folder = root / "sys/devices/system/cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "core_id").write_text(f"{core}\n")
        (folder / "physical_package_id").write_text("0\n")


def test_this_machine():
    """On this machine each count includes the next smaller one."""
    cores = read_cores()

    assert 1 <= cores.performance <= cores.physical <= cores.usable <= cores.logical


def test_threads_of_a_core_count_once(tmp_path: Path):
    """Hyper-threads are usable CPUs, but one physical core."""
    topology(tmp_path, dict.fromkeys(ALLOWED, 5))

    cores = read_cores(Cgroup(), root=tmp_path)

    assert cores.usable == len(ALLOWED)
    assert (cores.physical, cores.performance) == (1, 1)


def test_unknown_topology_counts_every_cpu(tmp_path: Path):
    """Without a topology each CPU is a core."""
    cores = read_cores(Cgroup(), root=tmp_path)

    assert cores.physical == cores.performance == len(ALLOWED)


def test_efficiency_cores_are_not_performance_cores(tmp_path: Path):
    """Intel's list of performance cores counts, otherwise Arm's capacities."""
    topology(tmp_path, {cpu: cpu for cpu in ALLOWED})
    capacity = tmp_path / "sys/devices/system/cpu" / f"cpu{ALLOWED[0]}" / "cpu_capacity"
    for cpu in ALLOWED[1:]:
        (capacity.parent.parent / f"cpu{cpu}" / "cpu_capacity").write_text("1024\n")
    capacity.write_text("400\n" if len(ALLOWED) > 1 else "1024\n")

    arm = read_cores(Cgroup(), root=tmp_path)
    listed = tmp_path / "sys/devices/cpu_core/cpus"
    listed.parent.mkdir(parents=True)
    listed.write_text(f"{ALLOWED[0]},1000-1003\n")
    intel = read_cores(Cgroup(), root=tmp_path)

    assert arm.performance == max(len(ALLOWED) - 1, 1)
    assert intel.performance == 1
    assert intel.physical == len(ALLOWED)


def test_a_much_lower_clock_marks_efficiency_cores(tmp_path: Path):
    """Without lists and capacities the highest clock of each core counts, if they differ much."""
    topology(tmp_path, {cpu: cpu for cpu in ALLOWED})
    for cpu in ALLOWED:
        clock = tmp_path / "sys/devices/system/cpu" / f"cpu{cpu}" / "cpufreq/cpuinfo_max_freq"
        clock.parent.mkdir()
        clock.write_text("5600000\n")
    slow = tmp_path / "sys/devices/system/cpu" / f"cpu{ALLOWED[0]}" / "cpufreq/cpuinfo_max_freq"
    slow.write_text("5300000\n")

    nearly_equal = read_cores(Cgroup(), root=tmp_path)
    slow.write_text("3300000\n" if len(ALLOWED) > 1 else "5600000\n")
    hybrid = read_cores(Cgroup(), root=tmp_path)

    assert nearly_equal.performance == len(ALLOWED)
    assert hybrid.performance == max(len(ALLOWED) - 1, 1)


def test_memory_nodes_with_usable_cpus_count(tmp_path: Path):
    """A node whose CPUs this process may not use does not count."""
    for node, cpus in enumerate((f"{ALLOWED[0]}", "1000-1003", f"{ALLOWED[-1]},2000")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpus + "\n")

    assert read_cores(Cgroup(), root=tmp_path).nodes == 2
    assert read_cores(Cgroup(), root=tmp_path / "nowhere").nodes == 1


def test_the_quota_of_a_container_limits_the_cores(tmp_path: Path):
    """A quota of CPU time limits the cores, to at least one."""
    (tmp_path / "cpu.max").write_text("50000 100000\n")

    cores = read_cores(Cgroup(cpu_folders=(tmp_path,)))

    assert (cores.usable, cores.physical, cores.performance) == (1, 1, 1)


def test_slow_governors(tmp_path):
    """Each governor except `performance` is returned once; unreadable ones are ignored."""
    for number, text in enumerate(["performance", "powersave", "powersave", "schedutil"]):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(text + "\n")
    (tmp_path / "sys/devices/system/cpu/cpu9/cpufreq/scaling_governor").mkdir(parents=True)

    assert slow_governors(tmp_path) == ("powersave", "schedutil")
    assert slow_governors(tmp_path / "nowhere") == ()
