"""Record which candidates searches launch, in order, so that two versions can be compared.

    python benchmarks/bench_sequences.py --output FILE [--compare OTHER] [--jobs 2]
        [--only PREFIX ...]

A change that only moves or renames code must launch the same candidates in the same order.
Record the version before it with `--output before.json`, then run the version after it with
`--output after.json --compare before.json`: every run is reported as identical or with its
first difference. Any difference ends the program with exit status 1.

Recorded are whole tunes (baseline, boundary, search, confirm, prove) and probes of simulated
machines, and searches of the recorded tables. Everything follows from seeds: launches have no
process, and clocks show what launches would have taken. Run it in the root of a checkout, with
the environment of that checkout.

To run it on a version with other names, change the imports, `Recorded` and the three functions
below it; the rest handles plain data.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# Sums of floats depend on how many threads share them.
os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.machine import Noise
from fakes.random_machine import random_case
from quality.simulated_answers import NO_CHANGES
from session.task_sample import options

import autofit
from autofit.errors import UsageError
from autofit.memory.memory_model import MemoryModel
from autofit.probe.boundary_line import choose_layouts, choose_points, make_lines
from autofit.probe.find_boundaries import find_boundaries
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.replay.recorded_table import read_table
from autofit.replay.replay_table import TableProblem, replay
from autofit.search.optuna_study import SearchStudy
from autofit.search.proposer import SurrogateProposer
from autofit.session.budget import Budget
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.finalist import baseline_finalist
from autofit.session.requirement import parse_requirement
from autofit.session.runner import TrialRunner
from autofit.session.task_setup import search_header
from autofit.study.study_folder import Study
from autofit.tune.explore import Exploration
from autofit.tune.pipeline import run_tune
from benchmarks.bench_kv import POOR, TimedLaunching
from benchmarks.search_machine import SearchMachine
from benchmarks.search_table import FOLDER

# Simulated seconds of a run; a slow machine spends them all.
BUDGET_S = 7200.0
TUNE_SEEDS = (1, 2)
PROBE_SEEDS = (1,)
TABLE_SEEDS = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Setup:
    """A simulated machine, by the seed of its case, and the options of its tune."""

    case: int
    note: str = ""
    max_launches: int = 30
    changes: Mapping[str, Any] | None = None
    requirement: str = ""
    has_poor_kv: bool = False
    is_quiet: bool = False

    @property
    def name(self) -> str:
        """The name in the printed table."""
        return f"machine {self.case:02}{self.note and f', {self.note}'}"


# One device and several, of all backends; with prefetch, an expert cache, spills, unified memory.
TUNES = (
    Setup(2),
    Setup(5),
    Setup(8, "with a requirement", requirement="tg>=20"),
    Setup(10, "with a front", changes={"keeps_front": True}),
    Setup(11, "with poor q8_0", has_poor_kv=True),
    Setup(12),
    Setup(14, "by tg", changes={"objective": "tg"}),
    Setup(18, "out of time"),
    Setup(21),
    Setup(25, "without noise", is_quiet=True),
)
PROBES = (Setup(2), Setup(11), Setup(17), Setup(20))


class Recorded:
    """One simulated machine with a runner whose launches the simulation answers.

    Its clocks show the seconds that launches would have taken, and nothing else takes time.
    """

    def __init__(self, setup: Setup, folder: Path) -> None:
        case = random_case(setup.case)
        if setup.is_quiet:
            case = replace(case, machine=replace(case.machine, noise=Noise()))
        self.setup, self.folder = setup, folder
        self.machine = SearchMachine(case, folder)
        changes = dict(setup.changes or {})
        if setup.requirement:
            changes["requirements"] = (parse_requirement(setup.requirement),)
        self.task = replace(self.machine.task, **changes)
        self.machine.task = self.task

    def tune(self, seed: int) -> dict[str, Any]:
        """Tune with that seed, for the search and for the noise."""
        memory = self.machine.memory_model()
        with self._study(f"tune-{seed}") as study:
            runner = self._runner(study, memory, seed, self.setup.max_launches)
            search = SearchStudy(self.machine.problem(memory), seed=seed)
            evaluator = OutputEvaluator(runner, self.task, baseline_finalist(self.task))
            gate = QualityGate(evaluator, runner.note)
            result = run_tune(
                Exploration(self.task, runner, memory, search), gate, seed=seed
            ).to_dict()
        winner = result["winner"] and dict(sorted(result["winner"]["params"].items()))
        return {"launches": _launches(runner), "winner": winner}

    def probe(self, seed: int) -> dict[str, Any]:
        """Probe with that noise; the winner is the boundaries that were found."""
        memory = self.machine.memory_model()
        with self._study(f"probe-{seed}") as study:
            runner = self._runner(study, memory, seed, None)
            factory = CandidateFactory(self.task)
            layouts, points = choose_layouts(factory, ()), choose_points(self.task, ())
            lines = make_lines(factory, memory, layouts, points)
            result = find_boundaries(self.task, lines, memory, runner, lambda _: None)
        found = {
            f"{row['layout']} {row['cache_type']}": [row["fits"], row["fails"]]
            for row in result["boundary"]
        }
        return {"launches": _launches(runner), "winner": found}

    def _study(self, name: str) -> Study:
        task = self.task
        given = options(task.model_path, task.runtime.program)
        head = search_header(task, given, seed=1, argv=[])
        return Study.create(self.folder / name, head)

    def _runner(
        self, study: Study, memory: MemoryModel, seed: int, max_launches: int | None
    ) -> Any:
        launching = TimedLaunching(
            self.machine.simulation.with_seed(seed),
            self.task.workload.context,
            client_of=POOR if self.setup.has_poor_kv else NO_CHANGES,
        )
        runner = TrialRunner(
            study=study,
            launching=launching,
            budget=Budget(lambda: launching.now_s, BUDGET_S, max_launches),
            emit=lambda _: None,
            wall_clock=lambda: launching.now_s,
            memory=memory,
        )
        launching.expected_slots = memory.expected_slots
        return runner


def _launches(runner: Any) -> list[dict[str, Any]]:
    """Return the launches of a runner, in order."""
    return [
        {
            "phase": trial.phase,
            "params": dict(sorted(trial.candidate.params.items())),
            "outcome": trial.outcome.kind,
            "fidelity": trial.fidelity,
            "layout": trial.layout,
        }
        for trial in runner.trials
    ]


def table_names() -> list[str]:
    """Name the recorded tables that can be replayed."""
    names = []
    for path in sorted(FOLDER.glob("*.csv")):
        try:
            read_table(path)
        except UsageError:
            continue  # no speeds
        names.append(path.stem)
    return names


def replayed(name: str, seed: int) -> dict[str, Any]:
    """Replay the search of a recorded table and return the rows that it asked for, in order."""

    class Watching(SurrogateProposer):
        """A proposer that keeps the observations after each row."""

        def ranked(self, problem: Any, observations: Sequence[Any]) -> list[Any]:
            """Keep all rows so far, and rank them as usual."""
            seen[:] = observations
            return super().ranked(problem, observations)

    seen: list[Any] = []
    table = TableProblem(read_table(FOLDER / f"{name}.csv"))
    run = replay(table, seed=seed, max_launches=None, proposer=Watching())
    params_of = table.problem().candidate_of
    launches = [
        {
            "phase": "search",
            "params": dict(sorted(params_of(one.point).params.items())),
            "outcome": "completed" if one.cost is not None else f"lacked {one.exhausted_memory}",
            "fidelity": None,
            "layout": "",
        }
        for one in seen
    ]
    assert len(launches) == run.launches
    best = {"value": run.best_found, "stopped_after": run.stopped_after}
    return {"launches": launches, "winner": best}


@dataclass(frozen=True, slots=True)
class Job:
    """The runs of one machine or table, one for each seed, made by one process."""

    kind: str
    subject: Setup | str
    seeds: Sequence[int]

    @property
    def name(self) -> str:
        """The name of its runs."""
        about = self.subject if isinstance(self.subject, str) else self.subject.name
        return f"{self.kind} {about}"

    def runs(self) -> list[dict[str, Any]]:
        """Make the runs."""
        if isinstance(self.subject, str):
            made = [replayed(self.subject, seed) for seed in self.seeds]
        else:
            with tempfile.TemporaryDirectory(prefix="bench-sequences-") as folder:
                # Neither what others keep nor what a user has defined may count.
                os.environ |= {f"XDG_{kind}_HOME": folder for kind in ("CACHE", "CONFIG")}
                recorded = Recorded(self.subject, Path(folder))
                make = recorded.tune if self.kind == "tune" else recorded.probe
                made = [make(seed) for seed in self.seeds]
        return [
            {"name": self.name, "seed": seed, **run}
            for seed, run in zip(self.seeds, made, strict=True)
        ]


def all_jobs() -> list[Job]:
    """List what is recorded, in the order of the file."""
    return [
        *(Job("tune", setup, TUNE_SEEDS) for setup in TUNES),
        *(Job("probe", setup, PROBE_SEEDS) for setup in PROBES),
        *(Job("table", name, TABLE_SEEDS) for name in table_names()),
    ]


def record(jobs: Sequence[Job], processes: int) -> list[dict[str, Any]]:
    """Make all runs, in the order of the jobs whatever the order in which they end."""
    made: dict[str, list[dict[str, Any]]] = {}
    began = time.monotonic()
    print(f"recording {Path(autofit.__file__).parent}", file=sys.stderr)
    with ProcessPoolExecutor(processes) as pool:
        waiting = {pool.submit(job.runs): job.name for job in jobs}
        for done in as_completed(waiting):
            made[waiting[done]] = done.result()
            after = time.monotonic() - began
            print(f"{after:4.0f} s: {waiting[done]} is done", file=sys.stderr, flush=True)
    return [run for job in jobs for run in made[job.name]]


def difference(run: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """Return the first difference between two runs, or an empty text."""
    if run is None or other is None:
        return "is only in the other file" if run is None else "is not in the other file"
    pairs = enumerate(zip(run["launches"], other["launches"], strict=False), start=1)
    for number, (now, before) in pairs:
        if now != before:
            return f"launch {number}: {_changes(now, before)}"
    counts = len(run["launches"]), len(other["launches"])
    if counts[0] != counts[1]:
        return f"{counts[0]} launches instead of {counts[1]}, the same up to there"
    if run["winner"] != other["winner"]:
        return f"winner: {_changes(run['winner'] or {}, other['winner'] or {})}"
    return ""


def _changes(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Describe the difference between two mappings, params included."""
    now, before = _flat(now), _flat(before)
    names = [name for name in {**before, **now} if now.get(name) != before.get(name)]
    return ", ".join(f"{name} {now.get(name)} instead of {before.get(name)}" for name in names)


def _flat(launch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch with its params at the top level."""
    rest = {name: launch[name] for name in launch if name != "params"}
    return {**rest, **launch.get("params", {})}


def compared(
    runs: Iterable[Mapping[str, Any]], others: Iterable[Mapping[str, Any]]
) -> Iterator[tuple[str, int, int, str]]:
    """Yield name, seed, launches and first difference of every run of either side."""
    mine, theirs = ({(run["name"], run["seed"]): run for run in side} for side in (runs, others))
    for name, seed in {**theirs, **mine}:
        run, other = mine.get((name, seed)), theirs.get((name, seed))
        launches = (run or other or {})["launches"]
        yield name, seed, len(launches), difference(run, other)


def _is_chosen(name: str, prefixes: Sequence[str]) -> bool:
    return not prefixes or name.startswith(tuple(prefixes))


def main() -> int:
    """Record, compare where asked, and print a short table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="write all runs here, as JSON")
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="such a file from before")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--only", nargs="+", default=[], metavar="PREFIX", help="these names only")
    given = parser.parse_args()
    jobs = [job for job in all_jobs() if _is_chosen(job.name, given.only)]
    runs = record(jobs, given.jobs)
    if given.output:
        given.output.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    others = runs
    if given.compare:
        others = json.loads(given.compare.read_text(encoding="utf-8"))
        others = [run for run in others if _is_chosen(run["name"], given.only)]
    rows = list(compared(runs, others))
    width = max((len(name) for name, *_ in rows), default=0)
    for name, seed, launches, changed in rows:
        verdict = (changed or "identical") if given.compare else ""
        print(f"{name:{width}}  seed {seed}  {launches:3} launches  {verdict}".rstrip())
    different = sum(bool(changed) for *_, changed in rows)
    total = sum(launches for _, _, launches, _ in rows)
    ending = f", {different} different" if given.compare else ""
    print(f"{len(rows)} runs, {total} launches{ending}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
