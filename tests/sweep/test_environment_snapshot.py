"""What else changed between two nights, in words."""

from __future__ import annotations

import json

import pytest

from autofit.machine.cpu import Cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import HostState, watch_host
from autofit.study.fingerprint import Environment
from autofit.sweep.environment_snapshot import EnvironmentSnapshot

ENVIRONMENT = Environment(
    cpu="a CPU",
    cpu_count=8,
    memory_mib=32_000.0,
    devices=("CUDA0: a card, 12288 MiB",),
    driver="580.1",
    build="b11434",
    model_digest="beef",
    system="Linux",
)


def test_they_are_those_of_a_study_and_of_its_host():
    """Driver and build from the study, clocks by card and what others did from the host."""
    host = watch_host(0.01, sleep=lambda _: None)
    busy = HostState(
        **{
            **{name: getattr(host, name) for name in HostState.__slots__},
            "cores": Cores(logical=8, usable=8, physical=8, performance=8),
            "others_cores": 7.0,
            "cpu_mhz": 3000.0,
            "gpus": (GpuState("a card", "0000:01:00.0", clock_mhz=1900),),
        }
    )

    found = EnvironmentSnapshot.of(ENVIRONMENT, busy)

    assert (found.driver, found.build, found.model_digest) == ("580.1", "b11434", "beef")
    assert found.clocks_mhz == {"a card (0000:01:00.0)": 1900, "cpu": 3000.0}
    assert found.others_cores == 7.0
    assert any("other processes keep 7.0" in remark for remark in found.remarks)
    assert EnvironmentSnapshot.of(ENVIRONMENT, None).clocks_mhz == {}


def test_they_survive_json():
    """A record of another process has them as they were."""
    found = EnvironmentSnapshot.of(ENVIRONMENT, watch_host(0.01, sleep=lambda _: None))

    assert EnvironmentSnapshot.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_equal_surroundings_have_no_changes():
    """Nor has a wander of clocks by less than a twentieth, or half a core of others' work."""
    one = EnvironmentSnapshot(clocks_mhz={"cpu": 3000.0}, others_cores=0.2)
    other = EnvironmentSnapshot(clocks_mhz={"cpu": 2900.0}, others_cores=0.6)

    assert one.changes(one) == ()
    assert one.changes(other) == ()


def test_a_remark_with_other_figures_is_no_change():
    """A machine that is always busy is told once, another device's remark each time."""
    one = EnvironmentSnapshot(remarks=("others keep 1.3 of 2 cores busy", "CUDA0 is throttled"))
    other = EnvironmentSnapshot(remarks=("others keep 1.5 of 2 cores busy", "CUDA1 is throttled"))

    assert one.changes(other) == ("CUDA1 is throttled",)


def test_what_is_not_known_on_one_side_is_no_change():
    """A driver that nobody told is not another one."""
    assert (
        EnvironmentSnapshot(driver="1", clocks_mhz={"a": 1.0}).changes(EnvironmentSnapshot()) == ()
    )
    assert EnvironmentSnapshot().changes(EnvironmentSnapshot(driver="1", others_cores=3.0)) == ()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"driver": "1"}, {"driver": "2"}, "driver: 1, now 2"),
        ({"build": "a"}, {"build": "b"}, "runtime build: a, now b"),
        ({"devices": ("x", "y")}, {"devices": ("x",)}, "devices: x, y, now x"),
        ({"clocks_mhz": {"g": 100.0}}, {"clocks_mhz": {"g": 90.0}}, "clock of g: 100 MHz"),
        ({"others_cores": 0.0}, {"others_cores": 2.0}, "other processes: 0.0 cores busy, now 2.0"),
        ({}, {"remarks": ("it is hot",)}, "it is hot"),
    ],
)
def test_each_change_is_told(before, after, told):
    """With both sides, so that a reader can judge it."""
    (change,) = EnvironmentSnapshot(**before).changes(EnvironmentSnapshot(**after))

    assert change.startswith(told)
