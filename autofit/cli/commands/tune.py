"""`autofit tune`: find, prove and write the best launch settings for a model."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

from autofit.cli.options.count_option import CountOption
from autofit.cli.options.shared_options import (
    RunOptions,
    read_run_options,
    read_task_options,
    run_options,
    seed_option,
    task_options,
    wait_option,
)
from autofit.cli.say import report, say
from autofit.errors import NothingFitsError, UsageError
from autofit.session.task_options import TaskOptions
from autofit.trial.metric import Metric

if TYPE_CHECKING:
    from autofit.study.study_folder import Study

# An objective of several metrics: it keeps a front, and the preset is the best by `request_s`.
PARETO = "pareto"


@click.command("tune", context_settings={"ignore_unknown_options": False})
@task_options
@click.option(
    "--objective",
    type=click.Choice(["request_s", "pp", "tg", "ttft", PARETO]),
    default="request_s",
    show_default=True,
    help="The metric to improve: seconds per request, prompt or generation rate, or time to "
    "first token. pareto also lists the best in prompts, generation and headroom.",
)
@click.option(
    "--require",
    multiple=True,
    metavar="'tg>=20'",
    help="A limit on request_s, pp, tg or ttft that the winner must keep. Repeat for several.",
)
@click.option(
    "--baseline",
    metavar="FILE_OR_COMMAND",
    help="Your own launch command or preset to compare with: a script, unit, compose or "
    "llama-swap file, or a command in quotes.",
)
@click.option("--section", metavar="NAME", help="The section of the baseline's file.")
@click.option(
    "--max-launches",
    cls=CountOption,
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Launches of baseline, boundary and search together.",
)
@run_options(budget="60m")
@seed_option
@click.option(
    "--answers/--no-answers",
    "checks_answers",
    default=True,
    help="Compare the winner's answers with the baseline's. Switch it off for a model of random "
    "weights.",
)
@click.option(
    "--fresh",
    "is_fresh",
    is_flag=True,
    help="Ignore what earlier studies have shown about this machine (`autofit doctor` prints it).",
)
@click.option(
    "--storage",
    metavar="URL",
    help="Share this tune with other workers: postgresql+psycopg://USER@HOST/DATABASE, "
    "sqlite:///FILE for several processes of one host, or FILE.journal in a shared folder.",
)
@click.option(
    "--study-name",
    metavar="NAME",
    help="The name of the shared study in --storage. Default: model and workload.",
)
@click.option("--dry-run", is_flag=True, help="Print the command lines, and launch nothing.")
@wait_option
@click.option("--yes", is_flag=True, help="Do not ask, even if the machine is busy.")
def command(*, as_json: bool, yes: bool, **given: Any) -> int:  # noqa: ANN401 - click's
    """Find, prove and write the launch settings that serve MODEL best on this machine.

    MODEL is a GGUF file (of a split model, the first), or a name from `autofit models`. The
    result is a preset, a file to start a server from, and a report. What comes after `--` is
    passed unchanged to every launch and to the preset.

    \b
    Examples:
      autofit tune model.gguf
      autofit tune model.gguf --workload long --context 65536 --budget 30m
      autofit tune model.gguf --device CUDA0=11000 --set ubatch=1024
      autofit tune model.gguf --baseline ./my-server.sh
      autofit tune model.gguf -- --mmproj projector.gguf
      autofit tune model.gguf --storage postgresql+psycopg://tune@db/tune
    """  # noqa: D301 - click's mark for lines to keep
    from autofit.cli.machine_ready import ready_machine

    run, options = read_run_options(given), read_task_options(given)
    wait_s = None if given["dry_run"] else run.wait_s
    if given["storage"] is not None and options.devices_mib:
        # Workers of a shared tune may each measure their own devices of one machine.
        run = replace(run, locked_devices=tuple(options.devices_mib))
    with ready_machine(wait_s, f"of {options.model.stem}", run.locked_devices):
        done = tune_model(options, run, as_json=as_json, asks=not yes, **given)
    return 0 if done is None else print_result(*done, as_json=as_json)


def print_result(result: dict[str, Any], study: Study, *, as_json: bool) -> int:
    """Print the result of a tune on stdout, and return the exit code."""
    from autofit.output.text.best_so_far_text import print_best_so_far
    from autofit.output.text.console import make_console
    from autofit.output.text.last_screen import print_tune_result

    console = make_console(sys.stderr if as_json else sys.stdout)
    print_tune_result(result, study.header, console)
    print_best_so_far(study, console)  # if there is no winner
    if as_json:
        click.echo(json.dumps(result))
    if result["winner"] is not None:
        return 0
    return report(
        NothingFitsError(
            "no settings were proven to work",
            f"`autofit show {shlex.quote(result['study'])}` lists the launches; try a smaller "
            "--context, a narrower --kv-floor or a smaller model",
        )
    )


def print_commands(commands: Iterable[tuple[str, str]], *, as_json: bool) -> None:
    """Print shell commands on stdout, each with its purpose."""
    if as_json:
        listed = [{"about": about, "command": line} for about, line in commands]
        click.echo(json.dumps({"commands": listed}))
        return
    for about, line in commands:
        say(f"# {about}")
        say(line)


def tune_model(
    options: TaskOptions,
    run_options: RunOptions,
    *,
    objective: Metric | Literal["pareto"] = "request_s",
    require: tuple[str, ...] = (),
    baseline: str | None = None,
    section: str | None = None,
    max_launches: int = 30,
    seed: int = 1,
    dry_run: bool = False,
    asks: bool = False,
    as_json: bool = False,
    checks_answers: bool = True,
    is_fresh: bool = False,
    storage: str | None = None,
    study_name: str | None = None,
) -> tuple[dict[str, Any], Study] | None:
    """Tune a model and return the result with its study.

    For a dry run, print the commands and return None.
    If the machine is busy and `asks` is set, ask the user whether to go on.
    """
    from autofit.cli.machine_ready import confirm_when_busy
    from autofit.cli.options.baseline_option import read_baseline
    from autofit.cli.tune_run import TuneRun
    from autofit.session.build_task import build_task
    from autofit.session.requirement import parse_requirement

    if section is not None and baseline is None:
        raise UsageError("--section needs --baseline")
    if study_name is not None and storage is None:
        raise UsageError("--study-name needs --storage")
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
    run = TuneRun(
        task,
        options,
        run_options,
        max_launches,
        seed,
        checks_answers=checks_answers,
        is_fresh=is_fresh,
        storage=storage,
        study_name=study_name,
    )
    if dry_run:
        for notice in task.notices:
            say(f"notice: {notice}", err=True)
        print_commands(run.commands(), as_json=as_json)
        return None
    if asks and run_options.wait_s is None:
        confirm_when_busy()
    return run.execute(sys.argv)
