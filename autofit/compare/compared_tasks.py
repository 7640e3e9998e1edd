"""The tasks of the two sides of a comparison: labels, common context and facts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autofit.compare.comparison import SIDES, SideName
from autofit.errors import UsageError
from autofit.presets.formats.variable_expansion import without_marks
from autofit.presets.read_preset import ParsedPreset, shorten_apart
from autofit.runtime.command.redaction import redact_text, redact_variables
from autofit.session.task import Task
from autofit.session.task_setup import read_environment, shown_conditions, study_header
from autofit.study.fingerprint import file_digest
from autofit.study.study_header import StudyHeader
from autofit.trial.workload import Workload


@dataclass(frozen=True, slots=True)
class ComparedTasks:
    """The tasks of A and B, in this order, and their labels; both have the same workload.

    Raises:
        UsageError: they answer different numbers of requests at the same time.
    """

    tasks: tuple[Task, Task]
    labels: tuple[str, str]

    def __post_init__(self) -> None:
        slots = [_slot_count(task) for task in self.tasks]
        if slots[0] != slots[1]:
            raise UsageError(
                f"A answers {slots[0]} requests at the same time and B {slots[1]}",
                "set the same number for both with --parallel",
            )

    @property
    def workload(self) -> Workload:
        """The requests that both answer."""
        return self.tasks[0].workload

    @property
    def slot_context(self) -> int:
        """The tokens of context of a request that both have."""
        return min(task.slot_context(task.baseline) for task in self.tasks)

    def notices(self) -> Iterator[str]:
        """Yield notices for the user before the comparison begins."""
        for name, task in zip(SIDES, self.tasks, strict=True):
            yield from (f"{name}: {notice}" for notice in task.notices)
        requests = self.workload.requests
        needed = max(request.prompt_tokens + request.predicted_tokens for request in requests)
        if needed > self.slot_context:
            yield f"requests are cut to the {self.slot_context} tokens of context that both have"
        if _is_same_command(*self.tasks):
            yield "A and B are the same command: any difference is noise"

    def facts(self) -> dict[SideName, dict[str, Any]]:
        """Return the facts about each side in the result, except its measurements."""
        return {
            name: {
                "name": label,
                "model": str(task.model_path),
                "runtime": task.runtime.name,
                "program": str(task.runtime.program),
                "build": read_environment(task).build,
                "params": dict(task.baseline.params),
            }
            for name, label, task in zip(SIDES, self.labels, self.tasks, strict=True)
        }

    def header(self, *, seed: int, argv: Sequence[str]) -> StudyHeader:
        """Return the header of the study of the comparison."""
        return study_header(
            self.tasks[0],
            space={"name": "compare"},
            seed=seed,
            argv=argv,
            options={
                name: {
                    "params": dict(task.baseline.params),
                    **shown_conditions(task),
                    "rpc": task.rpc,
                    "build": read_environment(task).build,
                    "model": file_digest(task.inventory.files),
                }
                for name, task in zip(SIDES, self.tasks, strict=True)
            },
        )


def label_presets(a: ParsedPreset, b: ParsedPreset) -> tuple[str, str]:
    """Return short names of two presets; they differ if the presets differ."""
    if a.label != b.label:
        return a.label, b.label
    if a.section != b.section:
        return f"{a.label} ({a.section})", f"{b.label} ({b.section})"
    commands = _command_text(a), _command_text(b)
    return (a.label, b.label) if commands[0] == commands[1] else shorten_apart(*commands)


def _command_text(preset: ParsedPreset) -> str:
    variables = (f"{name}={value}" for name, value in redact_variables(preset.server.env).items())
    command = redact_text(shlex.join(preset.server.argv))
    return without_marks(" ".join((*variables, command)))


def _slot_count(task: Task) -> int:
    return max(1, task.baseline.get_int("parallel", 1))


def _is_same_command(a: Task, b: Task) -> bool:
    return (
        a.runtime.fingerprint == b.runtime.fingerprint
        and a.baseline == b.baseline
        and a.baseline_args == b.baseline_args
        and a.env == b.env
        and a.wrapper == b.wrapper
        and a.model_path == b.model_path
    )
