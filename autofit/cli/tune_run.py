"""One tune from the command line: study, lock, console, signals, and what is written after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofit.cli.options.shared_options import RunOptions
from autofit.cli.run_setup import Run, open_run
from autofit.memory.calibration import CalibrationStore
from autofit.memory.memory_model import MemoryModel
from autofit.output.report.html_report import html_report
from autofit.output.report.markdown_report import markdown_report
from autofit.output.text.trial_row import command_line
from autofit.presets.formats.registry import find_format, write_preset
from autofit.presets.preset_source import winner_preset, written_preset
from autofit.process.environment import removed_variables
from autofit.runtime.command.argv_writer import UnsupportedSetting, make_launch_plan
from autofit.search.optuna_study import SearchStudy
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.events import Finished
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_planner, search_header
from autofit.study.study_folder import Study
from autofit.tune.pipeline import Tune

# Formats that a tune writes by itself; `autofit export` has more.
_PRESETS = ("ini", "args", "json")
_DRY_RUN_CANDIDATES = 5
# Stands in the lines of a dry run; a tune asks the system for a free one.
_PORT = 8080


@dataclass(slots=True)
class TuneRun:
    """A tune of a task."""

    task: Task
    options: TaskOptions
    total_s: float | None
    max_launches: int
    seed: int
    checks_answers: bool = True

    def commands(self) -> Iterator[tuple[str, str]]:
        """The commands that a tune would begin with: what each is for, and its shell line."""
        yield self._baseline_words(), self._line("baseline")
        search = self._search(self._memory())
        for _ in range(_DRY_RUN_CANDIDATES):
            proposal = search.ask()
            if proposal is None:
                return
            candidate = search.problem.candidate_of(proposal.point)
            search.cancel()
            if candidate is None:
                return
            about = "search begins with; what follows depends on what this one measures"
            yield about, self._line("measure", candidate.params)
            return

    def _baseline_words(self) -> str:
        if self.task.baseline_params is not None:
            return "baseline: your own command"
        return "baseline: the runtime's own choice"

    def _line(self, purpose: Any, params: Any = None) -> str:  # noqa: ANN401
        task = self.task
        candidate = task.baseline if params is None else type(task.baseline)(params)
        plan = make_launch_plan(
            task.runtime,
            task.model_path,
            candidate,
            purpose=purpose,
            rpc=task.rpc,
            extra_args=(
                *(task.baseline_args if purpose == "baseline" else ()),
                *task.extra_args,
            ),
            env=task.env,
            wrapper=task.wrapper,
        )
        if isinstance(plan, UnsupportedSetting):
            return f"# cannot be launched: {plan.message}"
        unset = removed_variables({}, also_remove=task.runtime.dialect.variables)
        return command_line(plan.argv, plan.env, port=_PORT, unset=unset)

    def execute(self, run_options: RunOptions, *, argv: list[str]) -> dict[str, Any]:
        """Run the tune and write study, presets and reports."""
        task, memory = self.task, self._memory()
        with open_run(
            run_options,
            search_header(task, self.options, seed=self.seed, argv=argv),
            [task],
            notices=self._notices(),
            max_launches=self.max_launches,
            planner=memory.planner,
        ) as run:
            result = self._finished(run) or self._tune(run, memory)
            result["preset"] = self._write(run.study, result)
            run.emit(Finished(result))
        return result

    def _notices(self) -> Iterator[str]:
        task = self.task
        yield from (*task.inventory.notices, *task.notices)
        for name, value in task.task_params.items():
            own = (task.baseline_params or {}).get(name, value)
            if own != value:
                yield f"the baseline runs with {name} {value} like all launches, not with {own}"

    @property
    def _budget(self) -> dict[str, Any]:
        return {"seconds": self.total_s, "max_launches": self.max_launches}

    def _finished(self, run: Run) -> dict[str, Any] | None:
        """Return the study's result if it was made with this very budget, else None."""
        result = run.study.result
        if not result or result.get("budget") != self._budget:
            return None
        if result["launches"] != len(run.study.started()):
            return None
        run.notice("this tune is finished; a larger --budget or --max-launches continues it")
        return dict(result)

    def _tune(self, run: Run, memory: MemoryModel) -> dict[str, Any]:
        runner = run.make_runner(run.make_launcher(self.task, memory), memory)
        tune = Tune(self.task, runner, memory, self._search(memory), run.emit, self.seed)
        tune.checks_answers = self.checks_answers
        return {**tune.run(), "budget": self._budget}

    def _memory(self) -> MemoryModel:
        return self.task.memory_model(make_planner(self.task), CalibrationStore())

    def _search(self, memory: MemoryModel) -> SearchStudy:
        return SearchStudy(search_problem(CandidateFactory(self.task), memory), seed=self.seed)

    def _write(self, study: Study, result: dict[str, Any]) -> str | None:
        first_path: str | None = None
        if result["winner"] is not None:
            preset = winner_preset(
                study.header,
                result,
                runtime=self.task.runtime,
                folder=Path.cwd(),
                made_on=date.today(),  # noqa: DTZ011
            )
            for name in (name for name in _PRESETS if name in preset.rules.formats):
                path = study.write_output(
                    f"presets/{study.header.model_name}{find_format(name).suffix}",
                    write_preset(name, preset),
                )
                first_path = first_path or str(path)
        study.conclude({**result, "preset": first_path})
        text = written_preset(study)
        study.write_output("report.md", markdown_report(study, preset=text))
        if find_spec("plotly") and find_spec("jinja2"):  # the extra `report`
            study.write_output("report.html", html_report(study, preset=text))
        return first_path
