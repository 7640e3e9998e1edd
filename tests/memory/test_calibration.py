"""Memory predictions are corrected by what launches used, in this study and in later ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.layout_samples import devices, handmade

from autofit.memory.calibration import CalibrationStore, ObservedMemory, calibrate
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import ReportedMemory

MODEL = handmade([60.0] * 8)
CARDS = devices(4000, 4000)


def predicted(host_layers: int) -> MemoryEstimate:
    """Return the prediction of a candidate on two cards."""
    params = {"context": 4096, "n_cpu_moe": host_layers, "tensor_split": "5,4"}
    return estimate_memory(MODEL, Candidate(params), CARDS)


def launched(prediction: MemoryEstimate, factor: float, offset_mib: float) -> ObservedMemory:
    """Return a launch whose compute buffers and rest are off by this much on every device."""
    reported = {
        row.name: ReportedMemory(row.weights_mib, row.kv_mib, row.compute_mib * factor)
        for row in prediction.devices
    }
    used = {
        row.name: row.weights_mib
        + row.kv_mib
        + row.compute_mib * factor
        + row.other_mib
        + offset_mib
        for row in prediction.devices
    }
    return ObservedMemory(predicted=prediction, reported=reported, used_mib=used)


@given(st.floats(0.6, 1.8), st.floats(-500, 500))
def test_constant_error_is_corrected(factor, offset):
    """After two launches the prediction for a third candidate is what it will use."""
    calibration = calibrate([launched(predicted(n), factor, offset) for n in (3, 5)])
    corrected = calibration.corrected(predicted(7))
    for before, after in zip(predicted(7).devices, corrected.devices, strict=True):
        assert after.compute_mib == pytest.approx(before.compute_mib * factor)
        assert after.other_mib == pytest.approx(max(0, before.other_mib + offset), abs=1e-6)
        assert after.weights_mib == before.weights_mib
    assert calibration.devices["CUDA0"].observations == 2


def test_one_odd_launch_among_several_changes_little():
    """Medians are taken, and a buffer three times the prediction counts for nothing."""
    usual = [launched(predicted(n), 1.1, 20) for n in (2, 3, 4, 5)]
    odd = launched(predicted(6), 3.0, 900)
    known = calibrate([*usual, odd]).devices["CUDA0"]
    assert known.compute_factor == pytest.approx(1.1)
    assert known.other_offset_mib == pytest.approx(20)


def test_device_without_counter_or_report_is_not_corrected():
    """Without a memory counter only the compute buffer is; without a report nothing is."""
    seen = launched(predicted(3), 1.2, 50)
    known = calibrate([replace(seen, used_mib={})]).devices["CUDA0"]
    assert known.compute_factor == pytest.approx(1.2)
    assert known.other_offset_mib == 0
    only_first = replace(seen, reported={"CUDA0": seen.reported["CUDA0"]})
    assert list(calibrate([only_first]).devices) == ["CUDA0"]


def test_no_observation_changes_nothing():
    """Without launches the prediction stays as it is."""
    assert calibrate([]).corrected(predicted(3)) == predicted(3)


def kept(store: CalibrationStore, model: str = "0011", build: str = "11434") -> dict:
    """Return the offset and the number of observations of each device."""
    devices = store.calibration(model, build).devices
    return {name: (one.other_offset_mib, one.observations) for name, one in devices.items()}


def add(store: CalibrationStore, excess_mib: float, device: str = "CUDA0") -> bool:
    """Keep a launch that used more than was predicted."""
    return store.add("0011", "11434", device, predicted_mib=1000.0, used_mib=1000.0 + excess_mib)


def test_earlier_launches_calibrate_a_new_study(tmp_path):
    """The median excess of a model, build and device is its offset, in another process too."""
    path = tmp_path / "new" / "memory.jsonl"
    for excess_mib in (50.0, 70.0, 900.0):
        assert add(CalibrationStore(path), excess_mib)
    assert add(CalibrationStore(path), -5.0, "CUDA1")

    assert kept(CalibrationStore(path)) == {"CUDA0": (70.0, 3), "CUDA1": (-5.0, 1)}
    assert kept(CalibrationStore(path), model="0012") == {}
    assert kept(CalibrationStore(path), build="11500") == {}


def test_torn_and_foreign_lines_are_skipped(tmp_path):
    """A file damaged in places still gives what can be read, and takes more."""
    path = tmp_path / "memory.jsonl"
    store = CalibrationStore(path)
    add(store, 1.0)
    with path.open("ab") as file:
        file.write(b'[1]\n{"device": "CUDA0"}\n{"model_digest": ["x"], "build": 1}\n\xff{"mod')
    add(store, 3.0)

    assert kept(store) == {"CUDA0": (2.0, 2)}


def test_file_stays_small_and_keeps_the_latest(tmp_path):
    """Above a megabyte only the latest launches of each key are kept."""
    path = tmp_path / "memory.jsonl"
    store = CalibrationStore(path)
    add(store, 0.0)
    line = path.read_bytes()
    path.write_bytes(line * ((1 << 20) // len(line)))
    for excess_mib in [8.0] * 26:
        add(store, excess_mib)

    assert path.stat().st_size < 100_000
    assert kept(store) == {"CUDA0": (8.0, 50)}


def test_unwritable_file_keeps_nothing_and_fails_nothing():
    """If nothing can be written, nothing is known and no error is raised."""
    store = CalibrationStore(Path("/sys/kernel/autofit/memory.jsonl"))

    assert not add(store, 1.0)
    assert kept(store) == {}
