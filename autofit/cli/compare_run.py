"""One comparison from the command line: study, lock, console and signals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.cli.options.preset_argument import PresetOptions, preset_situation
from autofit.cli.stopping import Stopping
from autofit.cli.study_run import measured_folder
from autofit.compare.compare_presets import SIDES, Comparison, Side, SideName, VerbatimLauncher
from autofit.compare.comparison import comparison_document
from autofit.errors import UsageError
from autofit.machine.host_load import host_state
from autofit.output.text.console import TuneConsole
from autofit.presets.label import shorten_apart
from autofit.presets.read_preset import ReadPreset
from autofit.process import removed_variables, system_config
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.session.budget import Budget
from autofit.session.events import Finished, Listener, Notice, PhaseStarted
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.session.task_setup import make_launcher, read_environment, study_header
from autofit.study.fingerprint import file_digest
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload


@dataclass(slots=True)
class CompareRun:
    """A comparison of two situations, A and B in this order; both have the same workload."""

    situations: tuple[Task, Task]
    labels: tuple[str, str]
    rounds: int
    min_effect: float
    total_s: float
    seed: int
    _stopping: Stopping = field(default_factory=Stopping)

    @classmethod
    def of(
        cls,
        presets: tuple[ReadPreset, ReadPreset],
        options: tuple[PresetOptions, PresetOptions],
        *,
        objective: Metric,
        workload: Workload | None,
        rounds: int,
        min_effect: float,
        total_s: float,
        seed: int,
    ) -> CompareRun:
        """Look at both presets.

        Raises:
            UsageError: one cannot be launched here, or the two cannot be asked alike.
        """
        first, second = (
            preset_situation(preset, wanted, objective=objective, workload=workload)
            for preset, wanted in zip(presets, options, strict=True)
        )
        parallel = [_slots(one.baseline) for one in (first, second)]
        if parallel[0] != parallel[1]:
            raise UsageError(
                f"A answers {parallel[0]} requests at once and B {parallel[1]}",
                "say how many with --parallel, for both",
            )
        return cls((first, second), _labels(*presets), rounds, min_effect, total_s, seed)

    @property
    def slot_context(self) -> int:
        """The tokens of context that both have for a request."""
        return min(_slot_context(task) for task in self.situations)

    def execute(self, folder: Path | None, *, resume: bool, argv: list[str]) -> dict[str, Any]:
        """Run the comparison and keep what came of it."""
        head = self._header(argv)
        workload = self.situations[0].workload
        console = TuneConsole(workload, budget_s=self.total_s)
        with (
            measured_folder(folder, f"compare-{head.model_name}") as path,
            Study.resume(path, head) if resume else Study.create(path, head) as study,
            console,
            self._stopping.watched(study, console),
        ):
            notices = list(self._notices(study))
            for notice in notices:
                console(Notice(notice))
            result = self._compare(study, console, notices)
            study.conclude(result)
            console(Finished(result))
        return result

    def _compare(self, study: Study, listener: Listener, notices: list[str]) -> dict[str, Any]:
        first = self.situations[0]
        budget = Budget(time.monotonic, self.total_s)
        sides = tuple(
            Side(
                name=name,
                task=task,
                runner=TrialRunner(
                    study=study,
                    launching=VerbatimLauncher(make_launcher(task)),
                    budget=budget,
                    emit=listener,
                    wall_clock=time.time,
                    should_stop=self._stopping.is_asked,
                ),
                model_digest=file_digest(task.inventory.files),
            )
            for name, task in zip(SIDES, self.situations, strict=True)
        )
        notes = notices[1:]

        def note(text: str) -> None:
            notes.append(text)
            listener(Notice(text))

        match = Comparison(
            sides=(sides[0], sides[1]),
            workload=first.workload,
            slot_context=self.slot_context,
            metric=first.objective,
            note=note,
            rounds=self.rounds,
            min_effect=self.min_effect,
            seed=self.seed,
        )
        listener(PhaseStarted("confirm"))
        compared = match.run()
        document = comparison_document(
            compared, first.workload, first.objective, self.min_effect, self._about()
        )
        return {
            "study": str(study.path),
            **document,
            "seconds": round(budget.spent_s, 1),
            "notes": notes,
        }

    def _about(self) -> dict[SideName, dict[str, Any]]:
        return {
            name: {
                "name": label,
                "model": str(task.model_path),
                "runtime": task.runtime.name,
                "program": str(task.runtime.program),
                "build": read_environment(task).build,
                "params": dict(task.baseline.params),
            }
            for name, label, task in zip(SIDES, self.labels, self.situations, strict=True)
        }

    def _header(self, argv: list[str]) -> StudyHeader:
        first = self.situations[0]
        return study_header(
            first,
            space={"name": "compare"},
            seed=self.seed,
            argv=argv,
            options={
                name: {
                    "params": dict(task.baseline.params),
                    "args": [*task.baseline_args, *task.extra_args],
                    "env": dict(task.env),
                    "wrapper": list(task.wrapper),
                    "rpc": task.rpc,
                    "build": read_environment(task).build,
                    "model": file_digest(task.inventory.files),
                }
                for name, task in zip(SIDES, self.situations, strict=True)
            },
        )

    def _notices(self, study: Study) -> Iterator[str]:
        yield f"study {study.path}"
        yield from study.notices
        first, second = self.situations
        for name, task in zip(SIDES, self.situations, strict=True):
            yield from (f"{name}: {notice}" for notice in task.notices)
        requests = first.workload.requests
        needed = max(request.prompt_tokens + request.predicted_tokens for request in requests)
        if needed > self.slot_context:
            yield f"requests are cut to the {self.slot_context} tokens of context that both have"
        if _is_same(first, second):
            yield "A and B are the same command: what differs is noise"
        config = system_config()
        if config:
            yield f"{config} changes llama.cpp's defaults"
        removed = removed_variables({**first.env, **second.env})
        if removed:
            yield f"not passed on to the runtimes: {', '.join(removed)}"
        yield from host_state(0.3).words()


def _labels(one: ReadPreset, other: ReadPreset) -> tuple[str, str]:
    """What the two are called, which differs where they do."""
    if one.label != other.label:
        return one.label, other.label
    if one.section != other.section:
        return f"{one.label} ({one.section})", f"{other.label} ({other.section})"
    commands = _command(one), _command(other)
    return (one.label, other.label) if commands[0] == commands[1] else shorten_apart(*commands)


def _command(preset: ReadPreset) -> str:
    variables = (f"{name}={value}" for name, value in redact_variables(preset.env).items())
    return " ".join((*variables, *redact_command(preset.argv)))


def _slots(candidate: Candidate) -> int:
    return max(1, candidate.get_int("parallel", 1))


def _slot_context(task: Task) -> int:
    candidate = task.baseline
    context = candidate.get_int("context", task.workload.context)
    # 0 asks the runtime for all that the model was trained for.
    known = context if context > 0 else task.inventory.context_train
    return max(1, known // _slots(candidate))


def _is_same(one: Task, other: Task) -> bool:
    return (
        one.runtime.fingerprint == other.runtime.fingerprint
        and one.baseline == other.baseline
        and one.baseline_args == other.baseline_args
        and one.env == other.env
        and one.wrapper == other.wrapper
        and one.model_path == other.model_path
    )
