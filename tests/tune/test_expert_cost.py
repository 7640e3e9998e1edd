"""The cost of prefetch and expert caches, with and without memory counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from expert_machine import SLOT_MIB, ExpertMachine
from session.task_sample import task
from trial.purpose_sample import purpose_of

from autofit.memory.memory_model import MemoryModel
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.search.space_file import read_workload
from autofit.session.candidate_factory import CandidateFactory
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement, MemoryReading, ReportedMemory, Sample
from autofit.trial.outcome import Completed
from autofit.trial.trial import Trial
from autofit.tune.expert_cost import expert_costs

BUFFERS = ReportedMemory(1000.0, 100.0, 200.0)
UNREPORTED = 500.0


@pytest.fixture(scope="module", params=["slots", "cache"])
def maker(request, tmp_path_factory) -> CandidateFactory:
    """A factory for a build with prefetch slots, or with a cache."""
    return _maker(tmp_path_factory.mktemp("cost"), request.param)


@pytest.fixture(scope="module")
def slots(tmp_path_factory) -> CandidateFactory:
    """A factory for a build with prefetch slots."""
    return _maker(tmp_path_factory.mktemp("slots"), "slots")


def _maker(folder, kind) -> CandidateFactory:
    machine = ExpertMachine(folder, kind)
    about = task(
        machine.model, machine.server, read_workload(str(machine.workload)),
        space=str(machine.space), dialect=str(machine.dialect),
    )  # fmt: skip
    return CandidateFactory(about)


def candidate(maker: CandidateFactory, **params) -> Candidate:
    """A candidate with half the experts in system RAM."""
    point = {LAYOUT_AXIS: "single:CUDA0", HOST_LAYERS_AXIS: 6, "ubatch": 512,
             "flash_attn": "on", "load_mode": "none"}  # fmt: skip
    found = maker.candidate_of(point)
    assert found is not None
    return found.with_params(**params)


def observing(maker: CandidateFactory, trials: Sequence[Trial]) -> MemoryModel:
    """Return a memory model that has observed some launches."""
    memory = maker.task.memory_model()
    for trial in trials:
        memory.observe(trial)
    return memory


def launched(about: Candidate, taken: float | None, row: ReportedMemory = BUFFERS) -> Trial:
    """A launch that used some MiB of the card; None without a counter."""
    used = (100.0, None if taken is None else 100.0 + taken, 100.0)
    readings = tuple(MemoryReading(0.0, {"CUDA0": mib}, {}) for mib in used)
    measured = Measurement(
        samples=(Sample(1500, 1.0, 1.0, 33, 1.0),),
        reported={"CUDA0": row},
        readings=readings if taken is not None else (),
    )
    return Trial(
        number=1,
        purpose=purpose_of("search"),
        candidate=about,
        outcome=Completed(),
        layout="single:CUDA0",
        measurement=measured,
    )


@pytest.mark.parametrize(("there", "counted"), [(4, 4), (3, 3), (0, 0), (6, 4)])
def test_slots_are_counted_by_device_memory(slots, there, counted):
    """The memory of a launch without slots is subtracted; grown pools are no slots."""
    off, on = (candidate(slots, prefetch_slots=n) for n in (0, 4))
    base = BUFFERS.buffers_mib + UNREPORTED
    trials = [launched(off, base), launched(on, base + there * SLOT_MIB + 20)]
    (cost,) = expert_costs(on, trials, observing(slots, trials), slots.task)

    assert (cost.source, cost.asked, cost.taken) == ("memory", 4, counted)
    assert cost.mib == ({"CUDA0": counted * SLOT_MIB} if counted else {})
    assert cost.time_ratio == 1.0


@pytest.mark.parametrize("phase", ["baseline", "confirm"])
def test_the_baseline_is_no_launch_without_slots(slots, phase):
    """The runtime placed its layers, so that its speed does not show the effect of slots."""
    on = candidate(slots, prefetch_slots=4)
    base = replace(
        launched(slots.task.baseline, 900.0), purpose=purpose_of(phase), is_verbatim=True
    )
    trials = [base, launched(on, None)]
    (cost,) = expert_costs(on, trials, observing(slots, trials), slots.task)

    assert (cost.launches, cost.time_ratio) == (1, None)


def test_slots_are_estimated_without_a_counter(slots):
    """All that were asked for are assumed to be there."""
    on = candidate(slots, prefetch_slots=3)
    trials = [launched(on, None)]
    (cost,) = expert_costs(on, trials, observing(slots, trials), slots.task)

    assert (cost.source, cost.taken, cost.time_ratio) == ("estimate", None, None)
    assert cost.mib == {"CUDA0": 3 * SLOT_MIB}


def test_a_cache_has_its_reported_size(tmp_path):
    """The reported size, nothing if the runtime made none, else the estimate."""
    maker = _maker(tmp_path, "cache")
    on = candidate(maker, moe_cache_mib=400)
    reported = launched(on, None, replace(BUFFERS, expert_cache_mib=398.2))
    silent = launched(on, None)
    disabled = replace(
        silent, measurement=replace(silent.measurement, applied={"moe_cache": "off"})
    )
    found = [
        expert_costs(on, [trial], observing(maker, [trial]), maker.task)[0]
        for trial in (reported, disabled, silent)
    ]

    assert [(cost.source, dict(cost.mib)) for cost in found] == [
        ("log", {"CUDA0": 398.2}), ("log", {}), ("estimate", {"CUDA0": 400.0}),
    ]  # fmt: skip


def test_no_expert_is_fetched_if_all_are_on_the_device(maker):
    """Such points would all be the same launch."""
    (axis,) = (a for a in maker.task.space.axes if a.name.startswith(("prefetch", "moe_")))
    point = {LAYOUT_AXIS: "single:CUDA0", "ubatch": 512, "flash_attn": "on", "load_mode": "none"}
    made = {
        (layers, value): maker.candidate_of({**point, HOST_LAYERS_AXIS: layers, axis.name: value})
        for layers in (0, 6)
        for value in axis.values[:2]
    }

    off, on = axis.values[:2]
    assert made[0, off] is not None
    assert made[0, on] is None
    assert made[6, on] is not None
