"""One run of `autofit export`: read the sources, write or merge the file, and verify it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.arguments import open_study, print_damage
from autofit.cli.options.paths import deliver
from autofit.cli.say import say
from autofit.errors import AutofitError, UsageError
from autofit.input_files import parse_json, read_input, read_json, read_stream
from autofit.machine.lock import machine_lock
from autofit.presets.command_options import with_absolute_paths
from autofit.presets.formats.registry import find_format, write_preset
from autofit.presets.merge.merge_preset import merge_presets, models_in
from autofit.presets.preset import Preset
from autofit.presets.preset_heading import HIDDEN_NOTICE
from autofit.presets.preset_source import (
    best_so_far_preset,
    completed_trial,
    plan_preset,
    plan_task,
    trial_preset,
    winner_preset,
)
from autofit.presets.verify.server_check import PresetCheck, verification
from autofit.presets.verify.verify_preset import verify_preset
from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime, Version
from autofit.runtime.discovery.help_text import parse_help
from autofit.session.best_so_far import BestSoFar, find_best_so_far
from autofit.session.runner import resume_command
from autofit.study.durable_file import write_durably
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader


def run_export(
    sources: Sequence[str],
    format_name: str,
    output: str,
    *,
    trial: int | None,
    unproven: bool,
    runtime_path: str | None,
    changes: Mapping[str, Any],
    merges: bool,
    verifies: bool,
    as_json: bool,
) -> int:
    """Write the presets of the sources into one file, and return the exit code.

    `changes` maps fields of the presets to the user's values, or to None to leave a field as it
    is.

    Raises:
        UsageError: a source is unusable, or the format cannot hold the presets.
        AutofitError: the preset fails its test, or the file cannot be written.
    """
    chosen = {field: value for field, value in changes.items() if value is not None}
    found = [_read_source(source, trial, runtime_path, unproven=unproven) for source in sources]
    presets = [replace(preset, **chosen) for preset, _ in found]
    notices = _notices(format_name, presets)
    old = _existing_text(output)
    _refuse_same_names(format_name, presets)
    text = write_preset(format_name, *presets)
    if old is not None and merges:
        text, more = merge_presets(format_name, old, presets, output)
        notices += more
    elif old is not None:
        _refuse_other_models(format_name, presets, old, output)
    for notice in notices:
        say(f"notice: {notice}", err=True)
    checks = _verify(format_name, text, presets, found[0][1]) if verifies else None
    document: dict[str, Any] = {
        "format": format_name,
        "output": None if output == "-" else output,
        "text": text if output == "-" else None,
        "models": [_model_document(preset) for preset in presets],
        "notices": notices,
        "backup": None,
        "verification": None if checks is None else verification(checks),
    }
    failed = [check.name for check in checks or () if check.passed is False]
    if failed:
        error = AutofitError(
            f"nothing was written, because --verify failed: {'; '.join(failed)}",
            "leave --verify out to write the preset anyway",
        )
        if not as_json:
            raise error
        document["error"] = {"kind": error.kind, "message": error.message, "hint": error.hint}
        click.echo(json.dumps(document))
        return error.exit_code
    document["backup"] = _write(format_name, text, output, old, as_json=as_json)
    if as_json:
        click.echo(json.dumps(document))
    return 0


def _notices(format_name: str, presets: Sequence[Preset]) -> list[str]:
    notices = []
    for preset in presets:
        about = f"{preset.model_name}: " if len(presets) > 1 else ""
        if not preset.proven:
            notices.append(f"{about}these settings are NOT proven at full context")
        if preset.has_hidden_values:
            notices.append(about + HIDDEN_NOTICE)
        if format_name in preset.rules.formats:
            notices += [about + notice for notice in find_format(format_name).notices(preset)]
    if len({preset.command for preset in presets}) > 1 and format_name == "ini":
        notices.append(
            "the models were tuned with different programs, but a router starts all of them with "
            "its own program"
        )
    return notices


def _refuse_same_names(format_name: str, presets: Sequence[Preset]) -> None:
    names = [find_format(format_name).entry_name(preset) for preset in presets]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise UsageError(
            f"two of the studies have a model called {repeated}",
            "export one, then add the other with --merge and another --name",
        )


def _refuse_other_models(
    format_name: str, presets: Sequence[Preset], old: str, output: str
) -> None:
    try:
        existing = models_in(format_name, old, output)
    except UsageError:
        return  # a file of another format
    own = {find_format(format_name).entry_name(preset) for preset in presets}
    others = [name for name in existing if name not in own]
    if others:
        raise UsageError(
            f"{output} has other models, which would be lost: {', '.join(others)}",
            "--merge keeps them; to replace the file, remove it first",
        )


def _existing_text(output: str) -> str | None:
    """Return the text of the file that would be replaced, or None if there is none."""
    path = Path(output).expanduser()
    if output == "-" or not path.is_file():
        return None
    try:
        return read_input(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "choose another file") from error


def _verify(
    format_name: str, text: str, presets: Sequence[Preset], runtime: Runtime
) -> list[PresetCheck]:
    """Start a server from a temporary file, so that no faulty preset replaces one that works."""
    with (
        tempfile.TemporaryDirectory(prefix="autofit-export-") as folder,
        machine_lock(f"export of {presets[0].model_name}"),
    ):
        file = Path(folder) / f"preset{find_format(format_name).suffix}"
        write_durably(file, text)
        checks = verify_preset(format_name, file, presets, runtime, Path(folder))
    for check in checks:
        say(check.line, err=True)
    return checks


def _write(
    format_name: str, text: str, output: str, old: str | None, *, as_json: bool
) -> str | None:
    """Write the text; return the path of the older file's copy, or None if there is none."""
    if output == "-":
        if not as_json:
            deliver(text, output)
        return None
    if old == text:
        say(f"{output} is unchanged, because it already has this preset", err=True)
        return None
    backup = None
    if old is not None:
        if _existing_text(output) != old:
            raise AutofitError(f"another program has changed {output} meanwhile", "export again")
        backup = f"{output}.bak"
        deliver(old, backup, like=Path(output).expanduser())
        say(f"kept the older file as {backup}", err=True)
    deliver(text, output, is_program=find_format(format_name).is_program)
    say(f"wrote {output}", err=True)
    return backup


def _model_document(preset: Preset) -> dict[str, Any]:
    return {
        "model": preset.model_name,
        "model_path": str(preset.model_path),
        "origin": preset.origin or "winner",
        "proven": preset.proven,
        "check": preset.environment.check_value,
    }


def _read_source(
    source: str, trial_number: int | None, runtime_path: str | None, *, unproven: bool
) -> tuple[Preset, Runtime]:
    """Return the preset of a study's winner, of one launch or of a plan, and its runtime.

    With `unproven` it may be the best so far of a tune that has no winner.

    Raises:
        UsageError: there is no such source, it has no winner, or its runtime is missing.
    """
    document = _plan_document(source)
    argv: Sequence[str] | None = None
    make: Callable[..., Preset]
    if document is not None:
        if trial_number is not None:
            raise UsageError("a plan has no trials", "leave --trial out, or give a study")
        header = plan_task(document, "on stdin" if source == "-" else source)
        argv, make = document["launch"]["argv"], partial(plan_preset, document)
    else:
        study = open_study(source)
        print_damage(study)
        header = study.header
        best = find_best_so_far(study) if trial_number is None else None
        if best is not None and unproven:
            make = partial(best_so_far_preset, study, best)
        elif trial_number is None:
            argv = _winner(study, best)["argv"]
            make = partial(winner_preset, header, study.result or {})
        else:
            make = partial(trial_preset, study, completed_trial(study, trial_number))
    found, fault = _find_runtime(header, runtime_path)
    if fault and argv is None:
        raise UsageError(
            f"the tune's runtime cannot be used: {fault}",
            "use --runtime PATH to start another runtime",
        )
    preset = make(
        runtime=_as_started(found, argv, header) if argv is not None else found,
        folder=Path.cwd(),
        made_on=datetime.now().astimezone().date(),
    )
    if fault:
        say(f"notice: the tune's runtime cannot be used: {fault}", err=True)
        return replace(preset, help=None), found
    if with_absolute_paths(preset.arguments, preset.help, preset.folder) != preset.arguments:
        say(f"notice: relative file names in the arguments start in {preset.folder}", err=True)
    return replace(preset, command=found.command), found


def _plan_document(source: str) -> Mapping[str, Any] | None:
    """Return the plan in a source, or None if the source is not a JSON file."""
    path = Path(source).expanduser()
    if source != "-" and (path.name == "study.json" or not path.is_file()):
        return None
    try:
        document = parse_json(read_stream(sys.stdin.buffer)) if source == "-" else read_json(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {source} as a plan: {error}",
            "give a study's folder, or what `autofit plan MODEL --json` prints",
        ) from error
    if not isinstance(document, dict):
        raise UsageError(f"{source} is not a plan", "give what `autofit plan MODEL --json` prints")
    return document


def _winner(study: Study, best: BestSoFar | None) -> Mapping[str, Any]:
    """Return the winner of a tune, or raise UsageError with how to export `best` instead."""
    if study.result is None:
        fault = "is not finished" if best else "has no finished launch that could be exported"
        hint = f"continue it: `{resume_command(study)}`"
    elif not study.result.get("winner"):
        fault = "has no winner that could be written as a preset"
        hint = f"`autofit show {study.path}` shows why"
    else:
        winner: Mapping[str, Any] = study.result["winner"]
        return winner
    if best is not None:
        hint += f"; --unproven exports its best so far, launch #{best.trial.number}"
    raise UsageError(f"the study {study.path} {fault}", hint)


def _find_runtime(header: StudyHeader, path: str | None) -> tuple[Runtime, str]:
    """Return the runtime to start, with the reason if it cannot be used, or an empty text."""
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


def _as_started(runtime: Runtime, argv: Sequence[str], header: StudyHeader) -> Runtime:
    """Return the runtime with the program that started it in `argv`.

    That program may differ from today's, because it or Python may have moved.
    """
    template = runtime.dialect.program.command or (Path(header.runtime_path).name,)
    for start in range(len(argv) - len(template) + 1):
        command = tuple(argv[start : start + len(template)])
        if all(known in ("{python}", word, Path(word).name)
               for known, word in zip(template, command, strict=True)):  # fmt: skip
            return replace(runtime, command=command)
    return runtime
