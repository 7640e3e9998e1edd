"""Presets of a tune's winner, of one launch, and of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.input_files import read_input
from autofit.presets.command_options import OVERRIDES
from autofit.presets.formats.preset_format import LARGEST_BYTES
from autofit.presets.preset import Preset
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.session.best_so_far import BestSoFar, metric_estimates
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.trial.trial import Trial


def winner_preset(
    header: StudyHeader,
    result: Mapping[str, Any],
    *,
    runtime: Runtime,
    folder: Path,
    made_on: date,
    origin: str = "",
) -> Preset:
    """Return the preset of a tune's winner; the tune was started in `folder`.

    Raises:
        UsageError: the tune has no winner, or the winner ran on another runtime.
    """
    winner = result.get("winner")
    if not winner:
        raise UsageError(
            "this study has no winner, so it has no preset", "`autofit show STUDY` shows why"
        )
    wrapper, arguments = _split_argv(tuple(winner["argv"]), runtime.command)
    dialect = runtime.dialect
    return Preset(
        model_name=header.model_name,
        model_path=folder / header.model_path,
        wrapper=wrapper,
        command=runtime.command,
        arguments=arguments,
        address=dialect.launch.address,
        env=winner.get("env") or {},
        params=winner["params"],
        help=runtime.help,
        folder=folder,
        rules=dialect.preset,
        tunable=_tunable(dialect),
        origin=origin,
        workload=header.workload,
        objective=header.objective,
        environment=header.environment,
        gain=result.get("gain"),
        tie=bool(result.get("tie")),
        proven=bool(winner.get("proven")),
        estimates=winner.get("estimates") or {},
        peak_mib=winner.get("peak_mib") or {},
        taken_mib=winner.get("taken_mib") or {},
        free_mib=winner.get("free_mib") or {},
        made_on=made_on,
        autofit_version=header.autofit_version,
    )


def _tunable(dialect: Dialect) -> frozenset[str]:
    """Return the flags and variables that a tune on this dialect may choose."""
    launch = dialect.launch
    spellings = (s for parameter in dialect.parameters.values() for s in parameter.spellings)
    flags = {flag for spelling in spellings for flag in spelling.flags}
    flags |= {group[0] for group in launch.always}
    return frozenset(flags | dialect.variables | {*OVERRIDES, *filter(None, [launch.rpc])})


def _split_argv(
    argv: tuple[str, ...], command: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wrapper before the command, and the arguments after it."""
    for start in range(len(argv) - len(command) + 1):
        end = start + len(command)
        if argv[start:end] == command:
            return argv[:start], argv[end:]
    raise UsageError(
        f"the winner was not started with {' '.join(command)!r}",
        "give the runtime that the tune used: --runtime PATH",
    )


def completed_trial(study: Study, number: int) -> Trial:
    """Return a completed launch of a study.

    Raises:
        UsageError: the study has no launch of that number, or the launch failed.
    """
    hint = f"`autofit show {study.path}` lists the launches"
    trial = next((trial for trial in study.trials() if trial.number == number), None)
    if trial is None:
        raise UsageError(f"the study {study.path} has no trial {number}", hint)
    if not trial.is_completed:
        failure = trial.outcome.kind.replace("_", " ")
        raise UsageError(
            f"trial {number} failed ({failure}): a server with its settings would not work", hint
        )
    return trial


def trial_preset(
    study: Study, trial: Trial, *, runtime: Runtime, folder: Path, made_on: date
) -> Preset:
    """Return the preset of one launch, without what autofit adds for measuring.

    Raises:
        UsageError: the runtime does not have its settings.
    """
    header, options = study.header, study.header.options
    is_verbatim = trial.is_verbatim
    own_args = options.get("baseline", {}).get("args", ()) if is_verbatim else ()
    plan = make_launch_plan(
        runtime,
        folder / header.model_path,
        trial.candidate,
        purpose="own_fit" if is_verbatim else "preset",
        rpc=options.get("rpc", ""),
        extra_args=(*own_args, *options.get("extra_args", ())),
        env=options.get("env", {}),
        wrapper=tuple(options.get("wrapper", ())),
    )
    if isinstance(plan, UnsupportedSetting):
        raise UsageError(plan.message, "give the runtime that the tune used: --runtime PATH")
    measured = trial.measurement
    winner = {
        "params": dict(trial.candidate.params),
        "argv": plan.shown.argv,
        "env": plan.shown.env,
        "estimates": metric_estimates([measured] if measured else [], header.workload),
        "peak_mib": measured.peak_mib if measured else {},
        "taken_mib": measured.taken_mib() if measured else {},
        "free_mib": measured.free_mib if measured else {},
        "proven": trial.phase == "prove",
    }
    return winner_preset(
        header,
        {"winner": winner},
        runtime=runtime,
        folder=folder,
        made_on=made_on,
        origin=f"trial {trial.number} ({trial.phase}) of the study {study.path}",
    )


def best_so_far_preset(
    study: Study, best: BestSoFar, *, runtime: Runtime, folder: Path, made_on: date
) -> Preset:
    """Return the preset of the best candidate of a tune that has no winner.

    Raises:
        UsageError: the runtime does not have its settings.
    """
    preset = trial_preset(study, best.trial, runtime=runtime, folder=folder, made_on=made_on)
    found = best.to_dict()
    confirmed = "confirmed" if best.is_confirmed else "NOT CONFIRMED"
    return replace(
        preset,
        origin=f"the best so far of the unfinished tune {study.path} (launch "
        f"{best.trial.number}): {confirmed} in rounds against the baseline",
        gain=found["gain"],
        proven=best.is_proven,
        **{name: found[name] for name in ("estimates", "peak_mib", "taken_mib", "free_mib")},
    )


def plan_task(document: Mapping[str, Any], label: str) -> StudyHeader:
    """Return the task that a plan was made for.

    Raises:
        UsageError: the document is not a plan, is damaged, or no layout fitted.
    """
    if "layouts" not in document or "launch" not in document:
        raise UsageError(
            f"{label} is not a plan", "give what `autofit plan MODEL --json` prints, or a study"
        )
    if document["launch"] is None:
        raise UsageError(
            f"in the plan {label} no layout fits", "plan with less context, or more devices"
        )
    try:
        return StudyHeader.from_dict(document["launch"]["task"])
    except (KeyError, TypeError) as error:
        raise UsageError(
            f"the plan {label} is damaged: {error}", "make it again with `autofit plan --json`"
        ) from error


def plan_preset(
    document: Mapping[str, Any], *, runtime: Runtime, folder: Path, made_on: date
) -> Preset:
    """Return the preset of a plan's recommended layout: estimated, never launched."""
    winner = {
        "params": document["params"],
        "argv": document["launch"]["argv"],
        "env": document["launch"]["env"],
        "free_mib": {
            device["name"]: device["free_mib"] - device["total_mib"]
            for device in document["devices"]
        },
        "proven": False,
    }
    return winner_preset(
        StudyHeader.from_dict(document["launch"]["task"]),
        {"winner": winner},
        runtime=runtime,
        folder=folder,
        made_on=made_on,
        origin="a plan: memory was estimated, nothing was launched or measured",
    )


def written_preset(study: Study) -> str:
    """Return the text of the preset that a tune wrote into its study, or "" if there is none."""
    name = (study.result or {}).get("preset")
    if not name:
        return ""
    # A study that was moved still has it in its own folder.
    for path in (study.path / "presets" / Path(name).name, study.path / name):
        try:
            return read_input(path, LARGEST_BYTES).decode("utf-8", errors="replace")
        except OSError:
            continue
    return ""
