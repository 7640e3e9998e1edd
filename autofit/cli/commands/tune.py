"""`autofit tune`: find, prove and write the best launch settings for a model."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click

from autofit.cli.options.shared_options import read_task_options, task_options
from autofit.errors import NothingFitsError, UsageError
from autofit.session.task_options import TaskOptions
from autofit.trial.metric import Metric

# An objective of several metrics: a front is kept, and the preset is that of `request_s`.
PARETO = "pareto"


@click.command("tune", context_settings={"ignore_unknown_options": False})
@task_options
@click.option(
    "--objective",
    type=click.Choice(["request_s", "pp", "tg", "ttft", PARETO]),
    default="request_s",
    show_default=True,
    help="What is made best: seconds per request, prompt or generation rate, first token; pareto "
    "also lists what is best in prompts, generation or headroom.",
)
@click.option("--require", multiple=True, metavar="'tg>=20'", help="A limit to keep.")
@click.option(
    "--baseline",
    metavar="FILE_OR_COMMAND",
    help="Your own launch command or preset to compare with: a script, unit, compose or "
    "llama-swap file, or a command, quoted.",
)
@click.option("--section", metavar="NAME", help="The part of the baseline's file that is meant.")
@click.option("--budget", default="60m", show_default=True, help="Time to spend: 90s, 30m, 2h.")
@click.option(
    "--max-launches",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Launches of baseline, boundary and search together.",
)
@click.option("--study", type=click.Path(path_type=Path), help="The study's folder.")
@click.option("--resume", is_flag=True, help="Go on with the study; repeats no launch.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option(
    "--answers/--no-answers",
    "checks_answers",
    default=True,
    help="Whether the winner's answers are compared with the baseline's; those of random weights "
    "mean nothing.",
)
@click.option("--dry-run", is_flag=True, help="Print the command lines, launch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--yes", is_flag=True, help="Do not ask, even when the machine is busy.")
def command(**given: Any) -> int:  # noqa: ANN401 - click's keyword arguments
    """Find, prove and write the launch settings under which MODEL is served best here.

    What comes after `--` goes unchanged to every launch and into the preset.
    """
    options = read_task_options(given)
    as_json = given.pop("as_json")
    result = run_tune(options, as_json=as_json, **given)
    return 0 if result is None else told(result, as_json=as_json)


def told(result: dict[str, Any], *, as_json: bool) -> int:
    """Tell a tune's result on stdout; returns the exit code."""
    from autofit.output.text.conclusion import answer  # noqa: PLC0415 - heavy, and --help must be quick
    from autofit.output.text.console import make_console  # noqa: PLC0415
    from autofit.output.text.study_text import print_answer  # noqa: PLC0415

    print_answer(answer(result), make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result))
    if result["winner"] is not None:
        return 0
    click.echo("autofit: no settings were proven to work", err=True)
    click.echo(
        f"hint: `autofit show {shlex.quote(result['study'])}` tells what was tried and why it "
        "failed; try less --context, a narrower --kv-floor or a smaller model",
        err=True,
    )
    return NothingFitsError.exit_code


def told_commands(commands: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Tell on stdout what would be launched: of each what it is for, and its shell line."""
    if as_json:
        listed = [{"about": about, "command": line} for about, line in commands]
        click.echo(json.dumps({"commands": listed}))
        return
    for about, line in commands:
        click.echo(f"# {about}")
        click.echo(line)


def run_tune(
    options: TaskOptions,
    *,
    objective: Metric | Literal["pareto"] = "request_s",
    require: tuple[str, ...] = (),
    baseline: str | None = None,
    section: str | None = None,
    budget: str = "60m",
    max_launches: int = 30,
    study: Path | None = None,
    resume: bool = False,
    seed: int = 1,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool = False,
    checks_answers: bool = True,
) -> dict[str, Any] | None:
    """Tune; returns the result, None after a dry run, which prints lines or one document."""
    from autofit.cli.options.baseline_option import read_baseline  # noqa: PLC0415
    from autofit.cli.study_run import ask_when_busy  # noqa: PLC0415
    from autofit.cli.tune_run import TuneRun  # noqa: PLC0415
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415
    from autofit.session.build_task import build_task  # noqa: PLC0415 - heavy, and --help must be quick
    from autofit.session.requirement import parse_requirement  # noqa: PLC0415

    if resume and study is None:
        raise UsageError("--resume needs --study DIR", "`ls results/` shows your studies")
    if section is not None and baseline is None:
        raise UsageError("--section names a part of --baseline, which is missing")
    total_s = parse_duration_s(budget)
    requirements = tuple(parse_requirement(text) for text in require)
    own = None
    if baseline is not None:
        own, options = read_baseline(baseline, section, options)
    task = build_task(
        options,
        runtime=own.runtime if own else None,
        objective="request_s" if objective == "pareto" else objective,
        requirements=requirements,
        keeps_front=objective == PARETO,
    )
    if own is not None:
        task = replace(
            task,
            baseline_params=own.command.params,
            baseline_args=own.command.rest,
            notices=(*own.notices, *task.notices),
        )
    run = TuneRun(task, options, total_s, max_launches, seed, checks_answers)
    if dry_run:
        for notice in task.notices:
            click.echo(f"notice: {notice}", err=True)
        told_commands(run.commands(), as_json=as_json)
        return None
    if not yes:
        ask_when_busy()
    return run.execute(study, resume=resume, argv=sys.argv)
