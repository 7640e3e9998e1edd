"""Kept settings measured again, in rounds of fresh processes.

Beside them, in the same rounds, are the same settings on an old runtime if there is one, and
neighbours that need one layer more or less in host memory. A nightly measurement wants the
same number of launches every night, so no rule ends it early.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autofit.errors import MissingError
from autofit.presets.preset_task import PresetOptions, build_preset_task
from autofit.presets.read_preset import read_preset
from autofit.quality.prompt_set import PromptSet, collect_answers
from autofit.runtime.server.request_plan import plan_measurement
from autofit.session.budget_advice import launches_need, shortage
from autofit.session.build_task import build_task
from autofit.session.rounds import round_purpose
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import read_environment, study_header
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate, Params
from autofit.trial.outcome import outcome_to_dict
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

KEPT = "kept"
BEFORE = "before"
# What shows whether a neighbour fits, and roughly how fast it is.
_NEIGHBOUR_ROUNDS = 3
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class RemeasuredSettings:
    """The settings to measure, and their task on each runtime: the new one, then the old one.

    With `is_verbatim` they are the whole command, which autofit does not complete.
    """

    tasks: tuple[Task, ...]
    candidate: Candidate
    is_verbatim: bool

    @property
    def slot_context(self) -> int:
        """The tokens of context of a request."""
        slots = max(1, self.candidate.get_int("parallel", 1))
        return max(1, self.candidate.get_int("context", self.tasks[0].workload.context) // slots)

    def header(self, *, seed: int, argv: Sequence[str]) -> StudyHeader:
        """Return the header of the study."""
        first = self.tasks[0]
        return study_header(
            first,
            space={"name": "remeasure"},
            seed=seed,
            argv=argv,
            options={
                "params": dict(self.candidate.params),
                "args": [*first.baseline_args, *first.extra_args],
                "env": dict(first.env),
                "wrapper": list(first.wrapper),
                "rpc": first.rpc,
                "builds": [read_environment(task).build for task in self.tasks],
            },
        )


def find_settings(
    options: TaskOptions, params: Params | None, *, preset: str | None, against: str | None
) -> RemeasuredSettings:
    """Return the settings of `params`, of a preset, or the runtime's own, with their tasks.

    `against` is the path of an old runtime.

    Raises:
        UsageError: something does not exist, or cannot be launched here.
    """
    runtimes = [options.runtime, *([against] if against else [])]
    tasks = tuple(_build_task(replace(options, runtime=runtime), preset) for runtime in runtimes)
    first = tasks[0]
    candidate, is_verbatim = first.baseline, True
    if params is not None:
        candidate, is_verbatim = Candidate({**params, **first.task_params}), False
        if first.devices and "n_gpu_layers" not in params and "tensor_split" not in params:
            is_verbatim = True
            own = dict(candidate.params)
            tasks = tuple(replace(task, baseline_params=own) for task in tasks)
    named = candidate.get_str("devices", "").split(",")
    names = [*options.devices_mib, *(name for name in named if name not in ("", "none"))]
    present = {device.name for device in first.runtime.devices or ()}
    missing = [name for name in dict.fromkeys(names) if name not in present]
    if missing:
        listed = ", ".join(sorted(present)) or "none"
        raise MissingError(f"no device {', '.join(missing)}", f"the runtime lists: {listed}")
    return RemeasuredSettings(tasks, candidate, is_verbatim)


def _build_task(options: TaskOptions, preset: str | None) -> Task:
    if preset is None:
        return build_task(options, searches=False)
    task = build_preset_task(
        read_preset(preset),
        PresetOptions(
            runtime=options.runtime,
            dialect=options.dialect,
            model=options.model,
            workload=options.workload,
            context=options.context,
            parallel=options.parallel,
            extra_args=options.extra_args,
        ),
        objective="request_s",
    )
    return replace(task, env={**task.env, **options.env})


@dataclass(frozen=True, slots=True)
class Contender:
    """Settings to be launched, and what launches them; `name` is the side of its trials.

    `is_verbatim` is as in a trial.
    """

    name: str
    candidate: Candidate
    runner: TrialRunner
    is_verbatim: bool

    @property
    def is_neighbour(self) -> bool:
        """Whether it only shows what lies beside the kept settings."""
        return self.name not in (KEPT, BEFORE)


@dataclass(slots=True, kw_only=True)
class Remeasure:
    """One remeasurement; `run` goes through its rounds.

    The first contender are the kept settings. `asks` says whether these and the old runtime are
    asked for their answers.
    """

    contenders: Sequence[Contender]
    workload: Workload
    slot_context: int
    rounds: int
    asks: bool
    seed: int
    note: Callable[[str], None]
    trials: dict[str, list[Trial]] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Launch all in turns; returns the result document.

        Raises:
            Interrupted: the user stopped the run.
        """
        rng = random.Random(self.seed)
        self.trials = {contender.name: [] for contender in self.contenders}
        interview = PromptSet(self.workload, self.slot_context)
        done = 0
        for number in range(1, self.rounds + 1):
            alive = [one for one in self.contenders if self._is_in(one, number)]
            if number > 1 and not self._has_time(alive):
                self.note(f"the time was up after {done} of {self.rounds} rounds")
                break
            for contender in rng.sample(alive, len(alive)):
                self._launch(contender, number, interview)
            if number == 1:
                self._look_at_budget()
            done = number
            if not self.trials[KEPT][-1].is_completed:
                break
        return self._document(done)

    def _is_in(self, contender: Contender, number: int) -> bool:
        made = self.trials[contender.name]
        if made and not made[-1].is_completed:
            return False
        return not contender.is_neighbour or number <= _NEIGHBOUR_ROUNDS

    def _has_time(self, alive: Sequence[Contender]) -> bool:
        expected_s = sum(self.trials[one.name][-1].seconds for one in alive)
        return alive[0].runner.budget.allows("confirm", expected_s)

    def _look_at_budget(self) -> None:
        """Say beforehand when a budget is too small for all rounds."""
        seconds = {one.name: self.trials[one.name][-1].seconds for one in self.contenders}
        rounds = {
            one.name: min(self.rounds, _NEIGHBOUR_ROUNDS) if one.is_neighbour else self.rounds
            for one in self.contenders
            if self.trials[one.name][-1].is_completed
        }
        launches = sum(rounds.values())
        if not launches:
            return
        launch_s = sum(seconds[name] * count for name, count in rounds.items()) / launches
        need = launches_need(launch_s, launches, launches, f"measuring {self.rounds} rounds")
        words = shortage(self.contenders[0].runner.budget, launch_s, need)
        if words:
            self.note(words)

    def _launch(self, contender: Contender, number: int, interview: PromptSet) -> None:
        ubatch = contender.candidate.get_int("ubatch", 512)
        budget = contender.runner.budget
        request_plan = plan_measurement(
            self.workload, ubatch, repeats=_REPEATS, enough_s=budget.repeat_limit_s
        ).within(self.slot_context)
        purpose = round_purpose(number, contender.name)
        if self.asks and number == 1 and not contender.is_neighbour:
            trial, _ = collect_answers(
                *(contender.runner, interview, purpose, contender.candidate, request_plan),
                is_verbatim=contender.is_verbatim,
            )
        else:
            trial = contender.runner.run(
                purpose,
                contender.candidate,
                request_plan,
                is_verbatim=contender.is_verbatim,
            )
        self.trials[contender.name].append(trial)

    def _document(self, rounds: int) -> dict[str, Any]:
        told = {one.name: self._told(one) for one in self.contenders}
        return {
            "kept": told[KEPT],
            "before": told.get(BEFORE),
            "neighbours": [told[one.name] for one in self.contenders if one.is_neighbour],
            "workload": self.workload.name,
            "rounds": rounds,
            "launches": sum(len(trials) for trials in self.trials.values()),
            "because": "remeasured",
            "words": [_words(one) for one in told.values()],
        }

    def _told(self, contender: Contender) -> dict[str, Any]:
        trials = self.trials[contender.name]
        failed = next((trial for trial in trials if not trial.is_completed), None)
        last = failed or trials[-1]
        return {
            "name": contender.name,
            "params": dict(contender.candidate.params),
            "argv": list(last.argv),
            "env": dict(last.env),
            "outcome": outcome_to_dict(last.outcome),
            "trials": [trial.number for trial in trials],
        }


def _words(side: Mapping[str, Any]) -> str:
    """What came of some settings, for people."""
    outcome = side["outcome"]
    if outcome["kind"] == "completed":
        count = len(side["trials"])
        return f"{side['name']}: {count} {'launches' if count > 1 else 'launch'} completed"
    kind = outcome["kind"].replace("_", " ")
    return f"{side['name']}: {kind} ({outcome['evidence']})"


def neighbours(kept: Contender) -> Iterator[Contender]:
    """Contenders with one layer less and one more in host memory, where that can be said."""
    for name in HOST_LAYER_PARAMS:
        value = kept.candidate.get_int(name, -1)
        for near in (value - 1, value + 1):
            if value >= 0 and near >= 0:
                candidate = kept.candidate.with_params(**{name: near})
                yield replace(kept, name=f"{name}={near}", candidate=candidate)
