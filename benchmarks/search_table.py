"""Searches of recorded tables, ours and two rivals that may ask the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from autofit.errors import UsageError
from autofit.replay.recorded_table import read_table
from autofit.replay.replay_table import TableProblem, replay, summarize
from autofit.search.space import Point
from autofit.trial.metric import cost

FOLDER = Path(__file__).parents[1] / "results" / "landscapes"
# Groups with fewer settings are shown, and decide nothing.
LARGE = 10


def table_lines(seeds: int) -> Iterator[str]:
    """One line for each table."""
    yield "# Recorded tables"
    yield ""
    yield (
        f"Rows asked until the pick is within 2% of the best row, medians of {seeds} seeds; only "
        "rows of the table can be asked."
    )
    yield f"Tables with {LARGE} settings or more come first; the smaller ones decide nothing."
    yield ""
    yield "| table | metric | settings | autofit | random | TPE | failures |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    tables = []
    for path in sorted(FOLDER.glob("*.csv")):
        try:
            tables.append(TableProblem(read_table(path)))
        except UsageError:
            continue  # no speeds
    tables = [table for table in tables if len(table.points) > 1]
    for table in sorted(tables, key=lambda table: (len(table.points) < LARGE, table.table.name)):
        ours = summarize(table, [replay(table, seed=k, max_launches=None) for k in range(seeds)])
        reached = ours["launches_to_98pct"]
        yield (
            f"| {table.table.name} | {table.table.metric} | {len(table.points)} "
            f"| {'never' if reached is None else f'{reached:g}'} "
            f"| {_middle([random_launches(table, k) for k in range(seeds)])} "
            f"| {_middle([tpe_launches(table, k) for k in range(seeds)])} "
            f"| {ours['failures']:g} |"
        )


def _middle(launches: Sequence[int]) -> str:
    return f"{median(launches):g}"


def random_launches(table: TableProblem, seed: int) -> int:
    """Rows asked in random order, none twice, until the pick is good enough."""
    rng = random.Random(seed)
    points = rng.sample(table.points, len(table.points))
    return _launches(table, iter(points), rng, lambda _, __: None)


def tpe_launches(table: TableProblem, seed: int) -> int:
    """Yield rows that Optuna's TPE asks for; a missing row is reported as pruned at no cost."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    axes = table.problem().axes
    distributions = {axis.name: CategoricalDistribution(axis.values) for axis in axes}
    rows = {tuple(sorted(point.items())): point for point in table.points}
    asked = set()
    opened = []

    def points() -> Iterator[Point]:
        while len(asked) < len(rows):
            trial = study.ask(distributions)
            key = tuple(sorted(trial.params.items()))
            if key not in rows or key in asked:
                study.report(trial, state=TrialState.PRUNED)
                continue
            asked.add(key)
            opened.append(trial)
            yield rows[key]

    def report(_: Point, value: float | None) -> None:
        if value is None:
            study.report(opened[-1], state=TrialState.PRUNED)
        else:
            study.report(opened[-1], value)

    return _launches(table, points(), random.Random(seed), report)


def _launches(table: TableProblem, points: Iterator[Point], rng: random.Random, report) -> int:
    metric = table.table.metric
    lowest, launches = float("inf"), 0
    for point in points:
        launches += 1
        value = rng.choice(table.repeats(point)).value(metric)
        report(point, None if value is None else cost(value, metric))
        if value is not None and cost(value, metric) < lowest:
            lowest = cost(value, metric)
            if table.is_good_enough(table.median_value(point)):
                return launches
    return launches + 1
