"""`autofit remeasure`: measure given settings again for an entry of a sweep. It is not listed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.shared_options import (
    RunOptions,
    read_run_options,
    read_task_options,
    run_options,
    task_options,
)
from autofit.cli.say import say
from autofit.errors import UsageError
from autofit.input_files import parse_json
from autofit.trial.candidate import Params

if TYPE_CHECKING:
    from autofit.cli.run_setup import Run
    from autofit.sweep.remeasure import RemeasuredSettings, RemeasuredSide


@click.command("remeasure", hidden=True)
@task_options
@click.option("--params", metavar="JSON", help="The settings as a JSON object.")
@click.option("--preset", metavar="FILE_OR_COMMAND", help="The settings as a preset.")
@click.option(
    "--against", metavar="PATH", help="An older runtime that is measured in the same rounds."
)
@click.option("--neighbours", is_flag=True, help="Also measure one host layer more and one less.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--answers/--no-answers", default=True, help="Record answers in the first round.")
@click.option("--seed", type=int, default=1, show_default=True)
@run_options(budget="20m")
def command(
    *,
    params: str | None,
    preset: str | None,
    against: str | None,
    neighbours: bool,
    rounds: int,
    answers: bool,
    seed: int,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - click's keyword arguments
) -> int:
    """Measure known settings of MODEL again, in rounds of fresh processes.

    Without --params and --preset the runtime's own choice is measured.
    """
    from autofit.sweep.remeasure import find_settings

    if params and preset:
        raise UsageError("--params and --preset cannot be used together", "use only one of them")
    run_options, options = read_run_options(given), read_task_options(given)
    settings = find_settings(
        options, _parse_params(params) if params else None, preset=preset, against=against
    )
    result = _remeasure(
        run_options, settings, has_neighbours=neighbours, rounds=rounds, asks=answers, seed=seed
    )
    if as_json:
        click.echo(json.dumps(result))
    else:
        say("\n".join(result["words"]))
    return 0


def _parse_params(text: str) -> Params:
    """Parse settings from a JSON object of numbers, texts and booleans."""
    try:
        params = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--params: {error}", "give a JSON object of settings by name") from error
    if not isinstance(params, dict) or not all(
        isinstance(value, str | int | float | bool) for value in params.values()
    ):
        raise UsageError(
            "--params must be an object of numbers, texts and booleans", 'such as {"ubatch": 512}'
        )
    return params


def _remeasure(
    run_options: RunOptions,
    settings: RemeasuredSettings,
    *,
    has_neighbours: bool,
    rounds: int,
    asks: bool,
    seed: int,
) -> dict[str, Any]:
    """Measure the settings, and return the result."""
    from autofit.cli.run_setup import open_run
    from autofit.session.events import PhaseStarted
    from autofit.sweep.remeasure import Remeasurement

    first = settings.tasks[0]
    notices = (*first.inventory.notices, *first.notices)
    with open_run(
        run_options, settings.header(seed=seed, argv=sys.argv), settings.tasks, notices=notices
    ) as run:
        first_note = len(run.notices)
        run.emit(PhaseStarted("confirm"))
        measured = Remeasurement(
            sides=list(_sides(run, settings, has_neighbours=has_neighbours)),
            workload=first.workload,
            slot_context=settings.slot_context,
            rounds=rounds,
            asks=asks,
            seed=seed,
            note=run.notice,
        ).run()
        result = {
            "study": str(run.study.path),
            "model": str(first.model_path),
            "runtime": first.runtime.name,
            **measured,
            "is_sparse": first.inventory.is_moe,
            "seconds": round(run.budget.spent_s, 1),
            "notes": run.notices[first_note:],
        }
        run.conclude(result)
    return result


def _sides(
    run: Run, settings: RemeasuredSettings, *, has_neighbours: bool
) -> Iterator[RemeasuredSide]:
    from autofit.sweep.remeasure import BEFORE, KEPT, RemeasuredSide, neighbours

    for name, task in zip((KEPT, BEFORE), settings.tasks, strict=False):
        runner = run.make_runner(task)
        side = RemeasuredSide(name, settings.candidate, runner, settings.is_verbatim)
        yield side
        if has_neighbours and name == KEPT:
            yield from neighbours(side)
