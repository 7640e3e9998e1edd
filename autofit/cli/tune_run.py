"""A tune that is started from the command line, from its task to its result and its files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofit.cli.options.shared_options import RunOptions
from autofit.cli.run_setup import Run, open_run
from autofit.errors import UsageError
from autofit.knowledge.expectation import expected_course
from autofit.knowledge.knowledge_document import KnownStudy
from autofit.knowledge.knowledge_folder import read_knowledge, study_knowledge
from autofit.knowledge.study_knowledge import machine_of, past_studies
from autofit.memory.calibration import CalibrationStore
from autofit.memory.memory_model import MemoryModel
from autofit.output.report.html_report import html_report
from autofit.output.report.markdown_report import markdown_report
from autofit.output.text.trial_row import command_line
from autofit.presets.formats.registry import find_format, write_preset
from autofit.presets.preset import Preset
from autofit.presets.preset_source import winner_preset
from autofit.process.environment import removed_variables
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.command.argv_writer import Purpose, UnsupportedSetting
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.search.optuna_study import SearchStudy
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.events import Finished
from autofit.session.finalist import baseline_finalist
from autofit.session.runner import TrialRunner
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_planner, plan_launch, search_header
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate
from autofit.tune.baseline import describe_baseline
from autofit.tune.explore import Exploration, least_gain
from autofit.tune.pipeline import run_tune

# The port in the commands of a dry run. A real tune gets a free port from the system.
_PORT = 8080
# The formats that a tune writes; `autofit export` has more.
_FORMATS = ("ini", "args", "json")


@dataclass(slots=True)
class TuneRun:
    """A tune of a task.

    `checks_answers` is False if the model's answers mean nothing. A tune that `is_fresh` ignores
    what earlier studies have shown about the machine. `storage` is the URL of the Optuna storage
    that workers share, and `study_name` the name of their study there.
    """

    task: Task
    options: TaskOptions
    run_options: RunOptions
    max_launches: int
    seed: int
    checks_answers: bool = True
    is_fresh: bool = False
    storage: str | None = None
    study_name: str | None = None

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield the first commands of the tune, each with its purpose."""
        task = self.task
        yield f"baseline: {describe_baseline(task)}", self._shell_line(task.baseline, "baseline")
        known = None if self.is_fresh else read_knowledge(machine_of(task))
        search = self._search(self._memory_model(), known.studies if known else (), time.time())
        proposal = search.ask()
        candidate = search.problem.candidate_of(proposal.point) if proposal else None
        if candidate is not None:
            about = "first launch of the search; later ones depend on its measurement"
            yield about, self._shell_line(candidate, "measure")

    def _shell_line(self, candidate: Candidate, purpose: Purpose) -> str:
        plan = plan_launch(self.task, candidate, purpose=purpose)
        if isinstance(plan, UnsupportedSetting):
            return f"# cannot be launched: {plan.message}"
        unset = removed_variables({}, also_remove=self.task.runtime.dialect.variables)
        return command_line(plan.shown.argv, plan.shown.env, port=_PORT, unset=unset)

    def execute(self, argv: Sequence[str]) -> tuple[dict[str, Any], Study]:
        """Run the tune, write study, presets and reports; return the result and the study."""
        memory, folder = self._memory_model(), Path.cwd()
        header = search_header(self.task, self.options, seed=self.seed, argv=argv)
        fleet = None
        if self.storage is not None:
            from autofit.cli.tune_worker import open_fleet  # noqa: PLC0415 - heavy, and rarely used

            fleet = open_fleet(self.storage, self.study_name, header, self.task)
            header = replace(header, argv=fleet.hide_password(argv))
        with open_run(
            self.run_options,
            header,
            [self.task],
            notices=(*self._notices(), *_refused_formats(self.task, header, folder)),
            max_launches=self.max_launches,
            planner=memory.planner,
        ) as run:
            if fleet is not None:
                result = fleet.tune(run, memory, header, self)
            else:
                result = self._earlier_result(run) or self._tune(run, memory)
            _write_outputs(run, result, self.task.runtime, folder)
        return result, run.study

    def _notices(self) -> Iterator[str]:
        task = self.task
        yield from (*task.inventory.notices, *task.notices)
        for name, value in task.task_params.items():
            own = (task.baseline_params or {}).get(name, value)
            if own != value:
                yield f"the baseline runs with {name} {value}, as all launches do, not with {own}"

    @property
    def budget(self) -> dict[str, Any]:
        """The budget as JSON data."""
        return {"seconds": self.run_options.budget_s, "max_launches": self.max_launches}

    def _earlier_result(self, run: Run) -> dict[str, Any] | None:
        """Return the study's result if it was made with the same budget, or else None."""
        result = run.study.result
        if not result or result.get("budget") != self.budget:
            return None
        if result["launches"] != len(run.study.started()):
            return None
        run.notice("this tune is finished; a larger --budget or --max-launches continues it")
        return dict(result)

    def _tune(self, run: Run, memory: MemoryModel) -> dict[str, Any]:
        runner = run.make_runner(self.task, memory)
        return self.lead(runner, Exploration(self.task, runner, memory, self.search(run, memory)))

    def lead(self, runner: TrialRunner, exploration: Exploration) -> dict[str, Any]:
        """Run all phases, and return the result."""
        task = self.task
        evaluator = OutputEvaluator(runner, task, baseline_finalist(task))
        gate = QualityGate(evaluator if self.checks_answers else None, runner.note)
        result = run_tune(exploration, gate, seed=self.seed)
        return {**result.to_dict(), "budget": self.budget}

    def search(self, run: Run, memory: MemoryModel) -> SearchStudy:
        """Return the search of a run, with what earlier studies have shown about the machine."""
        known = study_knowledge(
            run.study,
            machine_of(self.task),
            is_resumed=self.run_options.resume,
            is_fresh=self.is_fresh,
        )
        for text in known.notices:
            run.notice(text)
        search = self._search(memory, known.studies, run.study.header.created_at)
        if search.problem.past_studies:
            expected = expected_course(
                search.problem,
                known.studies,
                seed=self.seed,
                least_gain=least_gain(self.task),
                most_launches=self.max_launches,
            )
            run.notice(expected)
        return search

    def _memory_model(self) -> MemoryModel:
        return self.task.memory_model(make_planner(self.task), CalibrationStore())

    def _search(self, memory: MemoryModel, known: Sequence[KnownStudy], now: float) -> SearchStudy:
        problem = search_problem(CandidateFactory(self.task), memory)
        past = past_studies(self.task, known, now=now)
        return SearchStudy(replace(problem, past_studies=past), seed=self.seed)


def _refused_formats(task: Task, header: StudyHeader, folder: Path) -> Iterator[str]:
    """Yield a notice for each format of presets that cannot express the winner of a task.

    The reason is in the model's path or the user's arguments and variables, which are known before
    the first launch.
    """
    candidate = Candidate(task.task_params)
    plan = plan_launch(task, candidate, purpose="preset")
    if isinstance(plan, UnsupportedSetting):
        return
    winner = {"params": candidate.params, "argv": plan.shown.argv, "env": plan.shown.env}
    yield from _preset_texts(_preset(header, {"winner": winner}, task.runtime, folder))[1]


def _write_outputs(run: Run, result: dict[str, Any], runtime: Runtime, folder: Path) -> None:
    """Write the result, the reports and the winner's presets, and end the display.

    The result is written first. A file that cannot be written after it becomes a notice.
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
