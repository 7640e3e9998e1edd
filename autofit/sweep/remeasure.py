"""The remeasurement of known settings, in a fixed number of interleaved rounds.

The same rounds can include an old runtime with these settings, and neighbours with one host
layer more or less. Every night needs the same number of launches, so no rule ends the rounds
early.
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
from autofit.session.ranking import Ranking
from autofit.session.rounds import Contender, round_purpose, run_rounds
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import read_environment, shown_conditions, study_header
from autofit.statistics.stopping_rule import MIN_ROUNDS, StoppingRule
from autofit.study.study_header import StudyHeader
from autofit.trial.candidate import Candidate, Params
from autofit.trial.outcome import outcome_to_dict
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# The settings, and the same settings on an old runtime.
KEPT = "kept"
BEFORE = "before"
# This many rounds show whether a neighbour fits, and roughly how fast it is.
_NEIGHBOUR_ROUNDS = 3
_REPEATS = 2


@dataclass(frozen=True, slots=True)
class RemeasuredSettings:
    """The settings to measure again, and their tasks on the new runtime and then on the old one.

    If `is_verbatim` is true, they are a complete command to which autofit adds nothing.
    """

    tasks: tuple[Task, ...]
    candidate: Candidate
    is_verbatim: bool

    @property
    def slot_context(self) -> int:
        """The tokens of context of a request."""
        return self.tasks[0].slot_context(self.candidate)

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
                **shown_conditions(first),
                "rpc": first.rpc,
                "builds": [read_environment(task).build for task in self.tasks],
            },
        )


def find_settings(
    options: TaskOptions, params: Params | None, *, preset: str | None, against: str | None
) -> RemeasuredSettings:
    """Return the settings from `params`, a preset, or the runtime's own choice, with their tasks.

    `against` is the path of an old runtime.

    Raises:
        UsageError: a file or device does not exist, or the settings cannot be launched here.
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
        raise MissingError(
            f"the runtime has no device {', '.join(missing)}", f"the runtime lists: {listed}"
        )
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
class RemeasuredSide:
    """A side of a remeasurement: settings to launch, and their runner.

    `name` is KEPT, BEFORE or the name of a neighbour, and is the `side` of its trials.
    `is_verbatim` is the same as in a trial.
    """

    name: str
    candidate: Candidate
    runner: TrialRunner
    is_verbatim: bool

    @property
    def is_neighbour(self) -> bool:
        """True for settings with one host layer more or less."""
        return self.name not in (KEPT, BEFORE)


@dataclass(slots=True, kw_only=True)
class Remeasurement:
    """A remeasurement. `run` launches its rounds.

    Attributes:
        sides: the sides to measure, of which the first is KEPT.
        asks: whether KEPT and BEFORE also answer prompts.
        note: called with each message for the user.
    """

    sides: Sequence[RemeasuredSide]
    workload: Workload
    slot_context: int
    rounds: int
    asks: bool
    seed: int
    note: Callable[[str], None]
    _seconds: dict[str, list[float]] = field(default_factory=dict)

    def run(self) -> dict[str, Any]:
        """Launch all sides in turns and return the result document.

        Raises:
            Interrupted: the user stopped the run.
        """
        self._seconds = {side.name: [] for side in self.sides}
        prompts = PromptSet(self.workload, self.slot_context)
        ranking = run_rounds(
            [self._contender(side, prompts) for side in self.sides],
            workload=self.workload,
            metric="request_s",
            rng=random.Random(self.seed),
            rule=self._plan_rounds,
            is_fixed=True,
            must_run=(KEPT,),
            has_time=self._has_time,
        )
        if ranking.ended == "budget":
            self.note(f"budget used up after {ranking.rounds} of {self.rounds} rounds")
        return self._document(ranking)

    def _contender(self, side: RemeasuredSide, prompts: PromptSet) -> Contender:
        request_plan = plan_measurement(
            self.workload,
            side.candidate.get_int("ubatch", 512),
            repeats=_REPEATS,
            enough_s=side.runner.budget.repeat_limit_s,
        ).within(self.slot_context)

        def launch(number: int) -> Trial:
            launched = round_purpose(number, side.name), side.candidate, request_plan
            asked = prompts if self.asks and number == 1 and not side.is_neighbour else None
            trial, _ = collect_answers(side.runner, asked, *launched, is_verbatim=side.is_verbatim)
            self._seconds[side.name].append(trial.seconds)
            return trial

        return Contender(side.name, launch, _NEIGHBOUR_ROUNDS if side.is_neighbour else None)

    def _plan_rounds(self, first_round: Sequence[Trial]) -> StoppingRule:
        """Return the number of rounds, and note if the budget is too small for them."""
        completed = {trial.purpose.side for trial in first_round if trial.is_completed}
        counts = {
            side.name: min(self.rounds, _NEIGHBOUR_ROUNDS) if side.is_neighbour else self.rounds
            for side in self.sides
            if side.name in completed
        }
        launches = sum(counts.values())
        if launches:
            seconds = sum(self._seconds[name][-1] * count for name, count in counts.items())
            launch_s = seconds / launches
            need = launches_need(launch_s, launches, launches, f"to measure {self.rounds} rounds")
            message = shortage(self.sides[0].runner.budget, launch_s, need)
            if message:
                self.note(message)
        return StoppingRule(
            max_rounds=max(self.rounds, MIN_ROUNDS),
            ended_at=self.rounds if self.rounds < MIN_ROUNDS else None,
        )

    def _has_time(self, names: Sequence[str]) -> bool:
        """Return whether the rest of a round fits into the budget; the first always fits."""
        if not all(self._seconds.values()):
            return True
        expected_s = sum(self._seconds[name][-1] for name in names)
        return self.sides[0].runner.budget.allows("confirm", expected_s)

    def _document(self, ranking: Ranking) -> dict[str, Any]:
        documents = {side.name: self._side_document(side, ranking) for side in self.sides}
        launches = sum(len(standing.trials) for standing in ranking.standings)
        return {
            "kept": documents[KEPT],
            "before": documents.get(BEFORE),
            "neighbours": [documents[side.name] for side in self.sides if side.is_neighbour],
            "workload": self.workload.name,
            "rounds": ranking.rounds,
            "launches": launches,
            "because": "remeasured",
            "words": [_describe(one) for one in documents.values()],
        }

    def _side_document(self, side: RemeasuredSide, ranking: Ranking) -> dict[str, Any]:
        trials = ranking.standing(side.name).trials
        failed = next((trial for trial in trials if not trial.is_completed), None)
        shown = failed or trials[-1]
        return {
            "name": side.name,
            "params": dict(side.candidate.params),
            "argv": list(shown.argv),
            "env": dict(shown.env),
            "outcome": outcome_to_dict(shown.outcome),
            "trials": [trial.number for trial in trials],
        }


def neighbours(kept: RemeasuredSide) -> Iterator[RemeasuredSide]:
    """Yield sides with one host layer less and one more, if the settings set host layers."""
    for name in HOST_LAYER_PARAMS:
        value = kept.candidate.get_int(name, -1)
        for near in (value - 1, value + 1):
            if value >= 0 and near >= 0:
                candidate = kept.candidate.with_params(**{name: near})
                yield replace(kept, name=f"{name}={near}", candidate=candidate)


def _describe(side: Mapping[str, Any]) -> str:
    """Describe the outcome of a side's launches in a sentence."""
    outcome = side["outcome"]
    if outcome["kind"] == "completed":
        count = len(side["trials"])
        return f"{side['name']}: {count} {'launches' if count > 1 else 'launch'} completed"
    return f"{side['name']}: {outcome['kind'].replace('_', ' ')} ({outcome['evidence']})"
