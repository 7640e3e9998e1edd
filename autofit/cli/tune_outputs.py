"""The files of a finished tune: its result, the reports, and the winner's presets.

The result is written first. What cannot be written after it becomes a notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofit.cli.run_setup import Run
from autofit.errors import UsageError
from autofit.output.report.html_report import html_report
from autofit.output.report.markdown_report import markdown_report
from autofit.presets.formats.registry import find_format, write_preset
from autofit.presets.preset import Preset
from autofit.presets.preset_source import winner_preset
from autofit.runtime.command.argv_writer import UnsupportedSetting
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.session.events import Finished
from autofit.session.task import Task
from autofit.session.task_setup import plan_launch
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate

# The formats that a tune writes; `autofit export` has more.
_FORMATS = ("ini", "args", "json")


def refused_formats(task: Task, header: StudyHeader, folder: Path) -> Iterator[str]:
    """Yield a notice for each format that can hold no winner of a task.

    The model's path and the user's arguments and variables are known before the first launch.
    """
    candidate = Candidate(task.task_params)
    plan = plan_launch(task, candidate, purpose="preset")
    if isinstance(plan, UnsupportedSetting):
        return
    winner = {"params": candidate.params, "argv": plan.shown.argv, "env": plan.shown.env}
    yield from _preset_texts(_preset(header, {"winner": winner}, task.runtime, folder))[1]


def write_outputs(run: Run, result: dict[str, Any], runtime: Runtime, folder: Path) -> None:
    """Write the result, the reports and the winner's presets, and end the display.

    `folder` is where the tune was started. The key `preset` of the result becomes the path of
    the first preset, or None.
    """
    study = run.study
    texts: dict[str, str] = {}
    if result["winner"] is not None:
        with run.keeping_result("a preset"):
            texts, refused = _preset_texts(_preset(study.header, result, runtime, folder))
            result["notes"] = list(dict.fromkeys((*result["notes"], *refused)))
            for notice in refused:
                if notice not in run.notices:
                    run.notice(notice)
    names = {
        name: f"presets/{study.header.model_name}{find_format(name).suffix}" for name in texts
    }
    result["preset"] = next((str(study.path / name) for name in names.values()), None)
    with run.keeping_result("the result"):
        study.conclude(result)
    text = next(iter(texts.values()), "")
    with run.keeping_result("report.md"):
        study.write_output("report.md", markdown_report(study, preset=text))
    if find_spec("plotly") and find_spec("jinja2"):  # the extra `report`
        with run.keeping_result("report.html"):
            study.write_output("report.html", html_report(study, preset=text))
    written = list(_write_presets(run, names, texts))
    first = str(written[0]) if written else None
    if result["preset"] != first:
        result["preset"] = first
        with run.keeping_result("the result"):
            study.conclude(result)
    run.emit(Finished(result))


def _write_presets(run: Run, names: Mapping[str, str], texts: Mapping[str, str]) -> Iterator[Path]:
    """Write the presets, and yield the paths of those that could be written."""
    for format_name, name in names.items():
        with run.keeping_result(name):
            yield run.study.write_output(name, texts[format_name])


def _preset(
    header: StudyHeader, result: Mapping[str, Any], runtime: Runtime, folder: Path
) -> Preset:
    return winner_preset(
        header,
        result,
        runtime=runtime,
        folder=folder,
        made_on=date.today(),  # noqa: DTZ011
    )


def _preset_texts(preset: Preset) -> tuple[dict[str, str], list[str]]:
    """Return the preset's text by format, and a notice for each format that cannot hold it."""
    texts: dict[str, str] = {}
    refused: list[str] = []
    for name in _FORMATS:
        if name not in preset.rules.formats:
            continue
        try:
            texts[name] = write_preset(name, preset)
        except UsageError as error:
            refused.append(f"there will be no preset in the format {name}: {error.message}")
    return texts, refused
