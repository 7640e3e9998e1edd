"""Findings of the doctor on host, cards and runtime, with the commands that repair them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from runtime.sample_programs import SERVER, runtime_of

from autofit.doctor.findings import check_cards, check_host, check_runtime, check_settings
from autofit.machine.cpu import Cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import HostState
from autofit.machine.linux_gpus import Card, Link
from autofit.trial.device import Device

QUIET = HostState(
    window_s=1.0,
    cores=Cores(logical=16, usable=16, physical=8, performance=8),
    load_1m=0.1,
    others_cores=0.2,
    steal_share=0.0,
    cpu_mhz=3000.0,
    memory_total_mib=64000.0,
    memory_available_mib=60000.0,
    memory_limit_mib=None,
    swap_total_mib=8000.0,
    swap_used_mib=100.0,
)
PCI = "0000:01:00.0"
NVIDIA = Card("nvidia", PCI, "nvidia", Link(16, 16))
AMD = Card("amd", PCI, "amdgpu", Link(16, 16))
WELL = GpuState("RTX 3060", PCI, busy_percent=0, power_cap_w=170.0, default_power_cap_w=170.0)
CUDA0 = Device("CUDA0", "NVIDIA GeForce RTX 3060", 12288.0, 12000.0)
RPC0 = Device("RPC0", "10.0.0.2:50052", 12288.0, 12000.0)


@pytest.fixture
def root(tmp_path):
    """A system without limits, whose GPU files are open."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/status").write_text(f"CapEff:\t{1 << 14:016x}\n")
    (tmp_path / "dev/dri").mkdir(parents=True)
    (tmp_path / "dev/dri/renderD128").touch()
    return tmp_path


def _kinds(findings) -> list[str]:
    found = list(findings)
    assert all(finding.fix for finding in found)
    return [finding.kind for finding in found]


def test_quiet_host_has_no_findings(root):
    """A quiet host yields nothing."""
    assert _kinds(check_host(QUIET, root)) == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"others_cores": 3.0}, "busy_host"),
        ({"steal_share": 0.2}, "cpu_steal"),
        ({"swap_used_mib": 900.0}, "swap_in_use"),
        ({"memory_limit_mib": 32000.0}, "memory_limit"),
        ({"cores": Cores(16, 4, 4, 4)}, "cpu_limit"),
    ],
)
def test_each_problem_of_the_host_is_one_finding(root, changes, kind):
    """Each problem that disturbs measurements has its own kind."""
    assert _kinds(check_host(replace(QUIET, **changes), root)) == [kind]


def test_governor_is_found(root):
    """A governor other than performance is named, with the command that sets it."""
    folder = root / "sys/devices/system/cpu/cpu0/cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    (finding,) = check_host(QUIET, root)

    assert finding.kind == "cpu_governor"
    assert "powersave" in finding.message
    assert "frequency-set -g performance" in finding.fix


def test_machine_without_cards_has_no_findings(root):
    """Neither a missing GPU nor a healthy one is a finding."""
    assert _kinds(check_cards([], [], root)) == []
    assert _kinds(check_cards([NVIDIA], [WELL], root)) == []
    assert _kinds(check_cards([AMD], [], root)) == []


@pytest.mark.parametrize(
    ("card", "state", "kind", "fix"),
    [
        (NVIDIA, None, "driver_silent", "--gpus all"),
        (replace(NVIDIA, driver=None), None, "no_driver", "nvidia-driver"),
        (replace(NVIDIA, driver="nouveau"), None, "no_driver", "nvidia-driver"),
        (replace(AMD, driver=None), None, "no_driver", "modprobe amdgpu"),
        (replace(NVIDIA, link=Link(4, 16)), WELL, "narrow_link", f"lspci -vv -s {PCI}"),
        (NVIDIA, replace(WELL, throttled_by=("power limit",)), "throttled", "POWER"),
        (NVIDIA, replace(WELL, busy_percent=90), "busy_gpu", "nvidia-smi"),
        (NVIDIA, replace(WELL, power_cap_w=100.0), "power_cap", f"-i {PCI} -pl 170"),
        (
            replace(AMD, power_cap_w=200.0, default_power_cap_w=303.0),
            None,
            "power_cap",
            "echo 303000000 | sudo tee",
        ),
    ],
)
def test_each_problem_of_a_card_is_one_finding(root, card, state, kind, fix):
    """Each problem that slows down a card has its own kind and command."""
    (finding,) = check_cards([card], [state] if state else [], root)

    assert finding.kind == kind
    assert fix in finding.fix


def test_card_of_a_virtual_machine_has_no_findings(root):
    """A card that was passed to a virtual machine is ignored."""
    assert _kinds(check_cards([replace(NVIDIA, driver="vfio-pci")], [], root)) == []


def test_container_without_gpu_files_is_found(root):
    """A card with a driver but without device files cannot be reached."""
    (root / "dev/dri/renderD128").unlink()
    (finding,) = check_cards([AMD], [], root)

    assert finding.kind == "device_files_missing"
    assert "--device /dev/dri" in finding.fix


@pytest.mark.parametrize(
    ("devices", "vendors", "environ", "kinds"),
    [
        ((CUDA0,), ["nvidia"], {}, []),
        ((), [], {}, []),
        ((), ["nvidia"], {}, ["no_gpu_build"]),
        ((RPC0,), ["amd"], {}, ["no_gpu_build"]),
        ((), ["nvidia"], {"CUDA_VISIBLE_DEVICES": ""}, ["devices_hidden"]),
        (None, ["nvidia"], {}, ["devices_not_listed"]),
        ((replace(CUDA0, usable_mib=6000.0),), ["nvidia"], {}, ["device_memory_in_use"]),
    ],
)
def test_each_problem_of_a_runtime_is_one_finding(devices, vendors, environ, kinds):
    """The devices that a runtime lists are compared with the cards."""
    runtime = replace(runtime_of("llama_server", SERVER), companions={"fit_params": ("x",)})

    assert _kinds(check_runtime(runtime, devices, vendors, environ)) == kinds


def test_missing_planner_is_found_if_the_dialect_has_one():
    """llama-server has a planner in its folder; the embedded runtime has none."""
    (finding,) = check_runtime(runtime_of("llama_server", SERVER), (), [], {})

    assert finding.kind == "no_estimator"
    assert "--target llama-fit-params" in finding.fix
    assert _kinds(check_runtime(runtime_of("embedded", SERVER), (), [], {})) == []


def test_settings_outside_the_command_line_are_found(tmp_path):
    """Variables and settings files of llama.cpp come with the command that removes them."""
    own = tmp_path / "llama.cpp" / "config.ini"
    own.parent.mkdir()
    own.write_text("threads = 1\n")
    system = tmp_path / "system.ini"
    system.write_text("threads = 2\n")
    environ = {"LLAMA_ARG_THREADS": "3", "XDG_CONFIG_HOME": str(tmp_path)}
    config, user, variables = check_settings(None, environ, system)

    assert (config.kind, config.level) == ("system_config", "warning")
    assert (user.kind, user.fix) == ("user_config", f"mv {own} {own}.off")
    assert variables.kind == "variables_set"
    assert "unset LLAMA_ARG_THREADS" in variables.fix
    assert _kinds(check_settings(None, {}, tmp_path / "none")) == []
