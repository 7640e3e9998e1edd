"""The conditions of the machine during a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trial.purpose_sample import purpose_of

from autofit.session.machine_conditions import describe_conditions
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Conditions, GpuConditions, Measurement
from autofit.trial.outcome import Completed
from autofit.trial.purpose import Phase
from autofit.trial.trial import Trial

QUIET = Conditions(
    seconds=10.0,
    cores=16,
    others_cores=0.1,
    steal_share=0.0,
    load_1m=3.0,
    cpu_mhz=4000.0,
    cpu_throttles=0,
    pressure={"cpu": 0.3, "memory": 0.0, "io": 0.01},
    gpus=(GpuConditions("RTX 3060", "0000:01:00.0", clock_mhz=1800, max_clock_mhz=1900),),
)
HOT_GPU = GpuConditions(
    "RTX 3060",
    "0000:01:00.0",
    clock_mhz=1200,
    max_clock_mhz=1900,
    temperature_c=84,
    throttled_by={"temperature (software)": 0.8, "application clocks": 1.0},
)


def trial(number: int, conditions: Conditions | None, phase: Phase = "search") -> Trial:
    """A launch that was measured under conditions."""
    measured = Measurement(conditions=conditions)
    return Trial(number, purpose_of(phase), Candidate({}), Completed(), measurement=measured)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, []),
        ({"others_cores": 3.2}, ["other processes kept up to 3.2 of 16 cores busy in 1 of 3"]),
        ({"steal_share": 0.12}, ["the hypervisor gave up to 12% of the CPU time to others in 1"]),
        ({"pressure": {"memory": 0.4}}, ["tasks waited for memory up to 40% of the time in 1"]),
        ({"pressure": {"io": 0.25}}, ["tasks waited for disks up to 25% of the time in 1 of 3"]),
        ({"cpu_throttles": 5}, ["the CPU throttled itself for heat 5 times"]),
        ({"cpu_mhz": 2500.0}, ["the CPU ran at 2500 to 4000 MHz"]),
        (
            {"gpus": (HOT_GPU,)},
            ["RTX 3060 (0000:01:00.0) was slowed down by temperature (software) (27% of the "],
        ),
        (
            {"gpus": (replace(HOT_GPU, throttled_by={}),)},
            ["RTX 3060 (0000:01:00.0) ran at 1200 to 1800 of 1900 MHz, up to 84 °C"],
        ),
    ],
)
def test_a_disturbance_is_named(change: dict, words: list[str]):
    """A disturbed launch of three has a sentence, an idle machine has none."""
    disturbed = replace(QUIET, **change)
    report = describe_conditions([trial(1, QUIET), trial(2, disturbed), trial(3, QUIET)])

    assert report is not None
    assert len(report["words"]) == len(words)
    assert all(text.startswith(word) for text, word in zip(report["words"], words, strict=True))
    assert report["is_quiet"] == (not words)
    assert report["busy_launches"] == (
        [2] if {"others_cores", "steal_share"} & set(change) else []
    )
    assert report["launches"] == 3
    assert report["seconds"] == 30.0


def test_values_have_their_spread_over_launches():
    """The least, median and largest value of all launches are in the document."""
    report = describe_conditions(
        [trial(n, replace(QUIET, others_cores=0.1 * n)) for n in range(1, 4)]
    )

    assert report is not None
    assert report["others_cores"] == {"low": 0.1, "median": 0.2, "high": pytest.approx(0.3)}
    assert report["cpu_mhz"] == {"low": 4000.0, "median": 4000.0, "high": 4000.0}
    assert report["pressure"]["io"]["high"] == 0.01
    assert report["gpus"][0]["clock_mhz"] == {"low": 1800, "median": 1800, "high": 1800}


def test_no_measured_launch_has_no_conditions():
    """Proofs and launches without conditions do not count."""
    assert describe_conditions([trial(1, None), trial(2, QUIET, phase="prove")]) is None
