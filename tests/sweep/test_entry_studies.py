"""The memory of a night: what the runtime itself used, and what was free."""

from __future__ import annotations

from dataclasses import replace

from session.rounds_sample import WORKLOAD, trial_of

from autofit.sweep.entry_studies import _figures
from autofit.trial.measurement import Measurement, MemoryReading
from autofit.trial.trial import Trial


def launch(held_mib: float, peak_mib: float, free_mib: float | None) -> Trial:
    """Return a launch on a device of which other processes used some memory before."""
    return replace(
        trial_of(1.0),
        measurement=Measurement(
            peak_mib={"CUDA0": peak_mib, "host": 900.0},
            free_mib={"CUDA0": free_mib},
            readings=(MemoryReading(0.0, {"CUDA0": held_mib}, {"CUDA0": None}),),
        ),
    )


def test_memory_of_other_processes_is_no_growth():
    """A desktop that uses 700 MiB more tonight does not raise the runtime's peak."""
    quiet = _figures([launch(300.0, 9_300.0, 2_000.0)], WORKLOAD)
    shared = _figures([launch(1_000.0, 10_000.0, 1_300.0)], WORKLOAD)

    assert quiet["peak_mib"] == shared["peak_mib"] == {"CUDA0": 9_000.0, "host": 900.0}
    assert shared["free_mib"] == {"CUDA0": 1_300.0}


def test_peak_is_the_most_and_free_the_least_of_all_launches():
    """A launch without a counter does not hide those of the others."""
    found = _figures(
        [launch(0.0, 5.0, None), launch(0.0, 7.0, 3.0), launch(0.0, 6.0, 2.0)], WORKLOAD
    )

    assert found["peak_mib"]["CUDA0"] == 7.0
    assert found["free_mib"]["CUDA0"] == 2.0
