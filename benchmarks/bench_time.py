"""Seconds of a tune by phase, and the share of the best speed that its winner reaches.

    python benchmarks/bench_time.py [--machines 14] [--seeds 2] [--launches 30] [--output FILE]

Whole tunes of random simulated machines that were not looked at while the search was made, launch
by launch and on a clock of their own.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.random_machine import random_case
from quality.simulated_answers import NO_CHANGES
from session.task_sample import options

from autofit.quality.quality_gate import QualityGate
from autofit.search.optuna_study import SearchStudy
from autofit.session.budget import Budget
from autofit.session.runner import TrialRunner
from autofit.session.task_setup import search_header
from autofit.study.study_folder import Study
from autofit.trial.purpose import PHASES
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import run_tune
from benchmarks.bench_kv import TimedLaunching
from benchmarks.bench_search import SEEN
from benchmarks.search_machine import SearchMachine

BUDGET_S = 7200.0


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of one tune by phase, and its result.

    Attributes:
        gain: the printed speedup, its lower and its upper limit; None without one.
        true_gain: the speedup without noise; None if the baseline or the winner does not run.
        rounds: launches of the confirm phase.
    """

    machine: int
    seconds: dict[str, float]
    gain: tuple[float, float, float] | None
    true_gain: float | None
    rounds: int

    @property
    def is_false(self) -> bool:
        """True if the interval claims a gain that is not there, or excludes the true one."""
        if self.gain is None or self.true_gain is None:
            return False
        _, low, high = self.gain
        return not low * 0.999 <= self.true_gain <= high * 1.001


def spend(seed: int, run_seed: int, launches: int) -> Spent:
    """Tune one machine."""
    with tempfile.TemporaryDirectory(prefix="bench-time-") as place:
        folder = Path(place)
        machine = SearchMachine(random_case(seed), folder)
        task, memory = machine.task, machine.memory_model()
        launching = TimedLaunching(
            machine.simulation.with_seed(run_seed), task.workload.context, client_of=NO_CHANGES
        )
        head = search_header(task, options(task.model_path, task.runtime.program), seed=1, argv=[])
        with Study.create(folder / "study", head) as study:
            runner = TrialRunner(
                study=study,
                launching=launching,
                budget=Budget(lambda: launching.now_s, BUDGET_S, launches),
                emit=lambda _: None,
                wall_clock=lambda: launching.now_s,
                memory=memory,
            )
            search = SearchStudy(machine.problem(memory), seed=run_seed)
            gate = QualityGate(None, runner.note)
            result = run_tune(
                Exploration(task, runner, memory, search), gate, seed=run_seed
            ).to_dict()
        seconds: Counter[str] = Counter()
        for trial in runner.trials:
            seconds[trial.phase] += trial.seconds
        return Spent(
            seed,
            dict(seconds),
            _gain(result),
            _true_gain(machine, runner),
            sum(trial.phase == "confirm" for trial in runner.trials),
        )


def _gain(result: dict) -> tuple[float, float, float] | None:
    gain = result.get("gain")
    if not gain or gain.get("low") is None or (result["winner"] or {}).get("is_baseline"):
        return None
    return gain["median"], gain["low"], gain["high"]


def _true_gain(machine: SearchMachine, runner: TrialRunner) -> float | None:
    proofs = [trial for trial in runner.trials if trial.phase == "prove" and trial.is_completed]
    base, own = machine.fitted_truth(), machine.truth(proofs[-1].candidate) if proofs else None
    return base / own if base and own else None


def _cells(spent: Sequence[Spent]) -> list[str]:
    totals = [sum(one.seconds.values()) for one in spent]
    phases = [median(one.seconds.get(phase, 0.0) for one in spent) for phase in PHASES]
    true = [one.true_gain for one in spent if one.true_gain]
    return [
        *(f"{seconds:.0f}" for seconds in (*phases, median(totals))),
        f"{median(one.rounds for one in spent):.0f}",
        f"{median(true):.2f}" if true else "",
        f"{sum(one.is_false for one in spent)} of {sum(one.gain is not None for one in spent)}",
    ]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=14)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options_ = parser.parse_args()
    held_out = [seed for seed in range(60) if seed not in SEEN][: options_.machines]
    jobs = [(seed, run) for seed in held_out for run in range(1, options_.seeds + 1)]
    with ProcessPoolExecutor(options_.jobs) as pool:
        done = list(pool.map(spend, *zip(*jobs, strict=True), [options_.launches] * len(jobs)))
    rows = [
        "| machine | " + " | ".join(PHASES) + " | all | launches in rounds | true gain | false |",
        "| --- |" + " ---: |" * (len(PHASES) + 4),
    ]
    by_machine = {seed: [one for one in done if one.machine == seed] for seed in held_out}
    rows += [f"| {seed} | {' | '.join(_cells(own))} |" for seed, own in by_machine.items()]
    rows.append(f"| all, median | {' | '.join(_cells(done))} |")
    text = "\n".join(["# Seconds of a tune by phase", "", *rows, ""])
    print(text)
    if options_.output:
        options_.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
