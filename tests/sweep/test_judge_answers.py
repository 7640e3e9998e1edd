"""The verdict on answers."""

from __future__ import annotations

from dataclasses import replace

from sweep.night_sample import (
    WINNER,
    answer,
    by_metric,
    kept,
    night,
)

from autofit.sweep.judge import judge


def test_other_answers_are_a_regression():
    """Another token where the model was sure is no rounding."""
    wrong = answer((100, 101, *range(500, 522)), "so it does not")

    verdict = judge(kept(), night(20, answers=(wrong, answer(range(300, 324), "and so on"))))

    assert by_metric(verdict)["answers"].verdict == "output_changed"
    assert "so it does not" in by_metric(verdict)["answers"].words


def test_answers_are_held_against_the_reference_of_tonight_first():
    """What the old runtime answers tonight as well, it answers rightly."""
    both = (answer(range(700, 724), "new words"),)

    verdict = judge(kept(), night(20, answers=both, reference_answers=both))

    assert by_metric(verdict)["answers"].verdict == "same"
    assert by_metric(verdict)["answers"].against == "reference"


def test_answers_of_another_model_or_a_wider_cache_are_not_compared():
    """A file that was replaced changes answers, and the environment says so."""
    other = replace(night().environment, model_digest="cafe")
    wide = kept(winner=replace(WINNER, params={"cache_type_k": "q8_0", "cache_type_v": "q8_0"}))

    by_model = judge(kept(), night(20, environment=other))
    by_cache = judge(wide, night(20))

    assert by_metric(by_model)["answers"].verdict == "unknown"
    assert any("model file" in change for change in by_model.environment_changes)
    assert by_metric(by_cache)["answers"].verdict == "unknown"


def test_answers_of_a_narrower_cache_are_scored():
    """Good enough is the same, as for the winner of a tune; poor is a regression."""
    narrow = replace(WINNER, params={"cache_type_k": "q4_0", "cache_type_v": "q4_0"})
    lost = (answer(range(900, 924), "lost"),) * 2

    good = judge(kept(), night(20, winner=narrow))
    poor = judge(kept(), night(20, winner=narrow, answers=lost))

    assert by_metric(good)["answers"].verdict == "same"
    assert by_metric(poor)["answers"].verdict == "output_changed"


def test_an_entry_that_was_not_asked_has_no_case_for_answers():
    """Answers that were switched off are no unknown, and none that were kept are one."""
    assert "answers" not in by_metric(judge(kept(), night(20, answers=())))
    assert by_metric(judge(kept(answers=()), night(20)))["answers"].verdict == "unknown"
