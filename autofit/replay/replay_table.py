"""The search of a tune, run on a recorded table instead of a machine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.replay.landscape import Landscape
from autofit.replay.table_problem import TableProblem
from autofit.search.optuna_study import SearchStudy
from autofit.search.policy import SearchPolicy
from autofit.search.problem import Proposer
from autofit.search.space import Point
from autofit.trial.metric import cost, is_higher_better

# What a user would not tell from the best.
GOOD_ENOUGH = 0.98
# Where tables lie under each root: in a wheel, in the repository, and where people keep theirs.
_FOLDERS = ("landscapes", "results/landscapes")


@dataclass(frozen=True, slots=True)
class Run:
    """One replay.

    Attributes:
        seed: decides which repeat of a row answers.
        launches: rows asked, failures included.
        launches_to_98pct: after how many of them the pick was within 2% of the best for the
            first time, None where it never was.
        failures: rows asked that had failed.
        best_found: what the last pick is worth by the median of its repeats.
        stopped_after: the launches after which a tune would have stopped; those after it
            only tell how many it would have needed.
    """

    seed: int
    launches: int
    launches_to_98pct: int | None
    failures: int
    best_found: float | None
    stopped_after: int | None


def find_table(name: str) -> Path:
    """The file of a table, given its path or the name of a bundled one.

    Raises:
        UsageError: there is none; the hint lists what was found where.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if "/" in name or path.suffix:
        raise UsageError(f"no such table: {path}", "give the path of a CSV file")
    found: dict[str, Path] = {}
    for root in yaml_files.roots():
        for folder in _FOLDERS:
            for table in sorted((root / folder).glob("*.csv")):
                found.setdefault(table.stem, table)
    if name not in found:
        listed = "; ".join(f"{known} ({table.parent})" for known, table in sorted(found.items()))
        raise UsageError(f"unknown table '{name}'", f"known: {listed or 'none found'}")
    return found[name]


def replay(
    table: TableProblem, *, seed: int, max_launches: int | None, proposer: Proposer | None = None
) -> Run:
    """Search a table once.

    The search goes on after a tune would have stopped, until its pick is good enough, so
    that the launches this takes are known.
    """
    study = SearchStudy(table.problem(), proposer, seed=seed)
    course = SearchPolicy(study)
    rng = random.Random(seed)
    best = best_possible(table)
    launches = failures = 0
    reached: int | None = None
    stopped: int | None = None
    pick: float | None = None
    while max_launches is None or launches < max_launches:
        proposal = study.ask()
        if proposal is None:
            break
        if stopped is None and course.is_enough(proposal):
            stopped = launches
        if stopped is not None and reached is not None:
            break
        launches += 1
        failures += not _answer(study, table, proposal.point, rng)
        ranked = study.ranked()
        pick = table.truth(ranked[0].point) if ranked else None
        if reached is None and is_good_enough(pick, best, table.landscape):
            reached = launches
    return Run(seed, launches, reached, failures, pick, stopped)


def _answer(study: SearchStudy, table: TableProblem, point: Point, rng: random.Random) -> bool:
    """Tell the study what one of a point's rows says; whether it had run."""
    row = rng.choice(table.repeats(point))
    metric = table.landscape.metric
    value = row.value(metric)
    study.tell(
        point,
        None if value is None else cost(value, metric),
        lacked=row.lacked,
        prompt_s=1 / row.pp_per_s if row.is_ok and row.pp_per_s else None,
        predicted_s=1 / row.tg_per_s if row.is_ok and row.tg_per_s else None,
    )
    return row.is_ok


def best_possible(table: TableProblem) -> float:
    """The best value of any point of the table."""
    values = [value for point in table.points if (value := table.truth(point)) is not None]
    return max(values) if is_higher_better(table.landscape.metric) else min(values)


def is_good_enough(value: float | None, best: float, landscape: Landscape) -> bool:
    """Whether a value is within 2% of the best."""
    if value is None:
        return False
    share = value / best if is_higher_better(landscape.metric) else best / value
    return share >= GOOD_ENOUGH


def summary(table: TableProblem, runs: Sequence[Run]) -> dict[str, Any]:
    """What `replay --json` prints."""
    landscape = table.landscape
    reached = [run.launches_to_98pct for run in runs if run.launches_to_98pct is not None]
    found = [run.best_found for run in runs if run.best_found is not None]
    first = landscape.rows[0]
    # Runs that never got there count as later than all that did.
    counts = sorted(reached) + [None] * (len(runs) - len(reached))
    return {
        "table": landscape.name,
        "metric": landscape.metric,
        "group": {"n_ctx": first.n_ctx, "n_prompt": first.n_prompt, "n_gen": first.n_gen},
        "rows": len(landscape.rows),
        "settings": len(table.points),
        "launches_to_98pct": _median_or_none(counts),
        "failures": median(run.failures for run in runs),
        "best_found": median(found) if found else None,
        "best_possible": best_possible(table),
        "direction": "maximize" if is_higher_better(landscape.metric) else "minimize",
        "per_seed": [asdict(run) for run in runs],
    }


def _median_or_none(counts: Sequence[int | None]) -> float | None:
    """The median of counts in order, those that are None last; None where it is one of them."""
    low, high = counts[(len(counts) - 1) // 2], counts[len(counts) // 2]
    if low is None:
        return None
    return low if high is None else (low + high) / 2
