"""Measurements: round trips and the rates of a sample."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from trial.trial_strategy import measurements, samples

from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample


@given(measurements)
def test_a_measurement_survives_json(measurement):
    """A measurement reads back as it was written, missing counters included."""
    data = json.loads(json.dumps(measurement.to_dict()))

    assert Measurement.from_dict(data) == measurement


def test_an_unknown_field_is_refused():
    """A field that is not known is not silently lost."""
    with pytest.raises(TypeError, match="temperature"):
        Measurement.from_dict({"temperature": 80})
    with pytest.raises(TypeError, match="colour"):
        Measurement.from_dict({"samples": [{"colour": "red"}]})


def test_rates_of_a_sample():
    """The first token comes with the prompt: n tokens take n - 1 steps."""
    sample = Sample(512, 2.0, 2.1, 11, 0.5)

    assert sample.pp_per_s == 256.0
    assert sample.tg_per_s == 20.0
    assert sample.total_s == pytest.approx(2.6)


@pytest.mark.parametrize(
    ("sample", "pp", "tg"),
    [
        (Sample(512, 0.0, 0.1, 11, 0.5), None, 20.0),
        (Sample(512, 2.0, 2.1, 1, 0.0), 256.0, None),
        (Sample(512, 2.0, 2.1, 11, 0.0), 256.0, None),
        (Sample(512, 2.0, 2.1, 0, 0.0), 256.0, None),
        # A prompt that was all in the cache had nothing to process.
        (Sample(0, 0.01, 0.1, 11, 0.5), None, 20.0),
    ],
)
def test_an_undefined_rate_is_none(sample, pp, tg):
    """No time, no tokens or a single token give no rate: unknown is not zero or infinite."""
    assert (sample.pp_per_s, sample.tg_per_s) == (pp, tg)


@given(samples)
def test_rates_are_positive_or_unknown(sample):
    """A rate is never zero, negative or infinite."""
    for rate in (sample.pp_per_s, sample.tg_per_s):
        assert rate is None or 0 < rate < float("inf")


def test_taken_memory_leaves_out_other_programs():
    """A device's peak less what was used before; unknown where either is."""
    measured = Measurement(
        peak_mib={"CUDA0": 9000.0, "CUDA1": 50.0, "RPC0": None, "RPC1": 70.0, "host": 300.0},
        readings=(MemoryReading(0.0, {"CUDA0": 1000.0, "CUDA1": 60.0, "RPC0": 5.0}, {}),),
    )

    assert measured.taken_mib() == {
        "CUDA0": 8000.0,
        "CUDA1": 0.0,
        "RPC0": None,
        "RPC1": None,
        "host": 300.0,
    }


def test_taken_memory_is_never_less_than_the_buffers():
    """The process behind a remote device keeps what launches before it have taken."""
    measured = Measurement(
        peak_mib={"RPC0": 52.9, "CUDA0": 900.0, "RPC1": None},
        readings=(MemoryReading(0.0, {"RPC0": 52.9, "CUDA0": 100.0, "RPC1": None}, {}),),
        reported={
            "RPC0": ReportedMemory(11.0, 3.0, 10.0),
            "CUDA0": ReportedMemory(500.0, 100.0, 50.0),
            "RPC1": ReportedMemory(1.0, 1.0, 1.0),
        },
    )

    assert measured.taken_mib() == {"RPC0": 24.0, "CUDA0": 800.0, "RPC1": None}
