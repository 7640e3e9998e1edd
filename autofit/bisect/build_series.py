"""Launches of the builds of a series, each with the same preset, in rounds of fresh processes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autofit.bisect.builds import Build
from autofit.bisect.quantity import LaunchedBuild, Quantity
from autofit.errors import AutofitError
from autofit.quality.prompt_set import PromptSet, collect_answers
from autofit.runtime.server.request_plan import plan_measurement
from autofit.session.rounds import round_purpose
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.outcome import describe_outcome
from autofit.trial.trial import Trial

_REPEATS = 2


@dataclass(slots=True, kw_only=True)
class BuildSeries:
    """A series of builds that are launched with one preset.

    Attributes:
        builds: the builds in order; the first is the good one, the last the bad one.
        make_task: returns the task of the preset on a runtime, given by its path.
        make_runner: returns a runner for a task.
        note: called with each message for the user.
        seed: draws the order of each round.
        quantity: the quantity that `measure` returns.
        launches: all launches of each build.
        faults: the reason for each build that cannot be launched.
        rounds: the number of rounds so far.
        is_out_of_time: whether the budget ended.
    """

    builds: Sequence[Build]
    make_task: Callable[[str], Task]
    make_runner: Callable[[Task], TrialRunner]
    note: Callable[[str], None]
    seed: int = 1
    quantity: Quantity | None = None
    launches: dict[int, list[LaunchedBuild]] = field(default_factory=dict)
    faults: dict[int, str] = field(default_factory=dict)
    rounds: int = 0
    is_out_of_time: bool = False
    _sides: dict[int, tuple[Task, TrialRunner]] = field(default_factory=dict)
    _rng: random.Random = field(init=False)
    _prompts: PromptSet | None = None

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def measure(self, items: Sequence[int]) -> Mapping[int, float | None] | None:
        """Launch builds in one round, and return the values of the quantity.

        A build whose launch does not show the quantity is launched once more, because a port in
        use or a full disk may be the cause. After a second failure it is skipped.

        Raises:
            AutofitError: the good or the bad build fails.
            Interrupted: the user stopped the run.
        """
        assert self.quantity is not None  # noqa: S101 - set before the search
        launched = self.launch(items, asks=self.quantity.name == "answers")
        if launched is None:
            return None
        values = {item: self._value(one) for item, one in launched.items()}
        missing = [item for item in items if values[item] is None and item not in self.faults]
        if missing:
            again = self.launch(missing, asks=self.quantity.name == "answers")
            if again is None:
                return None
            values |= {item: self._value(one) for item, one in again.items()}
        for item in missing:
            if values[item] is None:
                self._note_fault(item)
        return values

    def launch(
        self, items: Sequence[int], *, asks: bool = False
    ) -> Mapping[int, LaunchedBuild | None] | None:
        """Launch builds in random order, and return the launches, or None if no time is left.

        The launch of a build without a program is None. With `asks` builds also answer prompts.

        Raises:
            Interrupted: the user stopped the run.
        """
        if not self._has_time(len(items)):
            self.is_out_of_time = True
            return None
        self.rounds += 1
        number = self.rounds
        return {
            item: self._launch(item, number, asks=asks)
            for item in self._rng.sample(list(items), len(items))
        }

    @property
    def runners(self) -> list[TrialRunner]:
        """The runners of all builds that were prepared."""
        return [runner for _, runner in self._sides.values()]

    @property
    def good_task(self) -> Task:
        """The task of the good build."""
        return self._side(0)[0]

    def first_failure(self, item: int) -> Trial | None:
        """Return the first launch of a build that did not complete, or None if all did."""
        trials = (one.trial for one in self.launches.get(item, ()))
        return next((trial for trial in trials if not trial.is_completed), None)

    def _launch(self, item: int, number: int, *, asks: bool) -> LaunchedBuild | None:
        try:
            task, runner = self._side(item)
        except AutofitError as error:
            if item in (0, len(self.builds) - 1):
                raise
            self._note_fault(item, error.message)
            return None
        slot = task.slot_context(task.baseline)
        plan = plan_measurement(
            task.workload,
            task.baseline.get_int("ubatch", 512),
            repeats=_REPEATS,
            enough_s=runner.budget.repeat_limit_s,
        ).within(slot)
        purpose = round_purpose(number, self.builds[item].name)
        if asks and self._prompts is None:
            self._prompts = PromptSet(task.workload, slot)
        prompts = self._prompts if asks else None
        launched = LaunchedBuild(
            *collect_answers(runner, prompts, purpose, task.baseline, plan, is_verbatim=True)
        )
        self.launches.setdefault(item, []).append(launched)
        return launched

    def _side(self, item: int) -> tuple[Task, TrialRunner]:
        if item not in self._sides:
            build = self.builds[item]
            task = self.make_task(str(build.prepare()))
            self._sides[item] = task, self.make_runner(task)
        return self._sides[item]

    def _value(self, launched: LaunchedBuild | None) -> float | None:
        assert self.quantity is not None  # noqa: S101 - set before the search
        return None if launched is None else self.quantity.value(launched)

    def _note_fault(self, item: int, reason: str = "") -> None:
        failed = self.first_failure(item)
        if not reason and failed is not None:
            reason = describe_outcome(failed.outcome)
        reason = reason or "its launches do not show the searched quantity"
        name = self.builds[item].name
        if item in (0, len(self.builds) - 1):
            which = "good" if item == 0 else "bad"
            raise AutofitError(
                f"the {which} build {name} cannot be measured: {reason}",
                "the log of the launch is in the study; choose another build",
            )
        self.faults[item] = reason
        self.note(f"{name} is skipped: {reason}")

    def _has_time(self, count: int) -> bool:
        """Return whether there is time for some launches; the first three rounds always are."""
        trials = [one.trial for launches in self.launches.values() for one in launches]
        if self.rounds < 3 or not trials:  # noqa: PLR2004 - fewer rounds decide nothing
            return True
        mean_s = sum(trial.seconds for trial in trials) / len(trials)
        return self.runners[0].budget.allows("confirm", count * mean_s)
