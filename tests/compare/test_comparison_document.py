"""Verdict and document of a comparison, from trials made by hand."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from session.rounds_sample import WORKLOAD, Bench

from autofit.compare.comparison import SIDES, ComparisonResult
from autofit.compare.comparison_document import comparison_document, judge_comparison
from autofit.output.text.conclusion import make_conclusion
from autofit.quality.answer_check import AnswerCheck
from autofit.session.rounds import run_rounds
from autofit.statistics.stopping_rule import StoppingRule
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Crashed

SAME = AnswerCheck("equal", "A", None, None, ("answers match",))
OTHER = AnswerCheck("different", "A", None, None, ("answers differ",))
UNKNOWN = AnswerCheck("unknown", "A", None, None, ("not compared",))
DIED = Crashed("prompt", "it died")
FACTS = {"A": {"name": "a.json"}, "B": {"name": "b.json"}}


def _compared(
    a_s=1.0, b_s=1.0, answers=SAME, *, a_fails=None, b_fails=None, rounds=None, noise=0.01
) -> ComparisonResult:
    bench = Bench(noise=noise)
    contenders = [
        bench.contender("A", a_s, fails_in=a_fails, outcome=DIED),
        bench.contender("B", b_s, fails_in=b_fails, outcome=DIED),
    ]
    ranking = run_rounds(
        contenders,
        workload=WORKLOAD,
        metric="request_s",
        rng=random.Random(1),
        rule=StoppingRule(ended_at=rounds),
        must_run=SIDES,
    )
    return ComparisonResult(ranking=ranking, scoring=(), answers=answers)


def _measured(
    result: ComparisonResult, measurement: Callable[[int], Measurement]
) -> ComparisonResult:
    """Return the result with other measurements, each made from the index of its round."""
    standings = tuple(
        replace(
            standing,
            trials=tuple(
                replace(trial, measurement=measurement(index))
                for index, trial in enumerate(standing.trials)
            ),
        )
        for standing in result.ranking.standings
    )
    return replace(result, ranking=replace(result.ranking, standings=standings))


def _document(result: ComparisonResult) -> dict:
    return comparison_document(result, WORKLOAD, "request_s", FACTS)


@pytest.mark.parametrize(
    ("b_s", "answers", "verdict", "because"),
    [
        (0.8, SAME, "better", "speed"),
        (1.25, SAME, "worse", "speed"),
        (1.0, SAME, "tie", "speed"),
        (0.8, OTHER, "worse", "answers"),
        (0.8, UNKNOWN, "better", "speed"),
    ],
)
def test_speed_decides_unless_answers_are_wrong(b_s, answers, verdict, because):
    """Wrong answers make a faster side worse; unknown answers claim nothing."""
    found = judge_comparison(_compared(b_s=b_s, answers=answers))

    assert (found.verdict, found.because) == (verdict, because)


@pytest.mark.parametrize(
    ("fails", "verdict"),
    [
        ({"b_fails": 2}, "worse"),
        ({"a_fails": 2}, "better"),
        ({"a_fails": 1, "b_fails": 1}, "undecided"),
    ],
)
def test_side_that_fails_in_any_round_is_worse(fails, verdict):
    """A single failed launch decides, and its evidence is shown."""
    document = _document(_compared(**fails))

    assert (document["verdict"], document["because"]) == (verdict, "failure")
    assert document["ended"] == "failed"
    assert any(DIED.evidence in message for message in document["words"][1:])


def test_ratios_are_speeds():
    """Half the seconds and twice the rate are both a ratio of two."""
    document = _document(_compared(b_s=0.5))

    for key in ("request_s", "pp_per_s", "tg_per_s", "ttft_s"):
        ratio = document["ratios"][key]
        assert ratio["median"] == pytest.approx(2.0, rel=0.05)
        assert ratio["low"] < ratio["median"] < ratio["high"]
    assert document["ratio"] == document["ratios"]["request_s"]


@pytest.mark.parametrize(
    ("options", "headline"),
    [
        ({"b_s": 0.5}, r"better: B is 2\.\d\dx as fast as A \(95% interval 1\.\d\d to 2\.\d\d\)"),
        ({"rounds": 2}, r"undecided after 2 of at least 3 rounds: B is \d\.\d\dx as fast as A"),
        ({"noise": 0.5}, r"undecided after 12 rounds: B is .* interval .*\)"),
        ({"b_fails": 1}, r"worse: B does not run"),
        ({"a_fails": 1, "b_fails": 1}, r"undecided: neither A nor B runs"),
    ],
)
def test_headline_has_verdict_and_speed(options, headline):
    """The first message has the verdict, then how fast B is or what failed."""
    assert re.fullmatch(headline, _document(_compared(**options))["words"][0])


def test_first_and_second_request_have_figures_of_their_own():
    """The measured warm-up is the first request, the next one like it the second."""
    first = Sample(512, 0.4, 0.4, 129, 1.0, is_warmup=True)
    second = Sample(512, 0.2, 0.2, 129, 1.0, order=1)
    third = Sample(512, 0.1, 0.1, 129, 1.0, order=2)
    result = _measured(_compared(), lambda _: Measurement(samples=(first, second, third)))

    side = _document(result)["a"]

    assert side["first_request"]["pp_per_s"]["median"] == pytest.approx(1280)
    assert side["second_request"]["pp_per_s"]["median"] == pytest.approx(2560)
    assert side["second_request"]["ttft_s"]["median"] == pytest.approx(0.2)


def test_free_memory_is_the_least_of_all_launches():
    """A counter that is missing stays unknown."""
    free_mib = (300.0, 100.0, 200.0)

    result = _measured(
        _compared(),
        lambda index: Measurement((), free_mib={"GPU0": free_mib[index % 3], "GPU1": None}),
    )

    assert _document(result)["a"]["free_mib"] == {"GPU0": 100.0, "GPU1": None}


def test_document_is_json_that_show_prints():
    """`show` prints the verdict of a comparison as its headline."""
    document = _document(_compared(b_s=0.8))

    shown = make_conclusion(json.loads(json.dumps(document, allow_nan=False)))

    assert shown.headline == document["words"][0]
    assert ("", "answers match") in shown.facts
