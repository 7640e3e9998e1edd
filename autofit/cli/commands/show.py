"""`autofit show`: print a study, or the command of one of its launches."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.arguments import open_study, optional_study_argument, print_damage
from autofit.cli.options.count_option import CountOption
from autofit.cli.say import say
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.study.study_folder import Study

_PORT = 8080


@click.command("show")
@optional_study_argument
@click.option(
    "--command", "number", type=int, metavar="N", help="Print only the command line of launch N."
)
@click.option(
    "--port",
    cls=CountOption,
    type=click.IntRange(1, 65535),
    default=_PORT,
    show_default=True,
    help="The port in the command line of --command.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(study: str | None, number: int | None, port: int, *, as_json: bool) -> None:
    """Show the result of STUDY, how certain it is, and every launch.

    STUDY is the folder of a study, or its name in results/ or in the user's data folder; without
    it, the newest one there. `autofit studies` lists them. The URL of the storage of a shared tune
    shows what all workers have measured; add #NAME if it has several.
    """
    opened = open_study(study)
    if study is None:
        say(f"notice: the newest study, {opened.path}", err=True)
    if number is not None:
        _print_launch(opened, number, port, as_json=as_json)
    elif as_json:
        click.echo(json.dumps(_document(opened)))
    else:
        from autofit.output.text.console import make_console
        from autofit.output.text.study_text import print_study

        print_study(opened, make_console(sys.stdout))


def _document(study: Study) -> dict[str, Any]:
    from autofit.session.best_so_far import find_best_so_far

    trials, best = [trial.to_dict() for trial in study.trials()], find_best_so_far(study)
    skipped = [skipped.to_dict() for skipped in study.skipped()]
    return {
        "study": str(study.path),
        **study.header.to_dict(),
        "result": study.result,
        "best_so_far": best.to_dict() if best else None,
        "trials": trials,
        "skipped": skipped,
        "cut_off": list(study.cut_off()),
        "notices": study.notices,
    }


def _print_launch(study: Study, number: int, port: int, *, as_json: bool) -> None:
    from autofit.output.text.study_text import launch_command
    from autofit.process.environment import removed_variables, system_config, user_config
    from autofit.text_format import without_control

    print_damage(study)
    unset = removed_variables({}, also_remove=_dialect_variables(study.header.dialect_source))
    line = launch_command(study, number, port=port, unset=unset)
    for config in (user_config(), system_config()):
        if config is not None:
            say(f"notice: {config} also changes the server of this command", err=True)
    if not as_json:
        click.echo(os.fsencode(without_control(line)))  # paths that are not UTF-8 keep their bytes
        return
    trial = next(trial for trial in study.trials() if trial.number == number)
    document = {
        "study": str(study.path),
        "trial": number,
        "command": line,
        "argv": [word.replace("{port}", str(port)) for word in trial.argv],
        "env": dict(trial.env),
        "unset": list(unset),
        "log": str(study.log_path(number)),
    }
    click.echo(json.dumps(document))


def _dialect_variables(dialect: str) -> frozenset[str]:
    """Return the variables that a dialect uses as parameters, or none if its file is missing."""
    from autofit.runtime.dialect.dialect_file import load_dialect

    try:
        return load_dialect(dialect).variables
    except UsageError:
        return frozenset()
