"""Launches of a second tune on a machine, with and without what the first one has shown.

    nice -n 10 python benchmarks/bench_knowledge.py [--machines 6] [--seeds 2] [--output FILE]

For each simulated machine model A is tuned, then model B of another size or architecture, with
another context. B's search runs without knowledge, with it, and with knowledge that was made
wrong. Everything runs in this process; nothing of the user's is read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1"))
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

import numpy as np
from fakes.machine import Machine
from fakes.random_machine import Case, random_case, random_machine

from autofit.knowledge.knowledge_document import KnownStudy
from autofit.knowledge.study_knowledge import learn_study, past_studies
from autofit.session.task_setup import read_environment
from autofit.trial.trial import Trial
from benchmarks.search_machine import SearchMachine
from benchmarks.search_optimum import optimum
from benchmarks.search_run import MOST_LAUNCHES, Outcome, run_autofit

# The case of model B on a machine is drawn with its seed plus this.
_SECOND = 1000
# And those of further models that were tuned before.
_MORE = 2000
# The studies that are known, where it is not one.
COUNTS = {"none": 0, "three studies": 3}


@dataclass(frozen=True, slots=True)
class Run:
    """One search of model B."""

    machine: int
    seed: int
    knowledge: str
    reached: int
    launches: int
    failures: int
    confirmed: float
    contradicted: int | None


def _halved_links(machine: Machine) -> Machine:
    devices = [replace(one, link_gb_s=one.link_gb_s / 2) for one in machine.devices]
    return replace(machine, devices=tuple(devices))


def _other_threads(machine: Machine) -> Machine:
    """The first tune ran while half of the memory channels were in use, by other threads."""
    host = machine.host
    return replace(
        machine,
        host=replace(
            host, memory_gb_s=host.memory_gb_s / 2, saturating_cores=host.saturating_cores / 3
        ),
    )


# Machines on which the first tune ran, in place of the one that runs the second.
WRONG: dict[str, Callable[[Machine], Machine]] = {
    "links were half as fast": _halved_links,
    "host memory and threads were others": _other_threads,
}


def first_study(case: Case, folder: Path, seed: int) -> KnownStudy:
    """Tune model A and return what is kept of it."""
    machine = SearchMachine(case, folder)
    trials: list[Trial] = []
    run_autofit(machine, 1.0, seed, trials=trials)
    memory = machine.memory_model()
    for trial in trials:
        memory.observe(trial)
    study = learn_study(machine.task, trials, memory, study_id="first", finished_at=0.0)
    assert study is not None
    return study


def measure(seed: int, seeds: int, kinds: Sequence[str], folder: Path) -> Iterator[Run]:
    """Yield the searches of a machine."""
    machine = random_machine(seed)
    second = SearchMachine(random_case(seed + _SECOND, machine=machine), folder / "b")
    best_s = _best(seed, second)
    for k in range(seeds):
        known: dict[str, list[KnownStudy]] = {}
        for kind in kinds:
            here = WRONG[kind](machine) if kind in WRONG else machine
            name = kind.replace(" ", "-") if kind in WRONG else "right"
            studies = known.setdefault(name, [])
            while len(studies) < COUNTS.get(kind, 1):
                case = random_case(seed + _MORE * len(studies), machine=here)
                place = folder / f"{name}-{k}-{len(studies)}"
                studies.append(first_study(case, place, k + 50 + len(studies)))
            environment = read_environment(second.task)
            if kind == "another build":
                environment = replace(environment, build="another")
            used = studies[: COUNTS.get(kind, 1)]
            past = past_studies(second.task, used, environment, now=0.0)
            yield _run(seed, k, kind, run_autofit(second, best_s, k + 1, past))


def _run(seed: int, k: int, kind: str, out: Outcome) -> Run:
    reached = out.reached or MOST_LAUNCHES
    confirmed = round(out.confirmed, 4)
    return Run(seed, k, kind, reached, out.launches, out.failures, confirmed, out.contradicted)


def _best(seed: int, machine: SearchMachine) -> float:
    """Return the seconds of a request at the best point, kept between runs."""
    store = Path(tempfile.gettempdir()) / "autofit-bench-knowledge"
    store.mkdir(exist_ok=True)
    path = store / f"best-{seed}.json"
    if not path.exists():
        path.write_text(json.dumps(optimum(machine)[0]), "utf-8")
    found: float = json.loads(path.read_text("utf-8"))
    return found


def table(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| knowledge | runs | reached 2%: median | 90th | search ends: median | 90th | winner |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for kind in dict.fromkeys(run.knowledge for run in runs):
        own = [run for run in runs if run.knowledge == kind]
        reached, ends = [run.reached for run in own], [run.launches for run in own]
        yield (
            f"| {kind} | {len(own)} | {median(reached):g} | {np.percentile(reached, 90):.0f} "
            f"| {median(ends):g} | {np.percentile(ends, 90):.0f} "
            f"| {median(run.confirmed for run in own):.3f} |"
        )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--machines", type=int, nargs="+", default=list(range(6)))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--kinds", nargs="+", default=["none", "one study", "another build", *WRONG]
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    runs: list[Run] = []
    for seed in given.machines:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="bench-knowledge-") as folder:
            os.environ |= {f"XDG_{kind}_HOME": folder for kind in ("CACHE", "CONFIG", "DATA")}
            for run in measure(seed, given.seeds, given.kinds, Path(folder)):
                runs.append(run)
                print(json.dumps(asdict(run)), file=sys.stderr, flush=True)
        print(f"machine {seed}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    text = "\n".join(table(runs)) + "\n"
    print(text, end="")
    if given.output:
        given.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
