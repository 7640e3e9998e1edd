"""The verdict and the figures of a comparison, from trials made by hand."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from session.confirm_sample import WORKLOAD, Bench

from autofit.compare.compare_presets import ComparisonResult
from autofit.compare.comparison import comparison_document, judge
from autofit.output.text.conclusion import answer
from autofit.quality.answer_check import AnswerCheck
from autofit.session.rounds import run_rounds
from autofit.statistics.stopping_rule import StoppingRule
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.outcome import Crashed

SAME = AnswerCheck("equal", "A", None, None, ("the same answers",))
OTHER = AnswerCheck("different", "A", None, None, ("OTHER ANSWERS",))
UNKNOWN = AnswerCheck("unknown", "A", None, None, ("not compared",))
DIED = Crashed("prompt", "it died")
ABOUT = {"A": {"name": "a.json"}, "B": {"name": "b.json"}}


def _compared(a_s=1.0, b_s=1.0, answers=SAME, *, a_fails=None, b_fails=None) -> ComparisonResult:
    bench = Bench(noise=0.01)
    contenders = [
        bench.contender("A", a_s, fails_in=a_fails, outcome=DIED),
        bench.contender("B", b_s, fails_in=b_fails, outcome=DIED),
    ]
    confirmation = run_rounds(
        contenders,
        workload=WORKLOAD,
        metric="request_s",
        rng=random.Random(1),
        rule=StoppingRule(),
    )
    trials = {
        name: tuple(t for t in bench.trials if t.candidate.params["name"] == name)
        for name in ("A", "B")
    }
    return ComparisonResult(
        trials=trials, scoring=(), confirmation=confirmation, answers=answers, max_rounds=12
    )


def _document(compared: ComparisonResult) -> dict:
    return comparison_document(compared, WORKLOAD, "request_s", 0.03, ABOUT)


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
def test_speed_decides_where_answers_are_right(b_s, answers, verdict, because):
    """Other answers than allowed make a faster one worse; unknown ones claim nothing."""
    found = judge(_compared(b_s=b_s, answers=answers))

    assert (found.verdict, found.because) == (verdict, because)


@pytest.mark.parametrize(
    ("fails", "verdict"),
    [
        ({"b_fails": 2}, "worse"),
        ({"a_fails": 2}, "better"),
        ({"a_fails": 1, "b_fails": 1}, "undecided"),
    ],
)
def test_who_fails_in_any_round_is_worse(fails, verdict):
    """A launch that dies now and then is a failure, and its line is shown."""
    compared = _compared(**fails)

    document = _document(compared)

    assert (document["verdict"], document["because"]) == (verdict, "failure")
    assert any("failed (crashed): it died" in words for words in document["words"])


def test_ratios_say_how_many_times_faster_b_is():
    """Seconds and rates alike: half the time and twice the rate are a ratio of two."""
    document = _document(_compared(b_s=0.5))

    for key in ("request_s", "pp_per_s", "tg_per_s", "ttft_s"):
        ratio = document["ratios"][key]
        assert ratio["median"] == pytest.approx(2.0, rel=0.05)
        assert ratio["low"] < ratio["median"] < ratio["high"]
    assert document["ratio"] == document["ratios"]["request_s"]


def test_first_and_second_request_have_figures_of_their_own():
    """The kept warm-up is the first, what is asked again like it the second."""
    first = Sample(512, 0.4, 0.4, 129, 1.0, is_warmup=True)
    second = Sample(512, 0.2, 0.2, 129, 1.0, order=1)
    third = Sample(512, 0.1, 0.1, 129, 1.0, order=2)
    compared = _compared()
    measured = Measurement(samples=(first, second, third))
    trials = {
        name: tuple(replace(trial, measurement=measured) for trial in trials)
        for name, trials in compared.trials.items()
    }

    side = _document(replace(compared, trials=trials))["a"]

    assert side["first_request"]["pp_per_s"]["median"] == pytest.approx(1280)
    assert side["second_request"]["pp_per_s"]["median"] == pytest.approx(2560)
    assert side["second_request"]["ttft_s"]["median"] == pytest.approx(0.2)


def test_memory_is_the_most_used_and_the_least_free():
    """Over all launches of a side; a counter that is missing stays unknown."""
    compared = _compared()
    a = [
        replace(
            trial, measurement=replace(trial.measurement, free_mib={"GPU0": mib, "GPU1": None})
        )
        for trial, mib in zip(compared.trials["A"], (300.0, 100.0, 200.0), strict=False)
    ]

    document = _document(replace(compared, trials={**compared.trials, "A": tuple(a)}))

    assert document["a"]["free_mib"] == {"GPU0": 100.0, "GPU1": None}


def test_the_document_is_json_and_shown_with_its_study():
    """`show` prints the verdict of a comparison, not that nothing was proven."""
    document = _document(_compared(b_s=0.8))

    shown = answer(json.loads(json.dumps(document, allow_nan=False)))

    assert shown.headline == document["words"][0]
    assert shown.headline.startswith("better: B has 1.2")
    assert ("", "the same answers") in shown.facts
