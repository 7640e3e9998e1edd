"""Slots that a runtime was refused, and how many of them its device shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autofit.runtime.diagnosis.memory_evidence import ExpectedSlots, find_refused_slots
from autofit.trial.measurement import MemoryReading

TOTAL = 8000.0
WANTED = ExpectedSlots(device="CUDA0", count=4, slot_mib=200.0, unreported_mib=500.0)


def readings(taken: float, before: float = 100.0) -> list[MemoryReading]:
    """A device before, at the peak of, and after a launch."""
    return [
        MemoryReading(0.0, {"CUDA0": used}, {"CUDA0": TOTAL - used})
        for used in (before, before + taken, before)
    ]


def found(taken: float, refused: tuple[float, ...] = (200.0,), wanted: ExpectedSlots = WANTED):
    """What comes of a launch with buffers of 6800 MiB that took so much."""
    return find_refused_slots(readings(taken), wanted, buffers_mib=6800.0, refused_mib=refused)


@pytest.mark.parametrize(
    ("taken", "told"),
    [(7730.0, ": 2 allocated"), (7890.0, ": 3 allocated"), (7510.0, ": 0 allocated")],
)
def test_a_refused_slot_is_memory_that_was_lacking(taken, told):
    """The device's memory tells how many are there; one alone is given back."""
    outcome = found(taken)

    assert (outcome.kind, outcome.stage, outcome.device) == ("out_of_memory", "prompt", "CUDA0")
    assert outcome.requested_mib == 200.0
    assert told in outcome.evidence


def test_no_refusal_of_that_size_is_no_sign():
    """A compute buffer is tried larger than it fits, too; and slots may never be asked for."""
    assert found(7730.0, refused=(3100.0,)) is None
    assert found(7300.0, refused=()) is None


def test_room_for_what_was_refused_tells_that_it_was_asked_for_again():
    """A device with room for two more slots at its peak has all of them."""
    assert found(7400.0) is None


def test_without_a_counter_the_line_alone_tells():
    """How many slots there are is then not known."""
    told = ": fewer allocated"
    unknown = [MemoryReading(0.0, {"CUDA0": None}, {"CUDA0": None})] * 2
    outcome = find_refused_slots(unknown, WANTED, buffers_mib=6800.0, refused_mib=[200.0])

    assert told in outcome.evidence
    assert told in found(7730.0, wanted=replace(WANTED, unreported_mib=None)).evidence
