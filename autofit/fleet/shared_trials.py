"""Trials of a tune in an Optuna storage: their meaning, and their conversion from and to Optuna's.

| Optuna's trial                   | meaning                                                     |
| -------------------------------- | ----------------------------------------------------------- |
| role `worker`, RUNNING           | a worker; the one with the lowest number leads              |
| other RUNNING                    | a launch in progress: no other worker launches its point    |
| COMPLETE, PRUNED with a document | a finished launch; a failed one is PRUNED                   |
| FAIL                             | a worker that died, or its launch                           |
| PRUNED without a document        | a launch that was not made, or a worker that left           |

Parameters are the axes of a point. User attributes are for people and for queries. The whole trial
is a document in a system attribute, so that dashboards do not show it as a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from autofit.search.space import Point
from autofit.study.study_document import SCHEMA, upgrade
from autofit.trial.trial import Trial

WORKER_ROLE = "worker"
# System attributes: of a launch its trial, of a worker its study's header, of a study its result.
DOCUMENT = "autofit:trial"
HEADER = "autofit:header"
RESULT = "autofit:result"
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True, slots=True)
class Summary:
    """The columns of a finished trial: objective value, constraints and other attributes.

    A constraint is kept if its value is at most 0. Without a value the launch failed, or did not
    measure the objective.
    """

    value: float | None = None
    constraints: Mapping[str, float] | None = None
    attributes: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SharedTrial:
    """A finished trial of a worker; `point` is empty if the search did not choose it."""

    worker: str
    host: str
    point: Point
    trial: Trial


@dataclass(frozen=True, slots=True)
class DeviceNames:
    """The names of a worker's devices, and those of the first worker in the same order.

    Processes of one host that measure different devices share a tune, although their devices
    have different names.
    """

    own: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()

    def to_shared(self, text: str) -> str:
        """Return a text with the shared names."""
        return _renamed(text, dict(zip(self.own, self.shared, strict=False)))

    def to_own(self, text: str) -> str:
        """Return a text with the worker's own names."""
        return _renamed(text, dict(zip(self.shared, self.own, strict=False)))

    def shared_point(self, point: Point) -> Point:
        """Return a point with the shared names."""
        return {k: self.to_shared(v) if isinstance(v, str) else v for k, v in point.items()}

    def own_point(self, params: Mapping[str, Any]) -> Point:
        """Return Optuna's parameters as a point with the worker's own names."""
        return {k: self.to_own(v) if isinstance(v, str) else v for k, v in params.items()}

    def shared_distribution(self, one: BaseDistribution) -> BaseDistribution:
        """Return a distribution with the shared names."""
        if not isinstance(one, CategoricalDistribution):
            return one
        return CategoricalDistribution(
            [self.to_shared(v) if isinstance(v, str) else v for v in one.choices]
        )


def _renamed(text: str, names: Mapping[str, str]) -> str:
    if all(old == new for old, new in names.items()):
        return text
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<!\w)({words})(?!\w)", lambda found: names[found[1]], text)


def trial_document(trial: Trial, names: DeviceNames) -> str:
    """Return a trial as the text that the storage keeps."""
    return names.to_shared(json.dumps({"schema": SCHEMA, **trial.to_dict()}))


def identity(trial: FrozenTrial) -> tuple[str, int]:
    """Return worker and number of a launch, which are unique.

    A delivery can be repeated, since a connection was cut before the answer. The number is that
    of Optuna's trial, except for a launch that was delivered after it was declared dead.
    """
    return trial.user_attrs["worker"], trial.user_attrs.get("number", trial.number)


def is_finished_launch(trial: FrozenTrial) -> bool:
    """Return whether a trial is a launch with a result."""
    return trial.state in _FINISHED and DOCUMENT in trial.system_attrs


def is_pending(trial: FrozenTrial) -> bool:
    """Return whether a trial is a launch in progress of a point that the search chose."""
    return trial.state == TrialState.RUNNING and bool(trial.params)


def workers(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Return the trials that stand for workers, in the order in which they joined."""
    return [one for one in trials if one.user_attrs.get("role") == WORKER_ROLE]


def finished_trials(trials: Iterable[FrozenTrial], names: DeviceNames) -> list[SharedTrial]:
    """Return the finished launches, each once, in the order of their numbers."""
    found: dict[tuple[str, int], SharedTrial] = {}
    for one in trials:
        if is_finished_launch(one):
            found.setdefault(identity(one), shared_trial(one, names))
    return list(found.values())


def shared_trial(found: FrozenTrial, names: DeviceNames) -> SharedTrial:
    """Convert a finished launch from Optuna's trial."""
    document = upgrade(json.loads(names.to_own(found.system_attrs[DOCUMENT])), "trial")
    return SharedTrial(
        found.user_attrs["worker"],
        found.user_attrs["host"],
        names.own_point(found.params),
        replace(Trial.from_dict(document), number=found.number),
    )


def is_same_point(one: FrozenTrial, other: FrozenTrial) -> bool:
    """Return whether two trials are launches of one point."""
    return bool(one.params) and one.params == other.params
