"""What about the host spoils measurements or takes memory away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autofit.doctor.finding import Finding
from autofit.machine.host_load import BUSY_CORES, BUSY_SHARE, STEAL_SHARE, HostState
from autofit.machine.system_limits import locked_memory_mib, slow_governors

# Some pages of long-sleeping programs always lie in swap.
_USUAL_SWAP_SHARE = 0.01


def check_host(state: HostState, root: Path = Path("/")) -> Iterator[Finding]:
    """Findings on processors and memory, the graver ones first."""
    yield from _load(state)
    yield from _memory(state)
    yield from _limits(state, root)


def _load(state: HostState) -> Iterator[Finding]:
    logical = state.cores.logical
    if state.others_cores > max(BUSY_CORES, BUSY_SHARE * logical):
        yield Finding(
            "warning",
            "busy_host",
            f"other processes keep {state.others_cores:.1f} of {logical} cores busy: "
            "measurements will scatter",
            "top -o %CPU    # shows which; stop what is not needed while a tune runs",
        )
    if state.steal_share > STEAL_SHARE:
        yield Finding(
            "warning",
            "cpu_steal",
            f"the hypervisor gives {state.steal_share:.0%} of the CPU time to others",
            "tune at a quieter time, or on a machine whose cores are not shared",
        )


def _memory(state: HostState) -> Iterator[Finding]:
    if state.swap_used_mib > _USUAL_SWAP_SHARE * state.memory_total_mib:
        yield Finding(
            "warning",
            "swap_in_use",
            f"{state.swap_used_mib:,.0f} MiB lie in swap: weights in system RAM may follow",
            "sudo swapoff -a && sudo swapon -a    # with enough memory free",
        )
    limit_mib = state.memory_limit_mib
    if limit_mib is not None and limit_mib < state.memory_total_mib:
        yield Finding(
            "note",
            "memory_limit",
            f"a control group limits memory to {limit_mib:,.0f} of "
            f"{state.memory_total_mib:,.0f} MiB: fewer experts fit in system RAM",
            "docker update --memory SIZE --memory-swap SIZE CONTAINER, or "
            "systemctl set-property UNIT MemoryMax=infinity",
        )


def _limits(state: HostState, root: Path) -> Iterator[Finding]:
    cores = state.cores
    if cores.usable < cores.logical:
        yield Finding(
            "note",
            "cpu_limit",
            f"{cores.usable} of {cores.logical} hardware threads may be used here",
            f"docker update --cpus {cores.logical} CONTAINER, or start without taskset",
        )
    governors = slow_governors(root)
    if governors:
        yield Finding(
            "note",
            "cpu_governor",
            f"the CPU governor is {', '.join(governors)}, not performance: "
            "speed depends on what ran before",
            "sudo cpupower frequency-set -g performance",
        )
    locked_mib = locked_memory_mib(root)
    if locked_mib is not None and locked_mib < state.memory_total_mib:
        yield Finding(
            "note",
            "locked_memory",
            f"a process may lock {locked_mib:,.0f} MiB of memory: `load_mode mlock` fails, and "
            "some drivers cannot pin host weights",
            "ulimit -l unlimited (as root), `* - memlock unlimited` in "
            "/etc/security/limits.conf, or docker run --ulimit memlock=-1",
        )
