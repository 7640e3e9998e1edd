"""`autofit export`: a study's winner as a file that a server can be started from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.output_file import deliver
from autofit.cli.study_argument import open_study, study_argument
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.output.preset.facts import PresetFacts
    from autofit.results.study import Study
    from autofit.runtime.ability import Runtime


def _list_formats(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    del context, parameter
    from autofit.output.preset.format import FORMATS  # noqa: PLC0415 - heavy, --help is quick

    if value in FORMATS:
        return str(value)
    message = f"unknown format '{value}'" if value else "--format is missing"
    raise UsageError(message, f"known: {', '.join(FORMATS)}")


@click.command("export")
@study_argument
@click.option(
    "--format",
    "format_name",
    metavar="ini|shell|env|json|args",
    callback=_list_formats,
    help="The kind of file.",
)
@click.option("-o", "--output", default="-", metavar="FILE", help="Where to; - is stdout.")
@click.option(
    "--runtime", metavar="PATH", help="The runtime to start, where it is not the tune's own."
)
def command(study: Path, format_name: str, output: str, runtime: str | None) -> None:
    """Write the winner of STUDY as a file that a server can be started from.

    ini is for llama-server's router (--models-preset), shell a script, env a file of
    LLAMA_ARG_* variables, args one command line, json all of it for programs.
    """
    from autofit.output.preset.format import write_preset  # noqa: PLC0415

    facts = _facts(open_study(study), runtime)
    if not facts.proven:
        click.echo("notice: these settings are NOT proven at full context", err=True)
    deliver(write_preset(format_name, facts), output, is_program=format_name == "shell")
    if output != "-":
        click.echo(f"wrote {output}", err=True)


def _facts(study: Study, runtime_path: str | None) -> PresetFacts:
    from autofit.output.preset.facts import winner_facts  # noqa: PLC0415
    from autofit.output.preset.option import with_absolute_paths  # noqa: PLC0415

    winner = _winner(study)
    found, fault = _runtime(study, runtime_path)
    tuned = replace(found, command=_command(winner["argv"], found, study.header.runtime_path))
    here = Path.cwd()
    facts = winner_facts(
        study.header,
        study.result or {},
        runtime=tuned,
        folder=here,
        made_on=datetime.now().astimezone().date(),
    )
    if fault:
        click.echo(f"notice: the tune's runtime cannot be asked: {fault}", err=True)
        return replace(facts, help=None)
    if with_absolute_paths(facts.arguments, facts.help, here) != facts.arguments:
        click.echo(f"notice: file names in the arguments are taken from {here}", err=True)
    return replace(facts, command=found.command)


def _winner(study: Study) -> dict[str, Any]:
    """The winner that the study's result tells of."""
    if study.result is None:
        raise UsageError(
            f"the study {study.path} is not finished",
            f"go on with it: `autofit tune MODEL --study {study.path} --resume`",
        )
    winner = study.result.get("winner")
    if not winner:
        raise UsageError(
            f"the study {study.path} has no winner to write a preset of",
            f"`autofit show {study.path}` tells what came of it",
        )
    return dict(winner)


def _runtime(study: Study, path: str | None) -> tuple[Runtime, str]:
    """The runtime to be started, and why it could not be asked, empty where it could."""
    from autofit.runtime.ability import Runtime, Version  # noqa: PLC0415
    from autofit.runtime.dialect_file import load_dialect  # noqa: PLC0415
    from autofit.runtime.discovery import find_runtime  # noqa: PLC0415
    from autofit.runtime.help_text import parse_help  # noqa: PLC0415

    header = study.header
    dialect = load_dialect(header.dialect)
    try:
        tuned_path = None if dialect.program.command else header.runtime_path
        return find_runtime(path or tuned_path, None if path else header.dialect), ""
    except UsageError as error:
        if path:
            raise
        program = Path(header.runtime_path)
        unknown = Runtime(
            dialect=dialect,
            program=program,
            command=(str(program),),
            help=parse_help(""),
            version=Version(""),
            fingerprint="",
        )
        return unknown, error.message


def _command(argv: Sequence[str], runtime: Runtime, tuned_path: str) -> tuple[str, ...]:
    """The words in the winner's command line that started the tune's runtime.

    They may differ from those that start it now: the program or Python may have moved.
    """
    template = runtime.dialect.program.command or (Path(tuned_path).name,)
    for start in range(len(argv) - len(template) + 1):
        words = tuple(argv[start : start + len(template)])
        if all(_is_same(*pair) for pair in zip(template, words, strict=True)):
            return words
    return runtime.command


def _is_same(known: str, word: str) -> bool:
    return known in ("{python}", word, Path(word).name)
