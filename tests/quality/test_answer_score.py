"""The score of a narrower KV type."""

from __future__ import annotations

import json

import pytest
from quality.answer_sample import answer, answers

from autofit.quality.answer_score import QualityLimits, QualityScore, score
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.quality.retrieval import RetrievalTask

TASKS = [RetrievalTask(f"P-{n}", (1,), f"1000{n}", ("99999",)) for n in range(3)]


def test_the_reference_itself_scores_best():
    """The same answers agree in every token and diverge by nothing."""
    kept = answers()

    found = score(kept, kept)

    assert (found.agreement, found.mean_divergence, found.tokens) == (1.0, 0.0, 64)
    assert found.shortfalls() == []


def test_more_noise_scores_worse():
    """The further the chances move, the more they diverge and the fewer tokens agree."""
    kept = answers(16)
    scores = [score(kept, answers(16, shake=shake)) for shake in (0.0, 0.05, 0.3, 1.0)]

    divergences = [one.mean_divergence for one in scores]
    assert divergences == sorted(divergences)
    assert scores[0].agreement > scores[-1].agreement
    assert scores[1].shortfalls() == []
    assert len(scores[-1].shortfalls()) == 2


def test_agreement_counts_tokens_after_the_same_text():
    """Each answer counts up to its first other token."""
    one = answer([{1: 0.9}, {2: 0.5, 3: 0.4}, {4: 0.9}])
    other = answer([{1: 0.9}, {2: 0.4, 3: 0.5}, {4: 0.9}])

    found = score([one, one], [other, one])

    assert found.tokens == 5
    assert found.agreement == pytest.approx(4 / 5)


def test_lost_records_are_those_the_reference_found():
    """A record that the reference does not find either is no loss."""
    kept = answers(1)

    found = score(
        kept,
        kept,
        TASKS,
        ["SECRET 10000", "SECRET 10001", "no idea"],
        ["SECRET 10000", "SECRET 99999", "SECRET 10002"],
    )

    assert (found.asked, found.found_by_reference, found.lost) == (3, 2, 1)
    assert found.shortfalls() == ["1 of 2 planted records are lost"]


def test_a_score_without_chances_does_not_hold():
    """What cannot be told is not good enough."""
    found = score([RecordedAnswer("a")], [RecordedAnswer("a")])

    assert found.agreement is None
    assert len(found.shortfalls()) == 1


def test_limits_are_the_callers():
    """Every limit can be moved, and what falls short says so in words."""
    found = QualityScore(100, 0.9, 0.04, 0.5)

    assert found.shortfalls(QualityLimits(0.8, 0.1)) == []
    assert found.shortfalls(QualityLimits(0.95, 0.1)) == ["90.0% of the tokens agree, under 95%"]
    assert found.shortfalls(QualityLimits(0.8, 0.03)) == [
        "the chances of a token diverge by 0.040 nats, over 0.03"
    ]
    assert QualityScore(1, float("nan"), float("nan"), None).shortfalls()


def test_answers_and_texts_must_pair_up():
    """Every question has an answer on both sides."""
    kept = answers(1)

    with pytest.raises(ValueError, match="shorter"):
        score(kept, kept, TASKS, ["a"], ["b"])


def test_the_score_is_json():
    """A score can be written."""
    assert json.loads(json.dumps(score(answers(), answers()).to_dict()))["tokens"] == 64
