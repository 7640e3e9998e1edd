"""Decisions that are taken while rounds are added."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule, decide

RULE = StoppingRule()


def _noisy(gain, deviation, rounds=12, seed=1):
    random = np.random.default_rng(seed)
    return list(math.log(gain) + deviation * random.standard_normal(rounds))


def _run(values, rule=RULE):
    """Return the decision at the round at which the rule stops."""
    decision = decide([], rule)
    for rounds in range(1, len(values) + 1):
        decision = decide(values[:rounds], rule)
        if decision.verdict != "undecided":
            break
    return decision


def test_a_large_gain_takes_few_rounds():
    """A 30% gain over 3% noise is shown within five rounds."""
    decision = _run(_noisy(1.3, 0.03))

    assert decision.verdict == "better"
    assert decision.decided_at <= 5
    assert decision.ratio.low > 1.0


def test_a_large_loss_takes_few_rounds():
    """A loss is shown as fast as a gain."""
    decision = _run(_noisy(1 / 1.3, 0.03))

    assert decision.verdict == "worse"
    assert decision.ratio.high < 1.0


def test_equal_contenders_with_little_noise_tie():
    """Equal contenders with 1% noise are a tie."""
    decision = _run(_noisy(1.0, 0.01))

    assert decision.verdict == "tie"
    assert 1 / 1.03 < decision.ratio.low < decision.ratio.high < 1.03


def test_a_gain_below_the_smallest_effect_is_a_tie():
    """A gain of 1%, however certain, is a tie where 3% is the smallest effect."""
    decision = _run(_noisy(1.01, 0.001))

    assert decision.verdict == "tie"
    assert decision.ratio.low > 1.0


def test_a_smaller_effect_makes_a_small_gain_count():
    """A gain of 1% is better where 0.2% is the smallest effect."""
    assert _run(_noisy(1.01, 0.001), StoppingRule(min_effect=0.002)).verdict == "better"


def test_much_noise_leaves_the_verdict_undecided():
    """Equal contenders under 20% noise are neither different nor a tie."""
    decision = _run(_noisy(1.0, 0.2))

    assert decision.verdict == "undecided"
    assert decision.ratio.n == 12
    assert decision.decided_at is None


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_nothing_is_decided_before_three_rounds(rounds):
    """Fewer than three rounds give no interval and no verdict."""
    decision = decide([0.5] * rounds, RULE)

    assert decision.verdict == "undecided"
    assert decision.ratio is None or decision.ratio.low is None


def test_without_noise_three_rounds_decide():
    """Ratios that are exactly equal decide at the first look."""
    assert decide([0.1] * 3, RULE).verdict == "better"
    assert decide([0.0] * 3, RULE).verdict == "tie"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=12))
def test_the_interval_never_widens(values):
    """More rounds only narrow the interval, and it contains the estimate."""
    decisions = [decide(values[:rounds], RULE) for rounds in range(3, len(values) + 1)]

    for decision in decisions:
        assert decision.ratio.low <= decision.ratio.median <= decision.ratio.high
    for before, after in itertools.pairwise(decisions):
        assert before.ratio.low <= after.ratio.low
        assert after.ratio.high <= before.ratio.high


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=12))
def test_swapping_the_contenders_swaps_the_verdict(values):
    """B against A has the opposite verdict of A against B."""
    mirrored = {"better": "worse", "worse": "better", "tie": "tie", "undecided": "undecided"}

    one, other = decide(values, RULE), decide([-value for value in values], RULE)

    assert other.verdict == mirrored[one.verdict]
    assert other.ratio.low == pytest.approx(1 / one.ratio.high, rel=1e-3)


def test_a_mirrored_decision_is_that_of_the_swapped_contenders():
    """Mirroring inverts the ratio and the verdict, and keeps the number of rounds."""
    decision = _run(_noisy(1.3, 0.03))

    mirrored = decision.mirrored()

    assert (mirrored.verdict, mirrored.decided_at) == ("worse", decision.decided_at)
    assert mirrored.ratio.low == pytest.approx(1 / decision.ratio.high)
    assert mirrored.mirrored().verdict == decision.verdict
    assert decide([0.0] * 3, RULE).mirrored().verdict == "tie"
    assert decide([], RULE).mirrored().ratio is None


def test_a_verdict_stays():
    """Rounds after the verdict, run for other contenders, do not change it."""
    values = [*_noisy(1.3, 0.03, rounds=6), -0.4, -0.4, -0.4]

    early, late = decide(values[:6], RULE), decide(values, RULE)

    assert early.verdict == late.verdict == "better"
    assert early.decided_at == late.decided_at


def test_rounds_beyond_the_rule_do_not_count():
    """Values after the last planned round leave the decision as it is."""
    values = _noisy(1.0, 0.1, rounds=20)

    assert decide(values, RULE) == decide(values[:12], RULE)


def test_more_comparisons_need_more_rounds():
    """Alpha is shared by the comparisons, so each needs more evidence."""
    values = _noisy(1.08, 0.03, seed=4)

    alone, among_four = _run(values), _run(values, StoppingRule(comparisons=4))

    assert alone.verdict == among_four.verdict == "better"
    assert alone.decided_at < among_four.decided_at


@pytest.mark.parametrize("rounds", [3, 5, 8, 12, 20])
def test_alpha_is_spent_exactly(rounds):
    """Spending increases with the rounds and ends at alpha over the comparisons."""
    rule = StoppingRule(max_rounds=rounds, comparisons=2)
    spent = [rule.alpha_spent(k) for k in range(MIN_ROUNDS, rounds + 1)]

    assert sorted(set(spent)) == spent
    assert spent[-1] == pytest.approx(0.025)


def test_few_rounds_use_the_t_test_only():
    """Too few rounds for a sign-flip test are decided by the t-test."""
    assert StoppingRule(max_rounds=5).first_sign_flip_round == 6
    assert _run(_noisy(1.2, 0.02, rounds=5), StoppingRule(max_rounds=5)).verdict == "better"


def test_a_rule_of_two_rounds_is_rejected():
    """A rule that could never decide is an error of the caller."""
    with pytest.raises(ValueError, match="at least 3 rounds"):
        StoppingRule(max_rounds=2)


def test_bursts_do_not_hide_a_gain():
    """A gain of 15% is found although bursts disturbed two of twelve rounds."""
    values = _noisy(1.15, 0.02)
    values[3] -= 0.5
    values[7] += 0.6

    assert _run(values).verdict == "better"


def test_equal_contenders_are_rarely_claimed_different():
    """In 150 simulated races of equal contenders about 5% end with a false claim."""
    claims = [_run(_noisy(1.0, 0.05, seed=seed)).verdict for seed in range(150)]

    # 5% of 150 and two and a half standard deviations.
    assert sum(verdict in ("better", "worse") for verdict in claims) <= 14
    assert "undecided" in claims


@pytest.mark.parametrize("ended_at", [3, 5, 7])
def test_an_early_end_spends_the_rest_of_alpha(ended_at):
    """The last look spends what is left: a narrower interval, and still few false claims."""
    rng = np.random.default_rng(ended_at)
    planned, ended = StoppingRule(), StoppingRule(ended_at=ended_at)
    runs = rng.normal(0.0, 0.03, size=(300, ended_at))

    wide, narrow = decide(list(runs[0]), planned).ratio, decide(list(runs[0]), ended).ratio
    claims = sum(decide(list(run), ended).verdict in ("better", "worse") for run in runs)

    assert narrow.high - narrow.low < wide.high - wide.low
    assert claims <= 0.09 * len(runs)
