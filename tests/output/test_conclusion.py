"""The conclusion of a study as texts."""

from __future__ import annotations

import pytest
from output.tune_sample import RESULT, make_study

from autofit.output.text.conclusion import caveats, conditions_text, make_conclusion

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
        (SLOTS, "prefetch_slots 4", "288 MiB on CUDA0; 1.25x as fast as without it"),
        (
            {**SLOTS, "source": "estimate", "slots_taken": None, "time_ratio": None},
            "prefetch_slots 4",
            "288 MiB on CUDA0 (estimated)",
        ),
        (
            {**SLOTS, "mib": {"CUDA0": 216.0}, "slots_taken": 3, "time_ratio": 0.999},
            "prefetch_slots 4",
            "216 MiB on CUDA0, 3 of 4 slots; equally fast as without it",
        ),
        (
            {**SLOTS, "mib": {}, "slots_taken": 0, "time_ratio": None},
            "prefetch_slots 4",
            "needs no memory: no batch was large enough",
        ),
        (
            {**SLOTS, **OFF, "time_ratio": 1.12},
            "prefetch_slots 0",
            "off: the fastest of 3 launches with it was 0.89x as fast",
        ),
        (
            {**SLOTS, **OFF, "value": False, "launches": 1, "time_ratio": 0.9},
            "prefetch_slots off",
            "off: 1 launch with it was 1.11x as fast",
        ),
        (
            {**SLOTS, **OFF, "launches": 0, "time_ratio": None},
            "prefetch_slots 0",
            "off; not measured",
        ),
        (CACHE, "moe_cache_mib 2048", "1,400 MiB on CUDA0, 646 MiB on CUDA1"),
        ({**CACHE, "mib": {}}, "moe_cache_mib 2048", "needs no memory: the runtime turned it off"),
    ],
)
def test_memory_and_speed_of_a_setting_for_experts(row, label, text):
    """Each setting has its MiB by device, and the speed with it against without it."""
    assert (label, text) in make_conclusion(RESULT | {"expert_memory": [row]}).expert_facts


GAIN_OF_BASELINE = {"median": 1.0, "low": 1.0, "high": 1.0}


@pytest.mark.parametrize(
    ("changes", "headline"),
    [
        ({}, "1.42x as fast (95% interval 1.37 to 1.47); proven at full context"),
        (
            {"gain": {**GAIN_OF_BASELINE, "n": 4}},
            "The runtime's own settings are the fastest found; proven at full context",
        ),
        (
            {
                "gain": {**GAIN_OF_BASELINE, "n": 4},
                "baseline": {**RESULT["baseline"], "params": {"n_cpu_moe": 9}},
            },
            "The baseline is the fastest found; proven at full context",
        ),
        (
            {"gain": {**GAIN_OF_BASELINE, "n": 0}, "launches_by_phase": {"baseline": 1}},
            "Budget too short: only the runtime's own settings were tested; "  # noqa: ISC004
            "proven at full context",
        ),
        ({"winner": None}, "Nothing was proven: no settings to recommend"),
    ],
)
def test_headline_has_the_speedup_and_the_proof(changes, headline):
    """The headline says how fast the winner is, and whether it is proven."""
    assert make_conclusion({**RESULT, **changes}).headline == headline


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({}, 0),
        ({"gain": {"median": 1.5, "low": 0.98, "high": 2.31, "n": 3}}, 1),
        ({"gain": {"median": 1.01, "low": 0.99, "high": 1.02, "n": 5}, "tie": True}, 0),
        ({"conditions": {"words": ["a"], "busy_launches": [3]}}, 1),
    ],
)
def test_uncertain_results_have_warnings(changes, count):
    """An undecided speedup and a busy machine each have a warning."""
    assert len(make_conclusion({**RESULT, **changes}).warnings) == count


@pytest.mark.parametrize(
    ("search", "text"),
    [
        ({"ended_by": "gain", "expected_gain": 0.0004}, "no further gain expected"),
        ({"ended_by": "space"}, "no candidate was left"),
        (
            {"ended_by": "stalled", "expected_gain": 0.004},
            "the expected gain (0.4% of the time) was not worth one more launch",
        ),
        (
            {"ended_by": "budget", "expected_gain": 0.021},
            "--budget or --max-launches was reached; one more launch might save 2.1% of the time",
        ),
    ],
)
def test_end_of_the_search_has_its_reason(search, text):
    """The reason is a field of the effort."""
    assert dict(make_conclusion(RESULT | {"search": search}).effort)["search ended"] == text


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({"words": [], "others_cores": None}, "The machine was idle"),
        (
            {"words": [], "others_cores": {"high": 0.1}, "cores": 16},
            "The machine was idle: other processes used at most 0.1 of 16 cores",
        ),
        ({"words": ["a", "b"], "busy_launches": [2]}, "Warning: the machine was busy: a; b"),
        (
            {"words": ["a"], "busy_launches": []},
            "Warning: the machine was not at full speed: a",
        ),
    ],
)
def test_conditions_are_idle_or_a_warning(conditions, text):
    """Others' use of the cores is the measure of an idle machine."""
    assert conditions_text(conditions) == text


def test_caveats_name_what_limits_a_result(tmp_path):
    """A missing interval, an estimated boundary, skipped candidates and the task are named."""
    result = {**RESULT, "gain": {"median": 1.2, "low": None, "high": None, "n": 1}}
    found = caveats(make_study(tmp_path / "study", result=result))

    assert len(found) == 4
    for caveat, part in zip(
        found, ("chat at 8192 tokens", "--budget", "autofit probe", "1 candidate"), strict=True
    ):
        assert part in caveat
