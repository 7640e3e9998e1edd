"""What is said of prefetch and expert caches at the end of a tune."""

from __future__ import annotations

import pytest

from autofit.output.text.expert_cost_text import expert_cost_facts

SLOTS = {
    "param": "prefetch_slots", "value": 4, "mib": {"CUDA0": 288.0}, "source": "memory",
    "slots_asked": 4, "slots_taken": 4, "launches": 3, "time_ratio": 0.8,
}  # fmt: skip
OFF = {"value": 0, "mib": {}, "source": None, "slots_asked": None, "slots_taken": None}
CACHE = {
    "param": "moe_cache_mib", "value": 2048, "mib": {"CUDA0": 1400.2, "CUDA1": 646.0},
    "source": "log", "slots_asked": None, "slots_taken": None, "launches": 0, "time_ratio": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("row", "label", "text"),
    [
        (SLOTS, "prefetch_slots 4", "288 MiB on CUDA0; the fastest without it took 25% longer"),
        (
            {**SLOTS, "source": "estimate", "slots_taken": None, "time_ratio": None},
            "prefetch_slots 4",
            "288 MiB on CUDA0 by estimate, as nothing counted it",
        ),
        (
            {**SLOTS, "mib": {"CUDA0": 216.0}, "slots_taken": 3, "time_ratio": 0.999},
            "prefetch_slots 4",
            "216 MiB on CUDA0, 3 of 4 slots; the fastest without it took as long",
        ),
        (
            {**SLOTS, "mib": {}, "slots_taken": 0, "time_ratio": None},
            "prefetch_slots 4",
            "takes nothing: no batch was large enough",
        ),
        (
            {**SLOTS, **OFF, "time_ratio": 1.12},
            "prefetch_slots 0",
            "off: the fastest of 3 launches with it took 12% longer",
        ),
        (
            {**SLOTS, **OFF, "value": False, "launches": 1, "time_ratio": 0.9},
            "prefetch_slots off",
            "off: the launch with it took 10% less",
        ),
        (
            {**SLOTS, **OFF, "launches": 0, "time_ratio": None},
            "prefetch_slots 0",
            "off; nothing with it was measured",
        ),
        (CACHE, "moe_cache_mib 2048", "1,400 MiB on CUDA0, 646 MiB on CUDA1"),
        ({**CACHE, "mib": {}}, "moe_cache_mib 2048", "takes nothing: the runtime turned it off"),
    ],
)
def test_memory_and_gain_are_said_plainly(row, label, text):
    """MiB by device and who told them, and how the fastest with and without compare."""
    assert expert_cost_facts({"expert_memory": [row]}) == [(label, text)]


def test_results_of_older_versions_say_nothing_of_it():
    """They have no such key."""
    assert expert_cost_facts({}) == []
