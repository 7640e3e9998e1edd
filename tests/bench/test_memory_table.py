"""Memory by arithmetic is compared with what a study's launches showed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from study.study_sample import header, trial

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory
from autofit.trial.outcome import OutOfMemory
from benchmarks.cards import memory_table

SCRIPT = Path(__file__).parents[2] / "benchmarks/cards/memory_table.py"
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
PARAMS = {"n_gpu_layers": 9, "n_cpu_moe": 2, "context": 4096, "ubatch": 512, "devices": "CUDA0"}
HELD_MIB, OTHER_MIB = 4000.0, 700.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small mixture of experts, of which there is only a header."""
    path = tmp_path_factory.mktemp("model") / "small.gguf"
    write_model(SynthSpec(header_only=True), path)
    return path


def _measured(model: Path, compute_factor: float) -> Measurement:
    """Return the measurement of a launch whose compute buffer is this multiple of the estimate."""
    device = Device("CUDA0", "NVIDIA GeForce RTX 3060", 12288.0, 12288.0)
    (row,) = estimate_memory(read_inventory(model), Candidate(PARAMS), [device]).devices
    reported = ReportedMemory(row.weights_mib, row.kv_mib, row.compute_mib * compute_factor)
    return Measurement(
        peak_mib={"CUDA0": HELD_MIB + reported.buffers_mib + OTHER_MIB},
        reported={"CUDA0": reported},
        readings=(MemoryReading(0.0, {"CUDA0": HELD_MIB}, {"CUDA0": None}),),
    )


def _compared(model: Path, folder: Path, *factors: float) -> subprocess.CompletedProcess[str]:
    """Print the table of a study: a launch for each factor, a failure, and a runtime's own fit."""
    own_fit = replace(
        trial(90, phase="baseline", measured=_measured(model, 3.0)),
        candidate=Candidate({"devices": "CUDA0", "fit_target": "1024"}),
    )
    failed = trial(91, OutOfMemory("load", "cudaMalloc failed: out of memory"), **PARAMS)
    with Study.create(folder, header()) as study:
        for number, factor in enumerate(factors, start=1):
            study.write_trial(trial(number, measured=_measured(model, factor), **PARAMS))
        study.write_trial(own_fit)
        study.write_trial(failed)
    words = [sys.executable, str(SCRIPT), str(model), f"cards={folder}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_equal_buffers_are_within_the_limit(model, tmp_path):
    """Launches that the runtime placed itself or that failed are counted, not compared."""
    done = _compared(model, tmp_path / "study", 1.0, 1.0)

    assert done.returncode == 0, done.stderr
    assert "| cards | CUDA | CUDA0 | 2 | +0.00%, +0.0 MiB | +0.00%, +0.0 MiB | 700 MiB |" in (
        done.stdout
    )
    assert "2 of 2 devices of completed launches" in done.stdout
    assert "1 completed launches that the runtime placed itself" in done.stdout
    assert "| cards | 1 | 0 | 3 | 0 | 0 | 126 | 1 out of memory (load) |" in done.stdout


def test_a_launch_beyond_the_limit_is_listed(model, tmp_path):
    """A launch beyond the limit is listed with its buffers, and the exit code is 1."""
    done = _compared(model, tmp_path / "study", 1.0, 2.0)

    assert done.returncode == 1, done.stderr
    assert "1 of 2 devices of completed launches" in done.stdout
    assert "- cards, launch 2, CUDA0: -" in done.stdout


def _recorded_models(folder: Path) -> dict[str, ModelInventory]:
    """Write the headers of the models that the reference studies name, and read them."""
    models = {}
    for name, sizes in YAML(typ="safe").load(REFERENCE / "models.yaml").items():
        path = folder / f"{name}.gguf"
        write_model(SynthSpec(**sizes, header_only=True), path)
        models[name] = read_inventory(path)
    return models


def test_the_studies_of_real_cards_agree_with_the_arithmetic(tmp_path):
    """Buffers within 1% of the runtime's own table, and the memory outside them within 32 MiB."""
    models = _recorded_models(tmp_path)
    studies = [Study.open(path.parent) for path in sorted(REFERENCE.glob("*/study.json"))]
    found = [
        launch
        for study in studies
        for launch in memory_table.device_launches(
            study.path.name, study, models[study.header.model_name]
        )
    ]

    assert len(found) > 100
    for launch in found:
        assert abs(launch.buffers_off_mib) < 0.01 * launch.reported.buffers_mib, launch.key
        assert launch.other_off_mib is None or abs(launch.other_off_mib) < 32, launch.key
