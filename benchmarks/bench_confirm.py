"""Error rate, power and cost of the rounds that confirm a gain.

    python benchmarks/bench_confirm.py [--repeats 400] [--output FILE]

Each line of the table is one kind of noise, simulated launch by launch through the engine
that a tune uses: equal candidates first, then one with a true gain.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from autofit.session.ranking import Ranking
from autofit.session.rounds import run_rounds
from autofit.statistics.stopping_rule import StoppingRule
from benchmarks.launch_noise import WORKLOAD, Noise, NoisyMachine

RULE = StoppingRule()
MOST_FIXED_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Setting:
    """A kind of noise and the true gain to be found under it."""

    name: str
    noise: Noise
    gain: float = 1.05


SETTINGS = (
    Setting("1% between launches", Noise(between=0.01)),
    Setting("3% between launches", Noise(between=0.03)),
    Setting("10% between launches", Noise(between=0.10), gain=1.18),
    Setting("30% between launches", Noise(between=0.30), gain=1.60),
    Setting("3% within launches", Noise(within=0.03)),
    Setting("30% within launches", Noise(within=0.30), gain=1.35),
    Setting("2% between, 3% within", Noise(between=0.02, within=0.03)),
    Setting("3%, drifting 0.5% a launch", Noise(between=0.03, drift=0.005)),
    Setting("1%, growing 10% a launch to 10%", Noise(between=0.01, growth=1.1)),
    Setting("3%, heavy tails (t, 3 degrees)", Noise(between=0.03, freedom=3.0)),
    Setting(
        "2%, bursts: 1 launch in 20 25% slower",
        Noise(between=0.02, burst_chance=0.05, burst_factor=1.25),
    ),
    Setting(
        "2%, bursts: 1 in 20 begins, 3 launches 50% slower",
        Noise(between=0.02, burst_chance=0.05, burst_factor=1.5, burst_launches=3),
        gain=1.10,
    ),
    Setting("3%, 1 request in 10 stalls", Noise(between=0.03, stall_chance=0.1)),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the repeats, and mean rounds, of one setting.

    `fixed_rounds` is the smallest number of rounds, fixed beforehand, with which a t-test
    finds as many of the gains; `naive_claims` the false claims of a gain by a t-test that
    is looked at after each of twelve rounds.
    """

    repeats: int
    false_gains: float
    false_losses: float
    ties: float
    found: float
    coverage: float
    equal_rounds: float
    gain_rounds: float
    fixed_rounds: int | None
    naive_claims: float


def _machine(setting: Setting, *seed: int) -> NoisyMachine:
    return NoisyMachine(setting.noise, np.random.default_rng([*setting.name.encode(), *seed]))


def run_once(setting: Setting, gain: float, seed: int) -> Ranking:
    """One confirmation of a candidate with a true gain over the baseline."""
    machine = _machine(setting, round(1000 * gain), seed)
    contenders = [machine.contender("base", 10.0 * gain), machine.contender("other", 10.0)]
    return run_rounds(
        contenders, workload=WORKLOAD, metric="request_s", rng=random.Random(seed), rule=RULE
    )


def rates(setting: Setting, repeats: int) -> Rates:
    """The rates of a setting, the same for the same number of repeats."""
    equal = [run_once(setting, 1.0, seed) for seed in range(repeats)]
    gaining = [run_once(setting, setting.gain, seed) for seed in range(repeats)]
    verdicts = [_verdict(one) for one in equal]
    found = [_verdict(one) for one in gaining].count("better") / repeats
    covered = min(
        sum(_covers(one, 1.0) for one in equal), sum(_covers(one, setting.gain) for one in gaining)
    )
    return Rates(
        repeats=repeats,
        false_gains=verdicts.count("better") / repeats,
        false_losses=verdicts.count("worse") / repeats,
        ties=verdicts.count("tie") / repeats,
        found=found,
        coverage=covered / repeats,
        equal_rounds=float(np.mean([one.rounds for one in equal])),
        gain_rounds=float(np.mean([one.rounds for one in gaining])),
        fixed_rounds=_fixed_rounds(setting, found, repeats),
        naive_claims=_naive_claims(setting, repeats),
    )


def _verdict(result: Ranking) -> str:
    decision = result.standing("other").against_baseline
    return decision.verdict if decision else "undecided"


def _covers(result: Ranking, truth: float) -> bool:
    decision = result.standing("other").against_baseline
    ratio = decision.ratio if decision else None
    return ratio is not None and ratio.low <= truth <= ratio.high


def _log_ratios(setting: Setting, gain: float, rounds: int, seed: int) -> np.ndarray:
    """Logarithms of the ratio by round, without a rule that stops."""
    machine = _machine(setting, rounds, seed)
    order = random.Random(seed)
    values = []
    for _ in range(rounds):
        sides = order.sample([0, 1], 2)
        seconds = {side: np.median(machine.seconds(1.0)) for side in sides}
        values.append(math.log(gain * seconds[0] / seconds[1]))
    return np.array(values)


def _fixed_rounds(setting: Setting, found: float, repeats: int) -> int | None:
    runs = np.array(
        [_log_ratios(setting, setting.gain, MOST_FIXED_ROUNDS, seed) for seed in range(repeats)]
    )
    for rounds in range(3, MOST_FIXED_ROUNDS + 1):
        if np.mean(_is_gain(runs[:, :rounds])) >= found:
            return rounds
    return None


def _naive_claims(setting: Setting, repeats: int) -> float:
    runs = np.array([_log_ratios(setting, 1.0, 12, seed) for seed in range(repeats)])
    claims = [_is_gain(runs[:, :rounds]) for rounds in range(3, 13)]
    return float(np.mean(np.any(claims, axis=0)))


def _is_gain(runs: np.ndarray) -> np.ndarray:
    count = runs.shape[1]
    t = runs.mean(axis=1) / (runs.std(axis=1, ddof=1) / math.sqrt(count))
    return t > stats.t.ppf(0.975, count - 1)


HEADER = (
    "| noise of a launch | false gains | false losses | ties | true gain | found | coverage "
    "| rounds, equal | rounds, gain | fixed design | naive false gains |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def row(setting: Setting, found: Rates) -> str:
    """One line of the table."""
    fixed = f"{found.fixed_rounds}" if found.fixed_rounds else f"> {MOST_FIXED_ROUNDS}"
    cells = (
        setting.name,
        f"{found.false_gains:.1%}",
        f"{found.false_losses:.1%}",
        f"{found.ties:.0%}",
        f"{setting.gain - 1:.0%}",
        f"{found.found:.1%}",
        f"{found.coverage:.1%}",
        f"{found.equal_rounds:.1f}",
        f"{found.gain_rounds:.1f}",
        fixed,
        f"{found.naive_claims:.1%}",
    )
    return f"| {' | '.join(cells)} |"


INTRODUCTION = """\
# Confirmation under noise

Made by `benchmarks/bench_confirm.py`: {repeats} simulated confirmations of two equal
candidates and {repeats} of one with a true gain, for each kind of noise, through the engine a
tune uses; at most {max_rounds} rounds, alpha {alpha:.0%}, smallest effect {min_effect:.0%}.
A launch answers three requests; their median is its value.

- false gains, false losses: equal candidates called better or worse (5% together, nominal);
  all others were ties or, where the noise is too high to say, undecided.
- coverage: intervals that held the true ratio, the lower of equal and gaining runs.
- rounds: mean number of rounds until the rule decided or ended.
- fixed design: rounds, fixed beforehand, that an ordinary t-test needs to find as many gains.
- naive false gains: those of an ordinary t-test looked at after every round.
"""


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=400)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    introduction = INTRODUCTION.format(
        repeats=options.repeats,
        max_rounds=RULE.max_rounds,
        alpha=RULE.alpha,
        min_effect=RULE.min_effect,
    )
    lines = [introduction, HEADER]
    print("\n".join(lines), flush=True)
    for setting in SETTINGS:
        began = time.monotonic()
        lines.append(row(setting, rates(setting, options.repeats)))
        print(lines[-1], flush=True)
        print(f"{setting.name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
