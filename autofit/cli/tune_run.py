"""A tune that is started from the command line, from its task to its result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autofit.cli.options.shared_options import RunOptions
from autofit.cli.run_setup import Run, open_run
from autofit.cli.tune_outputs import refused_formats, write_outputs
from autofit.memory.calibration import CalibrationStore
from autofit.memory.memory_model import MemoryModel
from autofit.output.text.trial_row import command_line
from autofit.process.environment import removed_variables
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.quality_gate import QualityGate
from autofit.runtime.command.argv_writer import Purpose, UnsupportedSetting
from autofit.search.optuna_study import SearchStudy
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.finalist import baseline_finalist
from autofit.session.search_problem import search_problem
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import make_planner, plan_launch, search_header
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.tune.baseline import describe_baseline
from autofit.tune.pipeline import run_tune

# The port in the commands of a dry run. A real tune gets a free port from the system.
_PORT = 8080


@dataclass(slots=True)
class TuneRun:
    """A tune of a task. `checks_answers` is False if the model's answers mean nothing."""

    task: Task
    options: TaskOptions
    run_options: RunOptions
    max_launches: int
    seed: int
    checks_answers: bool = True

    def commands(self) -> Iterator[tuple[str, str]]:
        """Yield the first commands of the tune, each with its purpose."""
        task = self.task
        yield f"baseline: {describe_baseline(task)}", self._shell_line(task.baseline, "baseline")
        search = self._search(self._memory_model())
        proposal = search.ask()
        candidate = search.problem.candidate_of(proposal.point) if proposal else None
        if candidate is not None:
            about = "search begins with; what follows depends on what this one measures"
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
        with open_run(
            self.run_options,
            header,
            [self.task],
            notices=(*self._notices(), *refused_formats(self.task, header, folder)),
            max_launches=self.max_launches,
            planner=memory.planner,
        ) as run:
            result = self._earlier_result(run) or self._tune(run, memory)
            write_outputs(run, result, self.task.runtime, folder)
        return result, run.study

    def _notices(self) -> Iterator[str]:
        task = self.task
        yield from (*task.inventory.notices, *task.notices)
        for name, value in task.task_params.items():
            own = (task.baseline_params or {}).get(name, value)
            if own != value:
                yield f"the baseline runs with {name} {value} like all launches, not with {own}"

    @property
    def _budget(self) -> dict[str, Any]:
        return {"seconds": self.run_options.budget_s, "max_launches": self.max_launches}

    def _earlier_result(self, run: Run) -> dict[str, Any] | None:
        """Return the study's result if it was made with the same budget, or else None."""
        result = run.study.result
        if not result or result.get("budget") != self._budget:
            return None
        if result["launches"] != len(run.study.started()):
            return None
        run.notice("this tune is finished; a larger --budget or --max-launches continues it")
        return dict(result)

    def _tune(self, run: Run, memory: MemoryModel) -> dict[str, Any]:
        task = self.task
        runner = run.make_runner(run.make_launcher(task, memory), memory)
        evaluator = OutputEvaluator(runner, task, baseline_finalist(task))
        gate = QualityGate(evaluator if self.checks_answers else None, runner.note)
        result = run_tune(task, runner, memory, self._search(memory), gate, seed=self.seed)
        return {**result.to_dict(), "budget": self._budget}

    def _memory_model(self) -> MemoryModel:
        return self.task.memory_model(make_planner(self.task), CalibrationStore())

    def _search(self, memory: MemoryModel) -> SearchStudy:
        return SearchStudy(search_problem(CandidateFactory(self.task), memory), seed=self.seed)
