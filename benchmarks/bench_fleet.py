"""Speed of several workers that search one simulated machine together.

    python benchmarks/bench_fleet.py [--machines 10] [--first 0] [--seeds 1] [--workers 1 2 4 8]
        [--effects] [--jobs 2] [--output FILE]

All workers have the same machine, except for noise. Their clock is virtual: a launch takes the
seconds that the simulated machine needs for it, and the search's own computing none. One worker
begins with the baseline, the others with the search. Time counts until the pick is within 2% of
the best point of the space, both without noise; launches are those that have begun by then.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.effect_machine import effect_case
from fakes.random_machine import random_case

from autofit.memory.memory_model import MemoryModel
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy, SearchStep
from autofit.search.problem import Observation
from autofit.search.space import Point
from autofit.session.search_problem import token_seconds
from autofit.trial.metric import fastest_repeats
from autofit.trial.trial import Trial
from autofit.tune.explore import lacking_memory
from benchmarks import bench_search
from benchmarks.bench_search import STORES
from benchmarks.search_machine import SearchMachine
from benchmarks.search_run import GOOD_ENOUGH, MOST_LAUNCHES, Session
from benchmarks.search_store import SearchStore


@dataclass(slots=True)
class FleetOutcome:
    """The result of a search: None if no pick was ever within 2%.

    `launches` and `failures` count all launches of the search, `equal` those of a point that was
    being launched at the time, and `share` is the best time over that of the last pick.
    """

    workers: int
    reached_s: float | None = None
    reached: int | None = None
    launches: int = 0
    failures: int = 0
    equal: int = 0
    ended_s: float = 0.0
    share: float = 0.0


@dataclass(slots=True)
class VirtualFleet:
    """Workers with one virtual clock. They know the same trials, so they share one search."""

    session: Session
    workers: int
    outcome: FleetOutcome
    memory: MemoryModel
    study: SearchStudy
    policy: SearchPolicy = field(init=False)
    _running: list[tuple[float, int, int, SearchStep | None, Trial]] = field(default_factory=list)
    _clock_s: float = 0.0

    def __post_init__(self) -> None:
        self.policy = SearchPolicy(self.study, workers=self.workers)

    def run(self, baseline: Trial) -> FleetOutcome:
        """Search until the pick is within 2% of the optimum, or no launch is worth it."""
        self._start(0, None, baseline)
        idle = list(range(1, self.workers))
        while True:
            while idle and self.outcome.launches < MOST_LAUNCHES and self._launch_next(idle[0]):
                idle.pop(0)
            if not self._running:
                break
            self._clock_s, _, worker, step, trial = heapq.heappop(self._running)
            self._finish(step, trial)
            idle.append(worker)
            if self.outcome.reached is not None:
                break
        self.outcome.ended_s = self._clock_s
        self.outcome.share = self.session.outcome.share
        return self.outcome

    def _launch_next(self, worker: int) -> bool:
        self.study.pending = [
            step.proposal.point for _, _, _, step, _ in self._running if step is not None
        ]
        step = self.policy.next_step()
        self.study.cancel()
        if step is None:
            return False
        point = step.proposal.point
        self.outcome.equal += point in self.study.pending
        candidate = self.study.problem.candidate_of(point)
        trial = self.session.launch(candidate, step.phase, asks_fit_only=step.fit_only)
        self._start(worker, step, trial)
        return True

    def _start(self, worker: int, step: SearchStep | None, trial: Trial) -> None:
        self.outcome.launches += 1
        end_s = self._clock_s + trial.seconds
        heapq.heappush(self._running, (end_s, self.outcome.launches, worker, step, trial))

    def _finish(self, step: SearchStep | None, trial: Trial) -> None:
        self.memory.observe(trial)
        if step is not None:
            self._observe(step.proposal.point, trial)
        self.outcome.failures += lacking_memory(trial.outcome) is not None
        ranked = self.study.ranked()
        if ranked:
            candidate = self.study.problem.candidate_of(ranked[0].point)
            self.session.pick(candidate, ranked[0].cost)
        if self.outcome.reached is None and self.session.outcome.share >= GOOD_ENOUGH:
            self.outcome.reached_s, self.outcome.reached = self._clock_s, self.outcome.launches

    def _observe(self, point: Point, trial: Trial) -> None:
        if trial.shows_fit_only:
            self.policy.add_fitting(point)
            return
        workload = self.session.machine.task.workload
        measured = trial.measurement if trial.is_completed else None
        fastest = fastest_repeats(measured, workload) if measured else None
        prompt_s, predicted_s = token_seconds(fastest, workload)
        self.study.add(
            Observation(
                point,
                self.session.cost(trial),
                lacking_memory(trial.outcome),
                trial.seconds,
                prompt_s,
                predicted_s,
            )
        )


def run_fleet(machine: SearchMachine, best_s: float, seed: int, workers: int) -> FleetOutcome:
    """Search a machine with some workers."""
    session = Session(machine, best_s, seed)
    trial = session.launch(machine.task.baseline, "baseline")
    session.outcome.launches = session.outcome.failures = 0
    session.outcome.reached = None
    memory = machine.memory_model()
    study = SearchStudy(machine.problem(memory), seed=seed)
    return VirtualFleet(session, workers, FleetOutcome(workers), memory, study).run(trial)


def measure(seed: int, counts: list[int], seeds: int, *, effects: bool) -> list[FleetOutcome]:
    """Search one machine with every number of workers."""
    case = effect_case(seed) if effects else random_case(seed)
    bench_search.measure(seed, {}, STORES[effects], effect_case if effects else random_case)
    best_s = SearchStore(STORES[effects]).machine(seed).best_s
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as place:
        machine = SearchMachine(case, Path(place))
        return [run_fleet(machine, best_s, k, n) for n in counts for k in range(seeds)]


def report(results: dict[int, list[FleetOutcome]], counts: list[int]) -> str:
    """Return the table of one group of machines as Markdown."""
    lines = [
        "| machine | " + " | ".join(f"{n}: s, launches" for n in counts) + " | times as fast |",
        "| --- |" + " --- |" * (len(counts) + 1),
    ]
    ratios: dict[int, list[float]] = {n: [] for n in counts}
    for seed, outcomes in sorted(results.items()):
        cells, speeds = [], []
        middle = {}
        for n in counts:
            own = [one for one in outcomes if one.workers == n]
            middle[n] = median(math.inf if o.reached_s is None else o.reached_s for o in own)
            launches = median(math.inf if o.reached is None else o.reached for o in own)
            cells.append(f"{middle[n]:.0f}, {launches:g}" if middle[n] < math.inf else "never")
            first = middle[counts[0]]
            if middle[n] < math.inf or first < math.inf:
                ratio = first / middle[n] if middle[n] else 1.0
                ratios[n].append(ratio)
                speeds.append("never" if math.isinf(first) else f"{ratio:.1f}")
        lines.append(f"| {seed} | {' | '.join(cells)} | {', '.join(speeds)} |")
    everything = [one for outcomes in results.values() for one in outcomes]
    lines += [
        "",
        "| workers | times as fast, median | reached 2% | launches | equal launches |",
        "| --- | --- | --- | --- | --- |",
    ]
    for n in counts:
        own = [one for one in everything if one.workers == n]
        reached = sum(one.reached is not None for one in own) / len(own)
        lines.append(
            f"| {n} | {median(ratios[n]):.2f} | {reached:.0%} "
            f"| {median(o.launches for o in own):g} | {sum(o.equal for o in own)} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--effects", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    results: dict[int, list[FleetOutcome]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = {
            pool.submit(
                measure, seed, options.workers, options.seeds, effects=options.effects
            ): seed
            for seed in range(options.first, options.first + options.machines)
        }
        for done in as_completed(waiting):
            results[waiting[done]] = done.result()
            print(f"machine {waiting[done]}: {done.result()}", file=sys.stderr, flush=True)
    text = report(results, options.workers)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
