"""Time that a tune saves by scoring narrow KV types before rounds, with poor and with good q8_0.

    python benchmarks/bench_kv.py [--machines 16] [--launches 30 10] [--output FILE]

Whole tunes of random simulated machines, launch by launch and on a clock of their own; next to
each one that scores a KV type with the winner, after all rounds. Where launches have no
process there is no llama-perplexity either: a score takes two launches.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.random_machine import random_case
from quality.simulated_answers import NO_CHANGES, KvChanges
from session.physical_launching import PhysicalLaunching
from session.task_sample import options

from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import PlannedRequest, RequestPlan
from autofit.search.optuna_study import SearchStudy
from autofit.session.budget import Budget
from autofit.session.finalist import baseline_finalist
from autofit.session.runner import TrialRunner
from autofit.session.task_setup import search_header
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.trial import Trial
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import run_tune
from benchmarks.search_machine import SearchMachine

POOR = KvChanges({"q8_0": 0.3})
BUDGET_S = 7200.0
# The prompt set has eight short prompts, and one that fills the context.
_ASKED = tuple(PlannedRequest(200, 24) for _ in range(8))


@dataclass(slots=True)
class TimedLaunching(PhysicalLaunching):
    """Launches that take their time on a clock of their own."""

    now_s: float = 0.0

    def result(self, plan: LaunchPlan, request_plan: RequestPlan) -> LaunchResult:
        """Return the simulated result; questions take as long as their requests."""
        asked = request_plan
        if request_plan.output_recorder is not None:
            asked = RequestPlan("ask", (*_ASKED, PlannedRequest(self.context - 200, 40)))
        found = PhysicalLaunching.result(self, plan, asked)
        self.now_s += self.made[-1][1].seconds
        return found


class LateGate(QualityGate):
    """A gate that leaves narrow KV types to the winner's check."""

    __slots__ = ()

    def is_open(self, _: Candidate) -> bool:
        """Nothing is scored before the rounds."""
        return False


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a tune, and the true time of a request with its winner."""

    launches: int
    rounds_in_vain: int
    seconds: float
    winner_s: float | None


@dataclass(slots=True)
class Comparison:
    """Tunes of one machine for each kind of answers, in both ways."""

    machine: SearchMachine
    folder: Path
    max_launches: int
    made: int = field(default=0)

    def spent(self, gate_type: type[QualityGate], changes: KvChanges) -> Spent:
        """One tune."""
        about, memory = self.machine.task, self.machine.memory_model()
        launching = TimedLaunching(
            self.machine.simulation.with_seed(1), about.workload.context, client_of=changes
        )
        self.made += 1
        head = search_header(
            about, options(about.model_path, about.runtime.program), seed=1, argv=[]
        )
        with Study.create(self.folder / f"study-{self.made}", head) as study:
            runner = TrialRunner(
                study=study,
                launching=launching,
                budget=Budget(lambda: launching.now_s, BUDGET_S, self.max_launches),
                emit=lambda _: None,
                wall_clock=lambda: launching.now_s,
                memory=memory,
            )
            search = SearchStudy(self.machine.problem(memory), seed=1)
            evaluator = OutputEvaluator(runner, about, baseline_finalist(about))
            gate = gate_type(evaluator, runner.note)
            result = run_tune(Exploration(about, runner, memory, search), gate, seed=1)
        return self._spent(result.to_dict(), runner.trials, launching.now_s)

    def _spent(self, result: dict, trials: Sequence[Trial], seconds: float) -> Spent:
        winner = Candidate(result["winner"]["params"]) if result["winner"] else None
        poor = {one["cache_type_k"] for one in result["kv_scores"] if one["holds"] is False}
        in_vain = [t for t in trials if t.phase == "confirm"
                   and t.candidate.get_str("cache_type_k", "f16") in poor]  # fmt: skip
        truth = None
        if winner is not None:
            is_own = result["winner"]["layout"] in ("frozen", "runtime_fit")
            truth = self.machine.fitted_truth() if is_own else self.machine.truth(winner)
        return Spent(len(trials), len(in_vain), seconds, truth)


INTRODUCTION = """\
# Scores of narrow KV types

Made by `benchmarks/bench_kv.py`: whole tunes of random simulated machines with two hours
each, next to tunes that score a KV type with the winner, after all rounds. Answers with q8_0 are
either poor (three tokens in ten are others) or the same as those with f16.

- launches: all of a tune; rounds in vain: launches of rounds with a type that was found poor.
- winner's time: what a request truly takes with the winner, divided by that of the other tune.

A tune that scores last and has nothing left to recommend keeps the runtime's own choice without
searching on: it takes fewer launches then.
"""

HEADER = (
    "| machine | answers with q8_0 | launches, scored first | scored last | rounds in vain "
    "| minutes | scored last | winner's time, first / last |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def row(name: str, kind: str, first: Spent, last: Spent) -> str:
    """One line of the table."""
    ratio = first.winner_s / last.winner_s if first.winner_s and last.winner_s else math.nan
    return (
        f"| {name} | {kind} | {first.launches} | {last.launches} | {last.rounds_in_vain} "
        f"| {first.seconds / 60:.1f} | {last.seconds / 60:.1f} | {ratio:.3f} |"
    )


def summary(kind: str, pairs: Sequence[tuple[Spent, Spent]]) -> str:
    """The ratios over all machines."""
    ratios = [a.winner_s / b.winner_s for a, b in pairs if a.winner_s and b.winner_s]
    launches = sum(a.launches for a, _ in pairs) / sum(b.launches for _, b in pairs)
    seconds = sum(a.seconds for a, _ in pairs) / sum(b.seconds for _, b in pairs)
    mean = math.exp(fmean(math.log(ratio) for ratio in ratios))
    return (
        f"q8_0 {kind}: {launches:.2f} of the launches, {seconds:.2f} of the time; winners take "
        f"{mean:.3f} of the time for a request in the mean, {median(ratios):.3f} in the middle "
        f"({min(ratios):.3f} to {max(ratios):.3f}, {len(pairs)} machines)"
    )


def section(max_launches: int, machines: int) -> str:
    """Return the table of tunes with this limit on search launches, and its ratios."""
    lines, pairs = [HEADER], {"poor": [], "good": []}
    for seed in range(machines):
        with tempfile.TemporaryDirectory() as folder:
            machine = SearchMachine(random_case(seed), Path(folder))
            comparison = Comparison(machine, Path(folder), max_launches)
            for kind, changes in (("poor", POOR), ("good", NO_CHANGES)):
                pair = (
                    comparison.spent(QualityGate, changes),
                    comparison.spent(LateGate, changes),
                )
                pairs[kind].append(pair)
                lines.append(row(machine.case.machine.name, kind, *pair))
                print(lines[-1], file=sys.stderr)
    summaries = "\n".join(f"- {summary(kind, made)}" for kind, made in pairs.items())
    table = "\n".join(lines)
    return f"## At most {max_launches} launches of the search\n\n{summaries}\n\n{table}\n"


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=16)
    parser.add_argument("--launches", type=int, nargs="+", default=[30, 10])
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    parts = [INTRODUCTION, *(section(most, given.machines) for most in given.launches)]
    text = "\n".join(parts)
    print(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
