"""What else than a tune's winner a preset can be made of: one launch, or a plan."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts, winner_facts
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.statistics.estimate import estimate
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.trial.metric import METRIC_KEYS, METRICS, pooled_values
from autofit.trial.trial import Trial


def completed_trial(study: Study, number: int) -> Trial:
    """A launch of a study that did what it was asked.

    Raises:
        UsageError: there is none of that number, or it failed.
    """
    hint = f"`autofit show {study.path}` lists the launches"
    trial = next((trial for trial in study.trials() if trial.number == number), None)
    if trial is None:
        raise UsageError(f"the study {study.path} has no trial {number}", hint)
    if not trial.is_completed:
        failure = trial.outcome.kind.replace("_", " ")
        raise UsageError(f"trial {number} failed ({failure}): no server would start from it", hint)
    return trial


def trial_facts(
    study: Study, trial: Trial, *, runtime: Runtime, folder: Path, made_on: date
) -> PresetFacts:
    """The facts of one launch, with its settings as they would be served.

    Raises:
        UsageError: the runtime does not take them.
    """
    header, options = study.header, study.header.options
    is_own = trial.is_verbatim
    own = options.get("baseline", {}).get("args", ()) if is_own else ()
    plan = make_launch_plan(
        runtime,
        folder / header.model_path,
        trial.candidate,
        purpose="own_fit" if is_own else "preset",
        rpc=options.get("rpc", ""),
        extra_args=(*own, *options.get("extra_args", ())),
        env=options.get("env", {}),
        wrapper=tuple(options.get("wrapper", ())),
    )
    if isinstance(plan, UnsupportedSetting):
        raise UsageError(plan.message, "name the runtime of the tune with --runtime PATH")
    measured = trial.measurement
    found = {} if measured is None else _estimates(trial, header)
    winner = {
        "params": dict(trial.candidate.params),
        "argv": plan.argv,
        "env": plan.env,
        "estimates": found,
        "peak_mib": measured.peak_mib if measured else {},
        "taken_mib": measured.taken_mib() if measured else {},
        "free_mib": measured.free_mib if measured else {},
        "proven": trial.phase == "prove",
    }
    return winner_facts(
        header,
        {"winner": winner},
        runtime=runtime,
        folder=folder,
        made_on=made_on,
        origin=f"trial {trial.number} ({trial.phase}) of the study {study.path}",
    )


def _estimates(trial: Trial, header: StudyHeader) -> dict[str, Any]:
    measured = [trial.measurement] if trial.measurement else []
    told = {
        METRIC_KEYS[metric]: estimate(pooled_values(measured, header.workload, metric))
        for metric in METRICS
    }
    return {name: value.to_dict() for name, value in told.items() if value is not None}


def plan_task(document: Mapping[str, Any], label: str) -> StudyHeader:
    """What a plan was made for.

    Raises:
        UsageError: it is no plan, an old one, or nothing fitted.
    """
    if "layouts" not in document or "launch" not in document:
        raise UsageError(
            f"{label} is no plan", "give what `autofit plan MODEL --json` prints, or a study"
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


def plan_facts(
    document: Mapping[str, Any], *, runtime: Runtime, folder: Path, made_on: date
) -> PresetFacts:
    """The facts of a plan's recommended layout: estimated, never launched."""
    header = StudyHeader.from_dict(document["launch"]["task"])
    left_mib = {
        device["name"]: device["free_mib"] - device["total_mib"] for device in document["devices"]
    }
    winner = {
        "params": document["params"],
        "argv": document["launch"]["argv"],
        "env": document["launch"]["env"],
        "free_mib": left_mib,
        "proven": False,
    }
    return winner_facts(
        header,
        {"winner": winner},
        runtime=runtime,
        folder=folder,
        made_on=made_on,
        origin="a plan: memory was estimated, nothing was launched or measured",
    )
