"""Contenders in rounds: launches, dropped contenders, and the winner."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from session.rounds_sample import WORKLOAD, Bench, names, trial_of

from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, run_rounds
from autofit.statistics.stopping_rule import StoppingRule
from autofit.trial.metric import Metric
from autofit.trial.outcome import Crashed, OutOfMemory

_SLOW_BASELINE = {"base": 20.0, "a": 10.0, "b": 10.1}


def _run(contenders, metric: Metric = "request_s", seed=7, **options) -> Ranking:
    return run_rounds(
        contenders, workload=WORKLOAD, metric=metric, rng=random.Random(seed), **options
    )


def test_a_gain_is_confirmed_with_its_interval():
    """A candidate 30% faster than the baseline wins within a few rounds."""
    bench = Bench()

    result = _run([bench.contender("base", 13.0), bench.contender("fast", 10.0)])

    assert (result.winner, result.verdict, result.ended) == ("fast", "better", "decided")
    assert result.gain.low < 1.3 < result.gain.high
    assert result.gain.low > 1.0
    assert 3 <= result.rounds <= 5
    assert result.gain.n == result.rounds


def test_a_higher_rate_is_faster():
    """A gain is above 1 for tokens per second, too."""
    bench = Bench()

    result = _run([bench.contender("base", 13.0), bench.contender("fast", 10.0)], metric="tg")

    assert result.winner == "fast"
    assert result.gain.median == pytest.approx(1.3, rel=0.05)


def test_each_round_launches_each_contender_once_in_random_order():
    """Rounds are interleaved, and the order differs from round to round."""
    bench = Bench(noise=0.2)
    contenders = [bench.contender(name, 10.0) for name in "abc"]

    result = _run(contenders)

    orders = [names(bench.order, number) for number in range(1, result.rounds + 1)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len({tuple(order) for order in orders}) > 1


def test_quiet_equals_are_a_tie():
    """Equal contenders with little noise are a tie, and the rounds stop early."""
    bench = Bench(noise=0.005)

    result = _run([bench.contender("base", 10.0), bench.contender("same", 10.0)])

    assert result.ended == "decided"
    assert result.rounds < 12
    assert result.standing("same").against_baseline.verdict == "tie"


def test_noisy_equals_stay_undecided_when_the_rounds_end():
    """Equal contenders under heavy noise are neither better nor tied."""
    bench = Bench(noise=0.3)

    result = _run([bench.contender("base", 10.0), bench.contender("same", 10.0)])

    assert (result.ended, result.rounds) == ("rounds", 12)
    assert result.standing("same").against_baseline.verdict == "undecided"
    assert len(result.undecided) == 1


def test_a_slower_contender_is_dropped():
    """One that is clearly slower than the fastest is not launched again."""
    bench = Bench(noise=0.02)
    contenders = [
        bench.contender("base", 12.0),
        bench.contender("slow", 20.0),
        bench.contender("a", 10.0),
        bench.contender("b", 10.1),
    ]

    result = _run(contenders)

    dropped = result.standing("slow").dropped
    assert dropped.why == "slower"
    assert dropped.than in ("a", "b", "base")
    assert bench.launches_of("slow") == dropped.round < result.rounds
    assert dropped.round <= bench.launches_of("base") <= result.rounds
    assert result.standing("slow").against_baseline.verdict == "worse"


def test_a_beaten_baseline_is_launched_no_more():
    """Once all others are faster than the baseline, only they are compared."""
    bench = Bench()
    contenders = [bench.contender(name, speed) for name, speed in _SLOW_BASELINE.items()]

    result = _run(contenders)

    assert bench.launches_of("base") < bench.launches_of("a") == result.rounds
    assert result.standing("base").dropped is None
    assert result.gain.n == bench.launches_of("base")
    assert result.gain.low > 1.1


def test_a_baseline_that_is_fastest_wins():
    """It is the winner, and there is no gain."""
    bench = Bench()

    result = _run([bench.contender("base", 10.0), bench.contender("slow", 15.0)])

    assert result.winner == "base"
    assert result.gain is None
    assert result.verdict is None


def test_a_failing_contender_is_dropped_with_its_outcome():
    """A failure in any round drops a contender."""
    bench = Bench()
    failure = OutOfMemory("prompt", "cudaMalloc failed: out of memory", buffer="pool")
    contenders = [
        bench.contender("base", 12.0),
        bench.contender("edge", 8.0, fails_in=3, outcome=failure),
        bench.contender("safe", 10.0),
    ]

    result = _run(contenders)

    assert result.winner == "safe"
    assert result.standing("edge").dropped.outcome == failure
    assert bench.launches_of("edge") == 3
    assert len(result.standing("edge").values) == 2


def test_a_failing_baseline_leaves_no_gain():
    """Without a baseline the contenders are still compared, and the gain is not known."""
    bench = Bench()
    contenders = [
        bench.contender("base", 12.0, fails_in=1, outcome=Crashed("load", "gone")),
        bench.contender("a", 14.0),
        bench.contender("b", 10.0),
    ]

    result = _run(contenders)

    assert result.winner == "b"
    assert result.gain is None
    assert result.standing("base").dropped.why == "failed"
    assert result.standing("a").dropped.than == "b"


def test_contenders_without_a_baseline():
    """They are compared with each other."""
    bench = Bench()

    result = _run([bench.contender("a", 14.0), bench.contender("b", 10.0)], has_baseline=False)

    assert (result.winner, result.baseline, result.gain) == ("b", None, None)


def test_there_is_no_winner_if_all_fail():
    """The rounds end as failed."""
    bench = Bench()
    lost = Crashed("load", "gone")

    result = _run([bench.contender(name, 1.0, fails_in=1, outcome=lost) for name in "ab"])

    assert (result.winner, result.leader, result.ended) == (None, None, "failed")


def test_a_single_contender_is_measured_for_an_interval():
    """One contender alone is launched as often as an interval needs, and wins."""
    bench = Bench()

    result = _run([bench.contender("only", 10.0)], has_baseline=False)

    assert (result.winner, result.rounds) == ("only", 3)
    assert result.standing("only").estimate.low is not None


def test_a_completed_launch_that_measured_nothing_is_a_failure():
    """Without a number there is nothing to compare."""
    empty = Contender("empty", lambda _: trial_of(1.0, outcome=Crashed("warmup", "no answer")))
    bench = Bench()

    result = _run([bench.contender("base", 10.0), empty])

    assert result.winner == "base"
    assert result.standing("empty").dropped.round == 1


@pytest.mark.parametrize("launches", [0, 1, 5, 9])
def test_the_budget_ends_the_rounds_at_any_launch(launches):
    """No launch follows; the launches before are in the ranking."""
    bench = Bench(noise=0.2)
    contenders = [bench.contender(name, 10.0) for name in "abc"]

    result = _run(contenders, has_time=lambda _: len(bench.order) < launches)

    assert len(bench.order) == launches
    assert result.ended == "budget"
    assert result.rounds == launches // 3
    assert sum(len(standing.trials) for standing in result.standings) == launches


def test_two_rounds_give_no_interval():
    """A budget of two rounds ends undecided, without limits of the gain."""
    bench = Bench()
    contenders = [bench.contender("base", 13.0), bench.contender("fast", 10.0)]

    result = _run(contenders, has_time=lambda _: len(bench.order) < 4)

    assert (result.verdict, result.gain.n) == ("undecided", 2)
    assert result.gain.low is None


def test_fixed_rounds_are_all_launched():
    """Whatever the ratios, nothing is dropped for its speed and nothing ends the rounds early."""
    bench = Bench(noise=0.01)
    contenders = [bench.contender("base", 10.0), bench.contender("slow", 20.0)]

    result = _run(contenders, is_fixed=True, rule=StoppingRule(max_rounds=8))

    assert (result.ended, result.rounds) == ("rounds", 8)
    assert bench.launches_of("slow") == 8


def test_contender_takes_part_in_its_own_rounds_only():
    """A contender with fewer rounds leaves the others alone afterwards."""
    bench = Bench()
    contenders = [
        bench.contender("base", 10.0),
        replace(bench.contender("neighbour", 11.0), max_rounds=2),
    ]

    _run(contenders, is_fixed=True, rule=StoppingRule(max_rounds=5))

    assert (bench.launches_of("base"), bench.launches_of("neighbour")) == (5, 2)


def test_failure_of_a_contender_that_must_run_ends_the_rounds():
    """The round is completed, so that all contenders have the same launches."""
    bench = Bench()
    lost = Crashed("load", "it died")
    contenders = [bench.contender("A", 10.0, fails_in=2, outcome=lost), bench.contender("B", 9.0)]

    result = _run(contenders, must_run=("A", "B"))

    assert (result.ended, result.rounds) == ("failed", 2)
    assert bench.launches_of("B") == 2


def test_rule_may_depend_on_the_first_round():
    """A function plans the rounds once it knows how long launches take."""
    bench = Bench()
    seen = []

    def plan(first):
        seen.extend(first)
        return StoppingRule(max_rounds=4)

    result = _run(
        [bench.contender("base", 10.0), bench.contender("same", 10.0)], rule=plan, is_fixed=True
    )

    assert (result.rounds, result.rule.max_rounds) == (4, 4)
    assert sorted(trial.number for trial in seen) == [1, 2]


def test_drift_affects_all_contenders():
    """A machine that slows by 4% each round does not hide a gain of 10%."""
    bench = Bench(noise=0.01)

    def slowing(seconds):
        return lambda number: seconds * 1.04**number

    result = _run([bench.contender("base", slowing(11.0)), bench.contender("a", slowing(10.0))])

    assert result.verdict == "better"
    assert result.rounds <= 6


def test_among_ties_more_headroom_wins():
    """Of two equally fast candidates the one that leaves more memory is recommended."""
    bench = Bench(noise=0.002)
    contenders = [
        bench.contender("base", 15.0, free_mib=9000.0),
        bench.contender("tight", 10.0, free_mib=200.0),
        bench.contender("roomy", 10.05, free_mib=900.0),
    ]

    result = _run(contenders)

    assert result.leader == "tight"
    assert result.winner == "roomy"
    assert result.tied == ("roomy",)
    assert result.verdict == "better"


def test_a_certain_gain_is_not_given_up_for_headroom():
    """A tie with more headroom that may not beat the baseline does not win."""
    bench = Bench(noise=0.001)
    contenders = [
        bench.contender("base", 10.35, free_mib=9000.0),
        bench.contender("middle", 10.15, free_mib=5000.0),
        bench.contender("fast", 10.0, free_mib=200.0),
    ]

    result = _run(contenders)

    assert result.winner == "fast"
    assert result.standing("middle").against_leader.verdict == "tie"
    assert result.standing("middle").against_baseline.verdict != "better"


def test_outliers_are_kept_and_shown():
    """A disturbed launch stays in the estimate, and its round is named."""
    bench = Bench(noise=0.01)
    burst = bench.contender("base", lambda number: 30.0 if number == 4 else 10.0)
    # A close second keeps the rounds going.
    result = _run([burst, bench.contender("close", 9.8)], rule=StoppingRule(min_effect=0.001))

    standing = result.standing("base")
    assert standing.outlier_rounds == (4,)
    assert len(standing.values) == result.rounds
    assert max(standing.values.values()) == pytest.approx(30.0, rel=0.05)


def test_the_chance_of_a_false_claim_is_shared():
    """With three contenders against the baseline each gets a third of alpha."""
    bench = Bench()

    result = _run([bench.contender(name, 10.0 + place) for place, name in enumerate("abcd")])

    assert result.rule.comparisons == 3


def test_ids_must_differ():
    """Two contenders of one id are refused."""
    bench = Bench()

    with pytest.raises(ValueError, match="same id"):
        _run([bench.contender("a", 1.0), bench.contender("a", 2.0)])


def test_a_ranking_is_json():
    """A ranking with failures can be written and read."""
    bench = Bench()
    contenders = [
        bench.contender("base", 12.0),
        bench.contender("edge", 8.0, fails_in=2, outcome=Crashed("load", "gone")),
        bench.contender("fast", 10.0),
    ]

    data = json.loads(json.dumps(_run(contenders).to_dict()))

    assert data["winner"] == "fast"
    assert data["gain"]["n"] == data["rounds"]
    assert [one["id"] for one in data["contenders"]] == ["base", "edge", "fast"]
    assert data["contenders"][1]["dropped"]["outcome"]["kind"] == "crashed"


def test_each_round_emits_the_leader_and_its_ratio():
    """It has an interval from the third round on."""
    bench, heard = Bench(), []

    result = _run(
        [bench.contender("base", 13.0), bench.contender("fast", 10.0)], emit=heard.append
    )

    assert [event.number for event in heard] == list(range(1, result.rounds + 1))
    assert {(event.leader, event.baseline, event.max_rounds) for event in heard} == {
        ("fast", "base", 12)
    }
    assert [event.ratio.low is None for event in heard[:3]] == [True, True, False]
    assert heard[-1].ratio == result.gain


def test_a_round_led_by_the_baseline_has_no_ratio():
    """There is no gain over itself."""
    bench, heard = Bench(), []

    _run([bench.contender("base", 10.0), bench.contender("slow", 13.0)], emit=heard.append)

    assert {(event.leader, event.ratio) for event in heard} == {("base", None)}
