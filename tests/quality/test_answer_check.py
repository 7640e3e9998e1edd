"""Judgement of answers: equality where they must not change, a score where they may."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from quality.answer_sample import answer, answers

from autofit.quality.answer_check import (
    ProgramScore,
    QualityScore,
    has_narrow_kv,
    judge_answers,
    score_answers,
)
from autofit.quality.prompt_set import Answers, RetrievalTask
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.planner.divergence_program import Divergence
from autofit.trial.candidate import Candidate

TASKS = [RetrievalTask(f"P-{n}", (1,), f"1000{n}", ("99999",)) for n in range(3)]
REFERENCE = Answers(tuple(answers()))


def _judged(other, **options):
    settings = {"reference_name": "A", "may_differ": False, **options}
    return judge_answers(REFERENCE, other, **settings)


def test_answers_to_other_prompts_are_unknown():
    """Answers that are missing, or to other prompts, are not compared."""
    assert _judged(Answers(tuple(answers(1)))).verdict == "unknown"
    assert _judged(None, may_differ=True).is_acceptable is None
    with_tasks = replace(REFERENCE, tasks=tuple(TASKS[:1]), texts=("",))
    assert _judged(with_tasks).verdict == "unknown"


def test_messages_say_what_was_compared():
    """The first message has the verdict with its numbers, the others the details."""
    changed = answer([{1: 0.05, 2: 0.9}])
    garbled = Answers((changed, *REFERENCE.recorded[1:]))
    score = ProgramScore(Divergence(2040, 0.8, 0.0625, 1.0), "llama-perplexity")

    assert _judged(REFERENCE).messages == ("answers match A (64 of 64 tokens)",)
    different = _judged(garbled).messages
    assert different[0] == "ANSWERS DIFFER from A: only 3 of 4 prompts have the same answer"
    assert different[-1].startswith("first difference in prompt 1 at token 1: ")
    assert _judged(REFERENCE, may_differ=True, by_program=score).messages == (
        "80.0% of 2040 tokens match A, mean divergence 0.0625 nats (llama-perplexity)",
        "not good enough: 80.0% of tokens match, under 85%",
        "not good enough: mean divergence 0.062 nats, over 0.03",
    )


@pytest.mark.parametrize(
    ("keys", "values", "is_narrow"),
    [
        (None, None, False),
        ("f16", "bf16", False),
        ("f32", "f16", False),
        ("q8_0", "q8_0", True),
        ("f16", "q8_0", True),
        ("f16", "unheard_of", True),
    ],
)
def test_one_narrow_cache_may_change_answers(keys, values, is_narrow):
    """A type that is narrower than f16, or unknown, may change answers."""
    types = {"cache_type_k": keys, "cache_type_v": values}

    assert has_narrow_kv(Candidate({}).with_params(**types)) is is_narrow


def test_reference_scores_best_against_itself():
    """The same answers agree in every token and diverge by nothing."""
    kept = answers()

    found = score_answers(kept, kept)

    assert (found.agreement, found.mean_divergence, found.tokens) == (1.0, 0.0, 64)
    assert found.shortfalls() == []


def test_more_noise_scores_worse():
    """The further probabilities move, the more they diverge and the fewer tokens agree."""
    kept = answers(16)
    scores = [score_answers(kept, answers(16, noise=noise)) for noise in (0.0, 0.05, 0.3, 1.0)]

    divergences = [one.mean_divergence for one in scores]
    assert divergences == sorted(divergences)
    assert scores[0].agreement > scores[-1].agreement
    assert scores[1].shortfalls() == []
    assert len(scores[-1].shortfalls()) == 2


def test_agreement_counts_tokens_after_the_same_text():
    """Each answer counts up to its first different token."""
    one = answer([{1: 0.9}, {2: 0.5, 3: 0.4}, {4: 0.9}])
    other = answer([{1: 0.9}, {2: 0.4, 3: 0.5}, {4: 0.9}])

    found = score_answers([one, one], [other, one])

    assert found.tokens == 5
    assert found.agreement == pytest.approx(4 / 5)


def test_lost_records_are_those_the_reference_found():
    """A record that the reference does not find either is no loss."""
    kept = answers(1)

    found = score_answers(
        kept,
        kept,
        TASKS,
        ["SECRET 10000", "SECRET 10001", "no idea"],
        ["SECRET 10000", "SECRET 99999", "SECRET 10002"],
    )

    assert (found.asked, found.found_by_reference, found.lost) == (3, 2, 1)
    assert len(found.shortfalls()) == 1


def test_score_without_probabilities_is_unknown():
    """Answers whose probabilities are not reported are neither good nor poor."""
    one = Answers((RecordedAnswer("a"),))

    found = judge_answers(one, one, reference_name="A", may_differ=True)

    assert (found.verdict, found.quality.agreement) == ("unknown", None)


@pytest.mark.parametrize(
    ("agreement", "divergence", "count"),
    [(0.9, 0.02, 0), (0.8, 0.02, 1), (0.9, 0.04, 1), (0.8, 0.04, 2)],
)
def test_each_limit_counts(agreement, divergence, count):
    """A score misses a limit for too few equal tokens, and one for a divergence too large."""
    assert len(QualityScore(100, agreement, divergence, 0.5).shortfalls()) == count


def test_score_that_is_no_number_is_not_good_enough():
    """Nonsense misses every limit."""
    assert len(QualityScore(1, float("nan"), float("nan"), None).shortfalls()) == 2


def test_tasks_and_texts_must_pair_up():
    """Every retrieval task has an answer on both sides."""
    kept = answers(1)

    with pytest.raises(ValueError, match="shorter"):
        score_answers(kept, kept, TASKS, ["a"], ["b"])


def test_check_is_json():
    """A check can be written, with None for numbers that JSON lacks."""
    broken = replace(
        REFERENCE.recorded[0],
        choices=tuple(
            replace(one, top=dict.fromkeys(one.top, float("nan")))
            for one in REFERENCE.recorded[0].choices
        ),
    )
    found = _judged(Answers((broken, *REFERENCE.recorded[1:])), may_differ=True)

    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))

    assert data["quality"]["tokens"] == 64
    assert data["quality"]["mean_divergence"] is None
