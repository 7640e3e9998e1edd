"""What launches teach about memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model.layout_samples import devices, handmade

from autofit.memory.correction import Correction, ObservedMemory, learn
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import ReportedMemory

MODEL = handmade([60.0] * 8)
CARDS = devices(4000, 4000)


def estimated(hosted: int) -> MemoryEstimate:
    """An estimate on two cards."""
    params = {"context": 4096, "n_cpu_moe": hosted, "tensor_split": "5,4"}
    return estimate_memory(MODEL, Candidate(params), CARDS)


def launched(estimate: MemoryEstimate, factor: float, offset_mib: float) -> ObservedMemory:
    """A launch whose compute buffers and rest are off by so much everywhere."""
    reported = {
        row.name: ReportedMemory(row.weights_mib, row.kv_mib, row.compute_mib * factor)
        for row in estimate.devices
    }
    taken = {
        row.name: row.weights_mib
        + row.kv_mib
        + row.compute_mib * factor
        + row.other_mib
        + offset_mib
        for row in estimate.devices
    }
    return ObservedMemory(estimate=estimate, reported=reported, taken_mib=taken)


@given(st.floats(0.6, 1.8), st.floats(-500, 500))
def test_an_error_that_is_always_the_same_is_corrected(factor, offset):
    """After two launches a third candidate's estimate is what it will take."""
    correction = learn([launched(estimated(n), factor, offset) for n in (3, 5)])
    corrected = correction.applied(estimated(7))
    for before, after in zip(estimated(7).devices, corrected.devices, strict=True):
        assert after.compute_mib == pytest.approx(before.compute_mib * factor)
        assert after.other_mib == pytest.approx(max(0, before.other_mib + offset), abs=1e-6)
        assert after.weights_mib == before.weights_mib
    assert correction.devices["CUDA0"].launches == 2


def test_one_odd_launch_among_several_changes_little():
    """Medians are taken; a buffer thrice the estimate is not the same kind of thing."""
    usual = [launched(estimated(n), 1.1, 20) for n in (2, 3, 4, 5)]
    odd = launched(estimated(6), 3.0, 900)
    known = learn([*usual, odd]).devices["CUDA0"]
    assert known.compute_factor == pytest.approx(1.1)
    assert known.other_offset_mib == pytest.approx(20)


def test_what_was_not_counted_is_not_learned():
    """Without a memory counter only the compute buffer is corrected; unseen devices are not."""
    seen = launched(estimated(3), 1.2, 50)
    blind = replace(seen, taken_mib={"CUDA0": None})
    known = learn([blind]).devices["CUDA0"]
    assert known.compute_factor == pytest.approx(1.2)
    assert known.other_offset_mib == 0
    only_first = replace(seen, reported={"CUDA0": seen.reported["CUDA0"]})
    second = learn([only_first]).devices["CUDA1"]
    assert (second.compute_factor, second.launches) == (1.0, 0)


def test_nothing_learned_changes_nothing():
    """Without launches the estimate stays as it is."""
    assert learn([]).applied(estimated(3)) == estimated(3)


def test_it_survives_being_kept():
    """Written as JSON data and read again it is the same."""
    correction = learn([launched(estimated(n), 1.3, 40) for n in (3, 5)])
    assert Correction.from_dict(correction.to_dict()) == correction
    with pytest.raises(TypeError):
        Correction.from_dict({"CUDA0": {"unheard_of": 1}})
