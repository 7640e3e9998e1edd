"""Launches of one study are judged again by all the others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from memory.launched_card import OTHERS_MIB, TOTAL_MIB, UNREPORTED_MIB, LaunchedCard

from autofit.memory.spill_review import judge_again, needs_neighbour, review_launches
from autofit.trial.outcome import Spilled

# Buffers with which a launch just fills the card.
FULL_MIB = TOTAL_MIB - OTHERS_MIB - UNREPORTED_MIB


@pytest.fixture(scope="module")
def card(tmp_path_factory) -> LaunchedCard:
    """A card of 8000 MiB."""
    return LaunchedCard.of(tmp_path_factory.mktemp("spills"))


def test_launch_during_which_others_took_memory_shows_nothing(card):
    """Otherwise every full launch after it would be called a spill."""
    disturbed, full = card.trial(20, 5000, others_after_mib=1400.0), card.trial(13, FULL_MIB)

    assert judge_again(full, card.memory(disturbed, full)).kind == "completed"


def test_small_spill_is_found_once_the_device_is_known_to_spill(card):
    """Before, a device may be full by chance; afterwards the missing memory counts."""
    roomy, slight = card.trial(20, 5000), card.trial(13, FULL_MIB + 12)
    clear = card.trial(12, FULL_MIB + 400)

    assert judge_again(slight, card.memory(roomy, slight)).kind == "completed"
    outcome = judge_again(clear, card.memory(roomy, slight, clear))
    assert outcome.kind == "spilled"
    assert outcome.spilled_mib == pytest.approx(400, abs=12)

    memory = card.memory(roomy, slight, replace(clear, outcome=outcome))

    assert judge_again(slight, memory).spilled_mib == pytest.approx(12)
    assert judge_again(roomy, memory).kind == "completed"


def test_reviewed_launches_replace_those_of_the_model(card):
    """A spill found in one launch is used for the next, and by every later prediction."""
    memory = card.memory(card.trial(20, 5000), card.trial(12, FULL_MIB + 400))

    (spilled,) = review_launches(memory)

    assert spilled.number == 12
    assert [trial.outcome.kind for trial in memory.launches] == ["completed", "spilled"]
    assert memory.full_levels_mib() == {"CUDA0": 0.0}
    assert review_launches(memory) == []


def test_full_launch_needs_a_neighbour_with_room(card):
    """Only the memory beyond buffers of a launch with room shows why a device is full."""
    spilled = Spilled("prompt", "seen", "CUDA0", 1700.0)
    clear = card.trial(5, 9000, cache_type="f16", outcome=spilled)
    full, nearly_full = card.trial(13, FULL_MIB + 12), card.trial(13, FULL_MIB - 40)

    assert needs_neighbour(full, card.memory(clear, full))
    assert needs_neighbour(full, card.memory(full))
    assert not needs_neighbour(full, card.memory(clear, full, card.trial(14, 6000)))
    assert not needs_neighbour(nearly_full, card.memory(nearly_full))


def test_missing_memory_is_a_spill_where_the_launch_is_slow_too(card):
    """A neighbour with one host layer more is about as fast, not three times faster."""
    neighbour = card.trial(20, 5000)

    def outcome(pp_per_s):
        moved = card.trial(19, 5300, moved_mib=700.0, pp_per_s=pp_per_s)
        return judge_again(moved, card.memory(neighbour, moved))

    assert outcome(1050.0).kind == "completed"
    assert outcome(330.0).kind == "spilled"
    assert "3.0 times slower" in outcome(333.3).evidence
