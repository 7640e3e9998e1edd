"""`autofit remeasure`: kept settings again. What a sweep runs for an entry; not listed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.shared_options import read_task_options, task_options
from autofit.errors import UsageError


@click.command("remeasure", hidden=True)
@task_options
@click.option("--params", metavar="JSON", help="The settings, by name.")
@click.option("--preset", metavar="FILE_OR_COMMAND", help="The settings, as a preset.")
@click.option("--against", metavar="PATH", help="An old runtime, measured beside the new one.")
@click.option("--neighbours", is_flag=True, help="One layer more and less in host memory, too.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--answers/--no-answers", default=True, help="Ask for answers in the first round.")
@click.option("--budget", default="20m", show_default=True, help="Time to spend: 90s, 30m, 2h.")
@click.option("--study", type=click.Path(path_type=Path), help="The study's folder.")
@click.option("--resume", is_flag=True, help="Go on with the study; repeats no launch.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(  # noqa: PLR0917 - click passes them by name
    params: str | None,
    preset: str | None,
    against: str | None,
    neighbours: bool,  # noqa: FBT001
    rounds: int,
    answers: bool,  # noqa: FBT001
    budget: str,
    study: Path | None,
    resume: bool,  # noqa: FBT001
    seed: int,
    as_json: bool,  # noqa: FBT001
    **given: Any,  # noqa: ANN401 - click's keyword arguments
) -> int:
    """Measure settings of MODEL that were kept, in rounds of fresh processes.

    Without --params and --preset the runtime's own choice is measured.
    """
    from autofit.cli.remeasure_run import RemeasureRun, settings_of  # noqa: PLC0415 - heavy
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415

    if resume and study is None:
        raise UsageError("--resume needs --study DIR", "`ls results/` shows your studies")
    if params and preset:
        raise UsageError("--params and --preset exclude one another", "give one of them")
    options = read_task_options(given)
    run = RemeasureRun.of(
        options,
        settings_of(params) if params else None,
        preset,
        against,
        has_neighbours=neighbours,
        rounds=rounds,
        asks=answers,
        total_s=parse_duration_s(budget),
        seed=seed,
    )
    result = run.execute(study, resume=resume, argv=sys.argv)
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo("\n".join(result["words"]))
    return 0
