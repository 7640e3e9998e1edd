"""What launches of one run show of memory, each in the light of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.machine import Device, Host, Machine
from fakes.random_machine import Case
from fakes.synthetic_model import ModelShape, build_model
from trial.purpose_sample import purpose_of

from autofit.session.launch_memory import MemoryRecord
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import Completed, Spilled
from autofit.trial.trial import Trial
from benchmarks.probe_machine import ProbedMachine

TOTAL = 8000.0
OTHER = 500.0  # what a launch takes beside its buffers


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A card of 8000 MiB; nothing is launched on it."""
    model = build_model(ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, vocab=512))
    case = Case(
        0, Machine("one", (Device("CUDA0", total_mib=TOTAL),), Host()), model, 8192, ((600, 32),)
    )
    return ProbedMachine.of(case, tmp_path_factory.mktemp("record"))


@pytest.fixture
def trial(machine):
    """Makes a launch that asked for so much beside 200 MiB of others."""

    def make(
        host_layers: int,
        buffers: float,
        *,
        kind: str = "q8_0",
        before: float = 200.0,
        after: float = 200.0,
        moved: float = 0.0,
        pp: float = 1000.0,
        outcome=None,
    ) -> Trial:
        peak = min(TOTAL, before + buffers + OTHER) - moved
        readings = tuple(
            MemoryReading(0.0, {"CUDA0": mib}, {"CUDA0": TOTAL - mib})
            for mib in (before, peak, after)
        )
        measured = Measurement(
            samples=(Sample(600, 600 / pp, 600 / pp, 9, 0.1),),
            reported={"CUDA0": ReportedMemory(buffers - 300, 100.0, 200.0)},
            readings=readings,
            free_mib={"CUDA0": TOTAL - peak},
        )
        return Trial(
            number=host_layers,
            purpose=purpose_of("boundary"),
            candidate=machine.candidate("single:CUDA0", kind, host_layers),
            outcome=outcome or Completed(),
            layout="single:CUDA0",
            measurement=measured,
        )

    return make


@pytest.fixture
def record(machine):
    """What is known after some launches."""
    return lambda *trials: MemoryRecord(machine.maker, list(trials))


def test_what_launches_take_beside_buffers_is_learned(machine, trial, record):
    """For the same settings as seen; for others, less what those may differ by."""
    known = record(trial(20, 5000), trial(19, 5400))
    alike = machine.candidate("single:CUDA0", "q8_0", 10)
    unlike = machine.candidate("single:CUDA0", "f16", 10)

    assert known.unreported_mib(alike) == {"CUDA0": OTHER}
    assert 0 <= known.unreported_mib(unlike)["CUDA0"] < OTHER
    assert known.unreported_mib(unlike.with_params(prefetch_slots=4)) == {}


def test_launch_beside_which_others_took_memory_teaches_nothing(machine, trial, record):
    """Else every full launch after it would be said to have spilled."""
    disturbed = trial(20, 5000, after=1400.0)
    full = trial(13, TOTAL - 200 - OTHER)

    known = record(disturbed, full)

    assert "CUDA0" not in record(disturbed).unreported_mib(disturbed.candidate)
    assert known.outcome(full).kind == "completed"


def test_small_spill_is_told_once_the_device_was_seen_to_spill(trial, record):
    """Before, a device may be full by chance; after, it lacks what it lacks."""
    roomy, slight = trial(20, 5000), trial(13, TOTAL - 200 - OTHER + 12)
    clear = trial(12, TOTAL - 200 - OTHER + 400)

    assert record(roomy, slight).outcome(slight).kind == "completed"
    told = record(roomy, slight, clear).outcome(clear)
    assert told.kind == "spilled"
    assert told.spilled_mib == pytest.approx(400, abs=12)

    known = record(roomy, slight, replace(clear, outcome=told))

    assert known.outcome(slight).spilled_mib == pytest.approx(12)
    assert known.outcome(roomy).kind == "completed"


def test_full_launch_is_in_doubt_until_a_neighbour_had_room(trial, record):
    """Nothing comes out even by chance: what it was to hold beside its buffers decides."""
    clear = replace(trial(5, 9000, kind="f16"), outcome=Spilled("prompt", "seen", "CUDA0", 1700.0))
    full = trial(13, TOTAL - 200 - OTHER + 12)

    nearly_full = trial(13, TOTAL - 200 - OTHER - 40)

    assert record(clear, full).is_unsure(full)
    assert record(full).is_unsure(full)
    assert not record(clear, full, trial(14, 6000)).is_unsure(full)
    assert not record(nearly_full).is_unsure(nearly_full)


def test_memory_moved_out_is_told_where_the_launch_is_slow_too(trial, record):
    """A neighbour with one host layer more is as fast or slower, not three times faster."""
    neighbour = trial(20, 5000)

    def outcome(pp):
        moved = trial(19, 5300, moved=700.0, pp=pp)
        return record(neighbour, moved).outcome(moved)

    assert outcome(pp=1050.0).kind == "completed"
    assert outcome(pp=330.0).kind == "spilled"
    assert "3.0 times slower" in outcome(pp=333.3).evidence


def test_what_stays_free_is_told_from_the_nearest_launch(machine, trial, record):
    """Only what two candidates differ by is estimated."""
    known = record(trial(20, 5000), trial(10, 7000))
    here = machine.candidate("single:CUDA0", "q8_0", 9)
    one, other = (
        machine.maker.estimate(machine.candidate("single:CUDA0", "q8_0", n)).devices[0].total_mib
        for n in (9, 10)
    )

    free = TOTAL - 200 - 7000 - OTHER

    assert known.free_mib(here) == pytest.approx(free + other - one)
    assert record().free_mib(here) == pytest.approx(
        machine.maker.estimate(here).devices[0].free_mib
    )
