"""The items of a shared queue, as read from the trials of its study.

Each attempt at an item is a trial. Two workers can queue the same attempt at once: only its first
trial counts, and all workers see the trials in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from autofit.fleet.storage import MOST_RETRIES

State = Literal["waiting", "running", "done", "lost"]

# The attributes of a trial.
ITEM = "item"
HOST = "host"
FOLDER = "folder"
RESULT = "result"
NOTES = "notes"
GRANTED_S = "granted_s"
_HISTORY = "retry_history"  # Optuna's
NOT_QUEUED = -1

_STATES: Mapping[TrialState, State] = {
    TrialState.WAITING: "waiting",
    TrialState.RUNNING: "running",
    TrialState.COMPLETE: "done",
}


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a queue.

    Attributes:
        state: `lost` if every attempt failed.
        hosts: the machines of all attempts so far, the newest last.
        folder: the folder of the newest attempt on its machine.
        result: what the worker delivered, if the item is done.
        seconds: the time that the item took, or that was granted to it.
        notes: what workers noted about the item, by machine.
    """

    name: str
    state: State
    trial_id: int
    hosts: tuple[str, ...] = ()
    folder: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def find_attempts(
    trials: Iterable[FrozenTrial], names: Sequence[str]
) -> dict[str, list[FrozenTrial]]:
    """Return the attempts at each item that count, with a complete one or else the newest last."""
    found: dict[str, dict[int, FrozenTrial]] = {name: {} for name in names}
    for trial in trials:
        is_done = trial.state == TrialState.COMPLETE
        number = MOST_RETRIES + 1 if is_done else len(trial.system_attrs.get(_HISTORY, ()))
        name = trial.user_attrs.get(ITEM)
        if name in found:
            found[name].setdefault(number, trial)
    return {
        name: [by_number[key] for key in sorted(by_number)] for name, by_number in found.items()
    }


def read_item(name: str, attempts: Sequence[FrozenTrial]) -> Item:
    """Return the state of an item from its attempts.

    An item that is not queued yet, or not again yet, counts as waiting.
    """
    if not attempts:
        return Item(name, "waiting", NOT_QUEUED)
    newest = attempts[-1]
    is_lost = newest.state == TrialState.FAIL and len(attempts) > MOST_RETRIES
    given = newest.user_attrs
    granted_s = given.get(GRANTED_S, 0.0) if newest.state == TrialState.RUNNING else 0.0
    return Item(
        name=name,
        state="lost" if is_lost else _STATES.get(newest.state, "waiting"),
        trial_id=newest._trial_id,  # noqa: SLF001 - Optuna has no other name for it
        hosts=tuple(one.user_attrs[HOST] for one in attempts if HOST in one.user_attrs),
        folder=given.get(FOLDER, ""),
        result=given.get(RESULT, {}),
        notes=given.get(NOTES, {}),
        seconds=granted_s if newest.value is None else newest.value,
    )
