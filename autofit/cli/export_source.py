"""What `autofit export` is given: studies, one of their launches, or a plan."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.study_argument import open_study, tell_damage
from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts, winner_facts
from autofit.presets.option import with_absolute_paths
from autofit.presets.source import completed_trial, plan_facts, plan_task, trial_facts
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime, Version
from autofit.runtime.discovery.help_text import parse_help
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader


def read_source(
    given: str, *, trial: int | None, runtime_path: str | None
) -> tuple[PresetFacts, Runtime]:
    """The facts of what was given, and the runtime to start.

    Raises:
        UsageError: there is no such thing, it has no winner, or its runtime is not there.
    """
    document = _plan_document(given)
    if document is not None:
        if trial is not None:
            raise UsageError("a plan has no trials", "leave --trial out, or give a study")
        return _of_plan(document, given, runtime_path)
    study = open_study(Path(given))
    tell_damage(study)
    if trial is not None:
        return _of_trial(study, trial, runtime_path)
    return _of_winner(study, runtime_path)


def _of_winner(study: Study, runtime_path: str | None) -> tuple[PresetFacts, Runtime]:
    winner = _winner(study)
    found, fault = _runtime(study.header, runtime_path)
    facts = winner_facts(
        study.header,
        study.result or {},
        runtime=replace(found, command=_command(winner["argv"], found, study.header)),
        folder=Path.cwd(),
        made_on=_today(),
    )
    return _served(facts, found, fault)


def _of_trial(study: Study, number: int, runtime_path: str | None) -> tuple[PresetFacts, Runtime]:
    trial = completed_trial(study, number)
    found, fault = _runtime(study.header, runtime_path)
    if fault:
        raise UsageError(
            f"the tune's runtime cannot be asked: {fault}", "name it with --runtime PATH"
        )
    facts = trial_facts(study, trial, runtime=found, folder=Path.cwd(), made_on=_today())
    return _served(facts, found, fault)


def _of_plan(
    document: Mapping[str, Any], label: str, runtime_path: str | None
) -> tuple[PresetFacts, Runtime]:
    header = plan_task(document, "on stdin" if label == "-" else label)
    found, fault = _runtime(header, runtime_path)
    tuned = replace(found, command=_command(document["launch"]["argv"], found, header))
    facts = plan_facts(document, runtime=tuned, folder=Path.cwd(), made_on=_today())
    return _served(facts, found, fault)


def _served(facts: PresetFacts, found: Runtime, fault: str) -> tuple[PresetFacts, Runtime]:
    if fault:
        click.echo(f"notice: the tune's runtime cannot be asked: {fault}", err=True)
        return replace(facts, help=None), found
    if with_absolute_paths(facts.arguments, facts.help, facts.folder) != facts.arguments:
        click.echo(f"notice: file names in the arguments are taken from {facts.folder}", err=True)
    return replace(facts, command=found.command), found


def _plan_document(given: str) -> Mapping[str, Any] | None:
    """The plan that was given, None where it is no file of JSON."""
    path = Path(given).expanduser()
    if given != "-" and (path.name == "study.json" or not path.is_file()):
        return None
    if given == "-" and sys.stdin is None:
        raise UsageError("there is no stdin to read a plan from", "give the plan as a file")
    try:
        data = sys.stdin.buffer.read() if given == "-" else path.read_bytes()
        document = json.loads(data)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {given} as a plan: {error}",
            "give a study's folder, or what `autofit plan MODEL --json` prints",
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{given} is no plan", "give what `autofit plan MODEL --json` prints")
    return document


def _today() -> date:
    return datetime.now().astimezone().date()


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


def _runtime(header: StudyHeader, path: str | None) -> tuple[Runtime, str]:
    """The runtime to be started, and why it could not be asked, empty where it could."""
    dialect = load_dialect(header.dialect_source)
    try:
        tuned_path = None if dialect.program.command else header.runtime_path
        return find_runtime(path or tuned_path, None if path else header.dialect_source), ""
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


def _command(argv: Sequence[str], runtime: Runtime, header: StudyHeader) -> tuple[str, ...]:
    """The words in a command line that started the tune's runtime.

    They may differ from those that start it now: the program or Python may have moved.
    """
    template = runtime.dialect.program.command or (Path(header.runtime_path).name,)
    for start in range(len(argv) - len(template) + 1):
        words = tuple(argv[start : start + len(template)])
        if all(_is_same(*pair) for pair in zip(template, words, strict=True)):
            return words
    return runtime.command


def _is_same(known: str, word: str) -> bool:
    return known in ("{python}", word, Path(word).name)
