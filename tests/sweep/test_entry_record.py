"""Records of a night, and the changes of its environment."""

from __future__ import annotations

import json

import hypothesis
import pytest
from hypothesis import given
from sweep.record_strategy import records

from autofit.machine.cpu import Cores
from autofit.machine.gpu import GpuState
from autofit.machine.host_load import HostState, watch_host
from autofit.study.fingerprint import Environment
from autofit.sweep.entry_record import EntryRecord, EnvironmentSnapshot

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


def test_snapshot_has_the_environment_of_a_study_and_its_host():
    """Driver and build are from the study, clocks and busy cores from the host."""
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


@hypothesis.settings(max_examples=40)
@given(records)
def test_record_is_the_same_after_json(record):
    """Whatever a night measured reads back as it was."""
    assert EntryRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_equal_environments_have_no_changes():
    """Clocks that vary by less than 5% and half a busy core are no change either."""
    one = EnvironmentSnapshot(clocks_mhz={"cpu": 3000.0}, others_cores=0.2)
    other = EnvironmentSnapshot(clocks_mhz={"cpu": 2900.0}, others_cores=0.6)

    assert list(one.changes(one)) == []
    assert list(one.changes(other)) == []


def test_remark_with_other_numbers_is_no_change():
    """A remark is a change only if it is about something else, such as another device."""
    one = EnvironmentSnapshot(remarks=("others keep 1.3 of 2 cores busy", "CUDA0 is throttled"))
    other = EnvironmentSnapshot(remarks=("others keep 1.5 of 2 cores busy", "CUDA1 is throttled"))

    assert list(one.changes(other)) == ["CUDA1 is throttled"]


def test_unknown_value_on_one_side_is_no_change():
    """An unknown driver is not another one."""
    known = EnvironmentSnapshot(driver="1", clocks_mhz={"a": 1.0}, others_cores=3.0)

    assert list(known.changes(EnvironmentSnapshot())) == []
    assert list(EnvironmentSnapshot().changes(known)) == []


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ({"driver": "1"}, {"driver": "2"}, "driver: 1, now 2"),
        ({"build": "a"}, {"build": "b"}, "runtime build: a, now b"),
        ({"devices": ("x", "y")}, {"devices": ("x",)}, "devices: x, y, now x"),
        ({"clocks_mhz": {"g": 100.0}}, {"clocks_mhz": {"g": 90.0}}, "clock of g: 100 MHz"),
        ({"others_cores": 0.0}, {"others_cores": 2.0}, "other processes: 0.0 cores busy, now 2.0"),
        ({}, {"remarks": ("it is hot",)}, "it is hot"),
    ],
)
def test_each_change_has_both_values(before, after, change):
    """A change has the value before and now."""
    (found,) = EnvironmentSnapshot(**before).changes(EnvironmentSnapshot(**after))

    assert found.startswith(change)
