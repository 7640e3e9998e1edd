"""A queue of work that several machines share: each item is done by one of them.

The queue is an Optuna study, and each attempt at an item is one of its trials:

    WAITING     no worker does the item
    RUNNING     a worker does it, and sends heartbeats
    COMPLETE    the item is done; the result is an attribute of the trial
    FAIL        the worker died or failed, or the trial is a surplus copy
"""

from __future__ import annotations

import platform
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.errors import Interrupted, UsageError
from autofit.fleet.queue_items import (
    FOLDER,
    GRANTED_S,
    HOST,
    ITEM,
    NOT_QUEUED,
    NOTES,
    RESULT,
    Item,
    find_attempts,
    read_item,
)
from autofit.fleet.storage import MOST_RETRIES, WaitingStorage, heartbeat_s, is_away

_IDENTITY = "identity"
_EXTRA = "extra"
_SETUP_LIMIT_S = 5.0
_SETUP_POLL_S = 0.5
# A worker that has just reached the storage waits for the heartbeats of the others.
_SETTLE_HEARTBEATS = 1.5


class WorkQueue:
    """A queue in a storage. `host` is the name of this machine, `folder` that of its work."""

    def __init__(
        self, storage: WaitingStorage, study: optuna.Study, names: Sequence[str], folder: str
    ) -> None:
        self.name = study.study_name
        self.names = tuple(names)
        self.host = platform.node() or "localhost"
        self.folder = folder
        self._storage = storage
        self._study = study
        self._opened_s = time.monotonic()

    @classmethod
    def join(
        cls,
        storage: WaitingStorage,
        name: str,
        identity: Mapping[str, Any],
        names: Sequence[str],
        *,
        folder: str = "",
        extra: str = "",
    ) -> Self:
        """Open the queue with a name, and fill it if it is new.

        `extra` is kept with a new queue, for the workers that join it.

        Raises:
            UsageError: the queue with this name has another identity.
        """
        try:
            study = optuna.create_study(storage=storage, study_name=name)
            study.set_user_attr(_IDENTITY, {**identity, _EXTRA: extra})
        except DuplicatedStudyError:
            study = optuna.load_study(storage=storage, study_name=name)
            has_creator = _wait_for_identity(study, {**identity, _EXTRA: extra})
            _require_identity(study, identity)
            found = cls(storage, study, names, folder)
            if has_creator:
                found._wait_until_filled()
        else:
            found = cls(storage, study, names, folder)
        found._fill()
        return found

    @classmethod
    def find(
        cls, storage: WaitingStorage, name: str, identity: Mapping[str, Any], names: Sequence[str]
    ) -> Self:
        """Open a queue that exists, to read it.

        Raises:
            UsageError: there is none with this name, or it has another identity.
        """
        try:
            study = optuna.load_study(storage=storage, study_name=name)
        except KeyError:
            known = [one.study_name for one in storage.get_all_studies()]
            hint = f"the storage has: {', '.join(known[-10:])}" if known else "it is empty"
            raise UsageError(f"the storage has no '{name}'", hint) from None
        _require_identity(study, identity)
        return cls(storage, study, names, "")

    @property
    def extra(self) -> str:
        """The text that the worker which created the queue kept with it."""
        return str(self._study.user_attrs[_IDENTITY].get(_EXTRA, ""))

    @property
    def settle_s(self) -> float:
        """The seconds in which every living worker sends a heartbeat."""
        return _SETTLE_HEARTBEATS * heartbeat_s()

    def items(self) -> dict[str, Item]:
        """Return the items by name, as they are now."""
        return {name: read_item(name, found) for name, found in self._attempts().items()}

    def revive(self) -> None:
        """Queue the items of dead workers again, each once.

        After an outage of the storage, living workers first get the time for a heartbeat.
        """
        answered_s = max(self._opened_s, self._storage.waits.answered_since_s)
        if time.monotonic() - answered_s > self.settle_s:
            with _without_warnings():
                fail_stale_trials(self._study)
        self._fill()

    def claim(self, names: Iterable[str]) -> Claim | None:
        """Begin the first of the items that no other worker has begun, or return None."""
        items = self.items()
        for name in names:
            item = items[name]
            if item.state != "waiting" or item.trial_id == NOT_QUEUED:
                continue
            # Before the claim: a worker that dies right after it is noticed, too.
            self._storage.record_heartbeat(item.trial_id)
            if not self._begin(item.trial_id):
                continue
            if self.items()[name].state == "done":  # its former worker is not dead, but late
                self.end(item.trial_id, TrialState.FAIL)
                continue
            return Claim(self, name, item.trial_id, item.hosts)
        return None

    def own_claim(self, names: Iterable[str]) -> Claim | None:
        """Return one of the items that an earlier run in the same folder has begun, or None."""
        items = self.items()
        for item in map(items.__getitem__, names):
            is_own = (item.hosts[-1:], item.folder) == ((self.host,), self.folder)
            if item.state == "running" and is_own:
                return Claim(self, item.name, item.trial_id, item.hosts)
        return None

    def deliver(
        self, name: str, result: Mapping[str, Any], value: float, trial_id: int | None = None
    ) -> None:
        """Attach the result of an item, which is then done.

        If another worker has taken over the item of `trial_id`, the first result counts.
        """
        if trial_id is not None and self._complete(trial_id, result, value):
            return
        item = self.items()[name]
        if item.state == "done":
            return
        is_free = item.state == "waiting" and item.trial_id != NOT_QUEUED
        if is_free and self._begin(item.trial_id):
            self._complete(item.trial_id, result, value)
            return
        attributes = {ITEM: name, HOST: self.host, FOLDER: self.folder, RESULT: dict(result)}
        self._study.add_trial(
            create_trial(state=TrialState.COMPLETE, value=value, user_attrs=attributes)
        )

    def beat(self, trial_id: int) -> None:
        """Send a heartbeat, or none while the storage is away."""
        try:
            self._storage.inner.record_heartbeat(trial_id)  # type: ignore[attr-defined]
        except Exception as error:
            if not is_away(error):
                raise

    def note(self, trial_id: int, text: str) -> None:
        """Note something about an item for the workers that come later."""
        notes = self._storage.get_trial(trial_id).user_attrs.get(NOTES, {})
        self._set(trial_id, NOTES, {**notes, self.host: text})

    def grant(self, trial_id: int, seconds: float) -> None:
        """Note the time that an item may take."""
        self._set(trial_id, GRANTED_S, seconds)

    def _set(self, trial_id: int, key: str, value: Any) -> None:  # noqa: ANN401 - JSON data
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_user_attr(trial_id, key, value)

    def end(self, trial_id: int, state: TrialState) -> None:
        """End an attempt without a result, or give it back as WAITING."""
        with suppress(UpdateFinishedTrialError):
            self._storage.set_trial_state_values(trial_id, state)

    def give_back_at_once(self, trial_id: int) -> None:
        """Give an item back, unless the storage is away: then the others notice the silence."""
        try:
            self._storage.inner.set_trial_state_values(trial_id, TrialState.WAITING)
        except UpdateFinishedTrialError:
            pass
        except Exception as error:
            if not is_away(error):
                raise

    def _begin(self, trial_id: int) -> bool:
        try:
            if not self._storage.set_trial_state_values(trial_id, TrialState.RUNNING):
                return False
            self._storage.set_trial_user_attr(trial_id, HOST, self.host)
            self._storage.set_trial_user_attr(trial_id, FOLDER, self.folder)
        except UpdateFinishedTrialError:
            return False
        return True

    def _complete(self, trial_id: int, result: Mapping[str, Any], value: float) -> bool:
        try:
            self._storage.set_trial_user_attr(trial_id, RESULT, dict(result))
            self._storage.set_trial_state_values(trial_id, TrialState.COMPLETE, [value])
        except UpdateFinishedTrialError:
            return False
        return True

    def _fill(self) -> None:
        """Queue every item that has no open attempt, unless it is done or lost."""
        retry = _retry()
        for name, found in self._attempts().items():
            if not found:
                waiting = create_trial(state=TrialState.WAITING, user_attrs={ITEM: name})
                self._study.add_trial(waiting)
            elif found[-1].state == TrialState.FAIL and len(found) <= MOST_RETRIES:
                retry(self._study, found[-1])
        self._end_surplus()

    def _end_surplus(self) -> None:
        """End waiting trials that do not count, or that no worker needs any more."""
        # One snapshot: a trial that is queued meanwhile may be needed.
        trials = self._study.get_trials(deepcopy=False)
        needed = {
            found[-1]._trial_id  # noqa: SLF001 - Optuna has no other name for it
            for name, found in find_attempts(trials, self.names).items()
            if read_item(name, found).state == "waiting"
        }
        for trial in trials:
            is_waiting = trial.state == TrialState.WAITING
            if is_waiting and trial._trial_id not in needed:  # noqa: SLF001
                self.end(trial._trial_id, TrialState.FAIL)  # noqa: SLF001

    def _attempts(self) -> dict[str, list[FrozenTrial]]:
        return find_attempts(self._study.get_trials(deepcopy=False), self.names)

    def _wait_until_filled(self) -> None:
        """Wait while the worker that created the queue fills it."""
        count, deadline = -1, time.monotonic() + _SETUP_LIMIT_S
        while time.monotonic() < deadline:
            now = sum(map(bool, self._attempts().values()))
            if now == len(self.names):
                return
            if now > count:
                count, deadline = now, time.monotonic() + _SETUP_LIMIT_S
            time.sleep(_SETUP_POLL_S)


class Claim:
    """An item that this worker has begun. Inside `with` it sends heartbeats.

    At the end of `with` an item without a result goes back to the queue: for another worker if
    the user stopped this one, as a failed attempt after an error. `hosts` are the machines that
    have begun the item before.
    """

    def __init__(
        self, queue: WorkQueue, name: str, trial_id: int, hosts: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.hosts = tuple(hosts)
        self._queue = queue
        self._trial_id = trial_id
        self._is_open = True
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def deliver(self, result: Mapping[str, Any], value: float) -> None:
        """Attach the result. While the storage is away, this waits."""
        self._queue.deliver(self.name, result, value, self._trial_id)
        self._is_open = False

    def note_budget(self, seconds: float) -> None:
        """Note the time that the item may take."""
        self._queue.grant(self._trial_id, seconds)

    def give_back(self, note: str) -> None:
        """Leave the item to other workers, with a note why."""
        self._queue.note(self._trial_id, note)
        self._queue.end(self._trial_id, TrialState.WAITING)
        self._is_open = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ends.set()
        if self._is_open and isinstance(error, (KeyboardInterrupt, Interrupted)):
            self._queue.give_back_at_once(self._trial_id)
        elif self._is_open:
            self._queue.end(self._trial_id, TrialState.FAIL)

    def _beat(self) -> None:
        while not self._ends.is_set():
            self._queue.beat(self._trial_id)
            self._ends.wait(heartbeat_s())


def _wait_for_identity(study: optuna.Study, identity: Mapping[str, Any]) -> bool:
    """Wait for the identity of a queue that another worker may be creating now.

    If that worker has died, set the identity and return False.
    """
    deadline = time.monotonic() + _SETUP_LIMIT_S
    while _IDENTITY not in study.user_attrs and not study.get_trials(deepcopy=False):
        if time.monotonic() > deadline:
            study.set_user_attr(_IDENTITY, dict(identity))
            return False
        time.sleep(_SETUP_POLL_S)
    return True


def _require_identity(study: optuna.Study, identity: Mapping[str, Any]) -> None:
    found = study.user_attrs.get(_IDENTITY, {})
    different = [key for key, value in identity.items() if found.get(key) != value]
    if different:
        raise UsageError(
            f"'{study.study_name}' in the storage is something else: "
            f"another {', '.join(different)}",
            "use the same files on every machine, or another --study-name",
        )


def _retry() -> RetryHeartbeatStaleTrialCallback:
    with _without_warnings():
        return RetryHeartbeatStaleTrialCallback(MOST_RETRIES)


@contextmanager
def _without_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
