"""A probe finds every fit boundary of simulated machines, through real processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes.machine import Device, Host, Machine
from fakes.random_machine import Case, random_case
from fakes.synthetic_model import ModelShape, build_model

from benchmarks.probe_machine import ProbedMachine

MODEL = build_model(ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, vocab=512))
CARD = Device("CUDA0", total_mib=2400, context_mib=300, pool_mib=60, reserve_mib=0)
SECOND = replace(CARD, name="CUDA1", total_mib=1900)


def case(*devices: Device, **fields) -> Case:
    """A machine that is not noisy, and 24 layers with 108 MiB of experts each."""
    host = fields.pop("host", Host(ram_mib=24000, other_mib=1000))
    machine = Machine("sample", devices or (CARD,), host, **fields).without_noise()
    return Case(0, machine, MODEL, 8192, ((600, 32),))


def assert_true(machine: ProbedMachine) -> None:
    """Both sides of every boundary are the true ones, shown by few launches."""
    for row in machine.result["boundary"]:
        truth = machine.truth(row["layout"], row["cache_type"])
        assert (row["fits"], row["fails"]) == (truth.fits, truth.fails), row
        assert row["proven"], row
        assert row["source"] == "launch"
        assert row["failed_launches"] <= 3
    assert machine.dominated() == []
    assert machine.fake.owners == []


@pytest.mark.parametrize("seed", [3, pytest.param(0, marks=pytest.mark.slow)])
def test_boundaries_of_a_random_machine_are_the_true_ones(tmp_path, seed):
    """The boundary of each KV type is found on single cards of different kinds."""
    machine = ProbedMachine.of(random_case(seed, devices=1), tmp_path)

    machine.probe(tmp_path / "study")

    assert len(machine.result["boundary"]) == 2
    assert_true(machine)


def test_boundary_over_two_devices_is_the_true_one(tmp_path):
    """Host expert layers are shared out over both."""
    machine = ProbedMachine.of(random_case(7, devices=2), tmp_path)

    machine.probe(tmp_path / "study", layouts=["balanced"], cache_types=["q8_0"])

    assert_true(machine)


def test_layers_without_experts_leave_no_gap_in_a_boundary(tmp_path):
    """If the first three layers have none, `n_cpu_moe` 1 to 3 are the same as 0."""
    shape = ModelShape(layers=8, experts=64, used=4, embd=1024, ff=1024, vocab=512, dense_layers=3)
    nearly_whole = replace(case(replace(CARD, total_mib=1290)), model=build_model(shape))
    machine = ProbedMachine.of(nearly_whole, tmp_path)

    machine.probe(tmp_path / "study", cache_types=["f16"])

    (row,) = machine.result["boundary"]
    assert (row["host_expert_layers"], row["fits"], row["fails"]) == (1, 4, 3)
    assert row["proven"]


def test_spilling_machine_has_the_same_boundary_as_one_that_refuses(tmp_path):
    """No launch fails there, and the boundary is still found to the layer."""
    hard = ProbedMachine.of(case(), tmp_path / "hard")
    spill = ProbedMachine.of(case(policy="spill"), tmp_path / "spill")

    hard.probe(tmp_path / "hard" / "study", cache_types=["f16"])
    spill.probe(tmp_path / "spill" / "study", cache_types=["f16"])

    assert_true(hard)
    assert_true(spill)
    rows = [machine.result["boundary"][0] for machine in (hard, spill)]
    assert rows[0]["fits"] == rows[1]["fits"]
    assert [row["outcome"] for row in rows] == ["out_of_memory", "spilled"]


def test_failure_of_a_narrow_kv_type_rules_out_the_wide_one(tmp_path):
    """If both have the same boundary, the failing side of the wide type is not launched."""
    tiny = replace(case(), context=1024, requests=((300, 16),))
    machine = ProbedMachine.of(tiny, tmp_path)

    result = machine.probe(tmp_path / "study")

    assert_true(machine)
    narrow, wide = result["boundary"]
    assert narrow["fails"] == wide["fails"]
    assert (narrow["failed_launches"], wide["failed_launches"]) == (1, 0)
    assert wide["outcome"] == "out_of_memory"
    (line,) = (tmp_path / "study" / "skipped.jsonl").read_text().splitlines()
    skipped = json.loads(line)
    failed = next(trial for trial in machine.trials if not trial.is_completed)
    assert skipped["outcome"]["because"] == failed.candidate.key
    assert "CUDA0" in skipped["outcome"]["evidence"]


def test_pipeline_without_host_layers_is_launched_separately(tmp_path):
    """On two devices 1 host layer says nothing about 0, which works as a pipeline."""
    machine = ProbedMachine.of(case(CARD, replace(SECOND, total_mib=2400)), tmp_path)

    result = machine.probe(tmp_path / "study", layouts=["balanced"], cache_types=["q8_0"])

    assert_true(machine)
    assert result["boundary"][0]["fits"] == 0
    assert result["boundary"][0]["fails"] is None


def test_full_host_ends_the_search_upwards(tmp_path):
    """After a launch with too many layers in system RAM only fewer are launched."""
    host = Host(ram_mib=2300, other_mib=600)
    machine = ProbedMachine.of(case(replace(CARD, total_mib=1400), host=host), tmp_path)

    result = machine.probe(tmp_path / "study", cache_types=["q8_0"])

    row = result["boundary"][0]
    truth = machine.truth(row["layout"], "q8_0")
    assert row["fits"] == truth.fits is None
    assert row["outcome"] == "out_of_memory"
    assert machine.fake.owners == []


def test_full_host_leaves_the_boundary_of_the_device_open(tmp_path):
    """If the host has too little memory for more layers, the boundary below is still found."""
    machine = ProbedMachine.of(case(), tmp_path)
    truth = machine.truth("single:CUDA0", "q8_0")
    machine.fake.fail("host-oom", when={"n_cpu_moe": [">", truth.fits + 4]})

    (row,) = machine.probe(tmp_path / "study", cache_types=["q8_0"])["boundary"]

    assert machine.trials[0].outcome.where == "host"
    assert (row["fits"], row["fails"]) == (truth.fits, truth.fails)
    assert row["proven"]


@pytest.mark.parametrize("fault", ["killed", "abort"])
def test_crash_at_full_context_keeps_the_measured_boundary(tmp_path, fault):
    """Candidates that ran still fit if one with fewer host layers is killed."""
    machine = ProbedMachine.of(case(), tmp_path)
    machine.fake.fail(fault, "prompt", prompt_tokens=8000)

    rows = machine.probe(tmp_path / "study")["boundary"]

    ran = {t.candidate.get_str("cache_type_k", ""): t for t in machine.trials if t.is_completed}
    assert set(ran) == {"q8_0", "f16"}
    for row in rows:
        assert row["fits"] == ran[row["cache_type"]].candidate.get_int("n_cpu_moe", 0)
        assert row["fails"] < row["fits"]
        assert (row["outcome"], row["proven"]) == ("crashed", False)


def test_rejected_setting_is_launched_once_for_all_layouts(tmp_path):
    """The rejection rules out the same settings in every layout."""
    machine = ProbedMachine.of(case(CARD, SECOND), tmp_path)
    machine.fake.fail("reject-line")

    result = machine.probe(tmp_path / "study", layouts=["balanced", "single"], cache_types=["f16"])

    assert machine.fake.launches == 1
    assert [row["fits"] for row in result["boundary"]] == [None] * 3
    assert {row["outcome"] for row in result["boundary"]} == {"rejected"}
    assert not any(row["proven"] for row in result["boundary"])


def test_one_launch_shows_that_nothing_fits(tmp_path):
    """It has all experts in system RAM."""
    machine = ProbedMachine.of(case(replace(CARD, total_mib=600)), tmp_path)

    result = machine.probe(tmp_path / "study", cache_types=["q8_0"])

    row = result["boundary"][0]
    assert (row["fits"], row["fails"]) == (None, 24)
    assert row["failed_launches"] == 1


@pytest.fixture
def launched(tmp_path):
    """Launch candidates with some numbers of host layers; return the machine and the trials."""
    machine = ProbedMachine.of(case(), tmp_path)

    def launch(*numbers: int):
        candidates = [machine.candidate("single:CUDA0", "q8_0", n) for n in numbers]
        study = tmp_path / f"study-{numbers[0]}"
        return machine, machine.launch(study, candidates, layout="single:CUDA0")

    return launch


def test_launch_predicts_the_free_memory_of_its_neighbours(launched):
    """With three host layers fewer the error is a few MiB."""
    machine, _ = launched(13)

    predicted = machine.memory.free_mib(machine.candidate("single:CUDA0", "q8_0", 10))

    _, (nearer,) = launched(10)
    assert predicted == pytest.approx(nearer.measurement.free_mib["CUDA0"], abs=8)
