# ruff: noqa: SLF001 - Optuna's own storages take the id of a trial from _trial_id
"""A worker's part in a tune that several workers share through an Optuna study.

A point is claimed by the creation of its trial, which the storage numbers. If two workers claim
one point at the same moment, the one with the higher number lets go.
"""

from __future__ import annotations

import json
import random
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial

from autofit.errors import UsageError
from autofit.fleet.shared_trials import (
    DOCUMENT,
    HEADER,
    RESULT,
    WORKER_ROLE,
    DeviceNames,
    SharedTrial,
    Summary,
    identity,
    is_finished_launch,
    is_pending,
    is_same_point,
    shared_trial,
    trial_document,
    workers,
)
from autofit.fleet.storage import WaitingStorage, grace_s, heartbeat_s, is_away
from autofit.search.space import Point
from autofit.study.study_header import StudyHeader
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial

# A point whose workers died this often is not launched again.
_MOST_DEATHS = 2
# All waiting workers together ask the storage for news at most this often.
_POLLS_PER_S = 20.0
# A worker that joins is ready after this time.
_JOINING_S = 1.0
# Optuna's own user attribute of a constraint: it is kept if the value is at most 0.
_CONSTRAINT = "constraints:"


def compare_conditions(
    storage: WaitingStorage, name: str, header: StudyHeader, devices: Sequence[str]
) -> None:
    """Check whether a worker may join a study, without joining.

    Raises:
        UsageError: the study has another machine, build, model or task.
    """
    try:
        study_id = storage.get_study_id_from_name(name)
    except KeyError:
        return
    joined = workers(storage.get_all_trials(study_id, deepcopy=False))
    if joined:
        names = DeviceNames(tuple(devices), tuple(joined[0].user_attrs["devices"]))
        _compare(joined[0], header, names, f"{name} in {storage.waits.name}")


def _compare(first: FrozenTrial, header: StudyHeader, names: DeviceNames, study: str) -> None:
    """Accept only the conditions of the worker that joined first."""
    own = json.loads(names.to_shared(json.dumps(header.to_dict())))
    shared = StudyHeader.from_dict(json.loads(first.system_attrs[HEADER]))
    conflicts = shared.conflicts(StudyHeader.from_dict(own))
    if conflicts:
        raise UsageError(
            f"the study {study} was started with other conditions: {'; '.join(conflicts)}",
            "workers of one study must have the same machine, build, model and task; use another "
            "--study-name for this one",
        )


@dataclass(slots=True, kw_only=True)
class SharedTune:
    """A worker's part in a shared tune.

    Attributes:
        storage: the Optuna storage.
        name: the name of the study.
        worker: the id of this worker, which is the same in a resumed run.
        distributions: the axes of the search space.
        summarize: returns the columns of a trial.
        report: shows a notice.
        names: the names of devices here and in the storage.
        pending: the points that other workers are launching.
    """

    storage: WaitingStorage
    name: str
    worker: str
    distributions: Mapping[str, BaseDistribution]
    summarize: Callable[[Trial], Summary]
    report: Callable[[str], None]
    names: DeviceNames = field(default_factory=DeviceNames)
    pending: list[Point] = field(default_factory=list)
    _study: optuna.Study = field(init=False)
    _study_id: int = field(init=False)
    _trials: Sequence[FrozenTrial] = ()
    _member: int = -1
    _member_attributes: dict[str, Any] = field(default_factory=dict)
    _claim: FrozenTrial | None = None
    _taken: set[tuple[str, int]] = field(default_factory=set)
    _crashed: list[Point] = field(default_factory=list)
    _old_result: str | None = None
    _left: Event = field(default_factory=Event)
    _waits_for: str = ""

    # ---- joining and leaving

    @contextmanager
    def joined(self, header: StudyHeader, devices: Sequence[str]) -> Iterator[None]:
        """Take part in the tune, with these devices.

        Raises:
            UsageError: the study has another machine, build, model or task.
        """
        is_rate = header.objective in ("pp", "tg")
        self._study = optuna.create_study(
            storage=self.storage,
            study_name=self.name,
            load_if_exists=True,
            direction="maximize" if is_rate else "minimize",
        )
        self._study_id = self.storage.get_study_id_from_name(self.name)
        self._member_attributes = {
            "role": WORKER_ROLE,
            "worker": self.worker,
            "host": socket.gethostname(),
            "devices": list(devices),
            "stage": "search",
        }
        self._member = self._enter(header.to_dict())
        Thread(target=self._beat, daemon=True).start()
        try:
            self.read()
            if any(one.state == TrialState.WAITING for one in workers(self._trials)):
                time.sleep(_JOINING_S)  # it would lead, if it joins at this moment
                self.read()
            first = workers(self._trials)[0]
            self.names = DeviceNames(tuple(devices), tuple(first.user_attrs["devices"]))
            _compare(first, header, self.names, f"{self.name} in {self.storage.waits.name}")
            self._old_result = self._result_text()
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        """End this worker and its claim; if the storage is away, others miss its heartbeat."""
        self._left.set()
        storage: Any = self.storage.inner
        for trial_id in (self._claim._trial_id if self._claim else self._member, self._member):
            with suppress(Exception):
                storage.set_trial_state_values(trial_id, TrialState.PRUNED)

    def _enter(self, header: Mapping[str, Any]) -> int:
        """Create the trial that stands for this worker; it never runs without a heartbeat."""
        while True:
            waiting = TrialState.WAITING
            trial_id = self._create(
                {}, self._member_attributes, {HEADER: json.dumps(header)}, waiting
            )
            self.storage.record_heartbeat(trial_id)
            with suppress(UpdateFinishedTrialError):  # another worker believed it was left over
                self.storage.set_trial_state_values(trial_id, TrialState.RUNNING)
                return trial_id

    def _beat(self) -> None:
        """Record heartbeats of this worker as long as the process lives."""
        storage: Any = self.storage.inner
        while not self._left.wait(heartbeat_s()):
            try:
                storage.record_heartbeat(self._member)
            except Exception as error:
                if not is_away(error):  # the launches wait for it
                    raise

    # ---- reading

    def read(self) -> None:
        """Read all trials, and end what died: workers without a heartbeat, and their launches."""
        # After an outage of the storage no worker has a recent heartbeat.
        if time.monotonic() - self.storage.waits.answered_since_s > grace_s():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                optuna.storages.fail_stale_trials(self._study)
        self._trials = self.storage.get_all_trials(self._study_id, deepcopy=False)
        member = next(t for t in self._trials if t._trial_id == self._member)
        if member.state != TrialState.RUNNING:
            # This worker was away for too long, and joins again as the last one.
            self._member = self._enter(json.loads(member.system_attrs[HEADER]))
        ended = [trial for trial in self._trials if self._end_leftover(trial)]
        if ended:
            self._trials = self.storage.get_all_trials(self._study_id, deepcopy=False)
        self.pending = [
            self.names.own_point(trial.params)
            for trial in self._trials
            if is_pending(trial) and trial.user_attrs["worker"] != self.worker
        ]

    def _end_leftover(self, trial: FrozenTrial) -> bool:
        """End a trial without a living worker; return whether it was one."""
        worker, trial_id = trial.user_attrs["worker"], trial._trial_id
        if trial.state == TrialState.WAITING:
            # Optuna's copy of a worker that died.
            if self.leads and "failed_trial" in trial.system_attrs:
                self._end(trial_id, TrialState.PRUNED)
        elif trial.state == TrialState.RUNNING and worker == self.worker:
            # Others are left over by an earlier run, or by a connection that was cut.
            if trial_id not in (self._member, self._claim._trial_id if self._claim else -1):
                self._end(trial_id, TrialState.PRUNED)
                return True
        elif trial.state == TrialState.RUNNING:
            alive = {one.user_attrs["worker"] for one in self._live_workers()}
            if worker not in alive:
                self._end(trial_id, TrialState.FAIL)
                return True
        return False

    def take(self) -> Iterator[SharedTrial]:
        """Yield the finished trials that this run has neither made nor taken yet."""
        for trial in self._trials:
            if is_finished_launch(trial) and identity(trial) not in self._taken:
                self._taken.add(identity(trial))
                yield shared_trial(trial, self.names)

    def take_crashed(self) -> Iterator[Point]:
        """Yield each point at which workers died in every attempt; yield none twice."""
        dead = [t.params for t in self._trials if t.state == TrialState.FAIL and t.params]
        for params in dead:
            if dead.count(params) >= _MOST_DEATHS and params not in self._crashed:
                self._crashed.append(params)
                yield self.names.own_point(params)

    def find_baseline(self) -> Trial | None:
        """Return the finished baseline of any worker, or None."""
        for trial in self._trials:
            if is_finished_launch(trial) and trial.user_attrs["role"] == "baseline":
                self._taken.add(identity(trial))
                return shared_trial(trial, self.names).trial
        return None

    # ---- the leader

    @property
    def leads(self) -> bool:
        """True if this worker decides: it has the lowest number of all that are alive."""
        return self._leader is None or self._leader._trial_id == self._member

    @property
    def _leader(self) -> FrozenTrial | None:
        return next(iter(self._live_workers()), None)

    @property
    def worker_count(self) -> int:
        """The number of workers that are alive."""
        return max(1, len(self._live_workers()))

    def _live_workers(self) -> list[FrozenTrial]:
        return [one for one in workers(self._trials) if one.state == TrialState.RUNNING]

    @property
    def is_searching(self) -> bool:
        """True until the leader has chosen the finalists of the race."""
        return self._leader is None or self._leader.user_attrs["stage"] == "search"

    @property
    def poor_kv(self) -> tuple[tuple[str, str], ...]:
        """The KV types that the leader has excluded for their answers."""
        found = self._leader.user_attrs.get("poor_kv", ()) if self._leader else ()
        return tuple((key, value) for key, value in found)

    def announce(self, **attributes: Any) -> None:  # noqa: ANN401 - JSON
        """Record for the other workers what this one, as the leader, does or has found."""
        self._member_attributes |= attributes
        for name, value in attributes.items():
            self.storage.set_trial_user_attr(self._member, name, value)

    def conclude(self, result: Mapping[str, Any]) -> None:
        """Record the result of the tune."""
        text = self.names.to_shared(json.dumps(result))
        self.storage.set_study_system_attr(self._study_id, RESULT, text)

    def find_result(self, budget: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the result of the leader, or None if there is none yet.

        A result that existed when this worker joined counts only if it has the same budget.
        """
        text = self._result_text()
        if text is None:
            return None
        result: dict[str, Any] = json.loads(self.names.to_own(text))
        is_new = text != self._old_result
        return result if is_new or result.get("budget") == budget else None

    def _result_text(self) -> str | None:
        text = self.storage.get_study_system_attrs(self._study_id).get(RESULT)
        return text if isinstance(text, str) else None

    def wait(self, for_what: str = "") -> None:
        """Wait for news; show a notice if the reason is another one than that of the last wait."""
        if for_what and for_what != self._waits_for:
            self.report(f"waiting for {for_what}")
        self._waits_for = for_what
        usual_s = max(min(1.0, heartbeat_s() / 4), self.worker_count / _POLLS_PER_S)
        time.sleep(random.uniform(0.5, 1.5) * usual_s)

    # ---- launches

    def claim(self, point: Point, purpose: TrialPurpose) -> bool:
        """Claim a point, unless another worker has; return whether this worker launches it."""
        params = self.names.shared_point(point)
        own = self._begin(params, purpose)
        for other in self._trials:
            if other.number >= own.number or not is_same_point(own, other):
                continue
            is_known = is_finished_launch(other) and identity(other) in self._taken
            if other.state == TrialState.RUNNING or (is_finished_launch(other) and not is_known):
                self.let_go()
                return False
        return True

    def begin(self, purpose: TrialPurpose) -> int:
        """Return the number of a launch: that of the claimed point, or a new one."""
        return (self._claim or self._begin({}, purpose)).number

    def let_go(self) -> None:
        """Give up the claim: there was no launch."""
        if self._claim is not None:
            self._end(self._claim._trial_id, TrialState.PRUNED)
            self._claim = None

    def deliver(self, trial: Trial) -> None:
        """Deliver a finished trial, which is in the study folder already."""
        claim, self._claim = self._claim, None
        self._taken.add((self.worker, trial.number))
        summary = self.summarize(trial)
        system: dict[str, Any] = {DOCUMENT: trial_document(trial, self.names)}
        for name, value in (summary.constraints or {}).items():
            system[f"{_CONSTRAINT}{name}"] = value
        attributes = dict(summary.attributes or {})
        state = TrialState.PRUNED if summary.value is None else TrialState.COMPLETE
        if claim is not None and claim.number == trial.number:
            try:
                for key, attribute in attributes.items():
                    self.storage.set_trial_user_attr(claim._trial_id, key, attribute)
                for key, attribute in system.items():
                    self.storage.set_trial_system_attr(claim._trial_id, key, attribute)
                values = None if summary.value is None else [summary.value]
                self.storage.set_trial_state_values(claim._trial_id, state, values)
            except UpdateFinishedTrialError:
                pass  # it was declared dead, or the answer to this delivery was lost
            else:
                return
        self._deliver_again(trial, state, summary.value, attributes, system)

    def deliver_missing(self, trials: Sequence[Trial]) -> None:
        """Deliver those trials of this worker's folder that the storage does not have."""
        known = {identity(trial) for trial in self._trials if is_finished_launch(trial)}
        for trial in trials:
            if (self.worker, trial.number) not in known:
                self.deliver(trial)
                self._taken.discard((self.worker, trial.number))

    def _deliver_again(
        self,
        trial: Trial,
        state: TrialState,
        value: float | None,
        attributes: Mapping[str, Any],
        system: Mapping[str, Any],
    ) -> None:
        """Deliver a trial as a new one, unless the storage has it."""
        self._trials = self.storage.get_all_trials(self._study_id, deepcopy=False)
        own = (self.worker, trial.number)
        if any(is_finished_launch(one) and identity(one) == own for one in self._trials):
            return
        lost = next((t for t in self._trials if t.number == trial.number), None)
        is_own = lost is not None and lost.user_attrs.get("worker") == self.worker
        params = dict(lost.params) if lost is not None and is_own else {}
        self._create(
            params,
            {**self._launch_attributes(trial.purpose), **attributes, "number": trial.number},
            system,
            state,
            value,
        )

    # ---- Optuna's trials

    def _begin(self, params: Mapping[str, Any], purpose: TrialPurpose) -> FrozenTrial:
        trial_id = self._create(params, self._launch_attributes(purpose), {})
        self._trials = self.storage.get_all_trials(self._study_id, deepcopy=False)
        self._claim = next(trial for trial in self._trials if trial._trial_id == trial_id)
        return self._claim

    def _launch_attributes(self, purpose: TrialPurpose) -> dict[str, Any]:
        return {
            "phase": purpose.phase,
            "role": purpose.role,
            "purpose": purpose.description,
            "worker": self.worker,
            "host": socket.gethostname(),
        }

    def _create(
        self,
        params: Mapping[str, Any],
        attributes: Mapping[str, Any],
        system: Mapping[str, Any],
        state: TrialState = TrialState.RUNNING,
        value: float | None = None,
    ) -> int:
        """Create a trial, and return its id."""
        template = create_trial(
            state=state,
            value=value,
            params=dict(params),
            distributions={
                name: self.names.shared_distribution(self.distributions[name]) for name in params
            },
            user_attrs=dict(attributes),
            system_attrs=dict(system),
        )
        return int(self.storage.create_new_trial(self._study_id, template_trial=template))

    def _end(self, trial_id: int, state: TrialState) -> None:
        """End a trial without a result, unless it has ended."""
        with suppress(UpdateFinishedTrialError):
            self.storage.set_trial_state_values(trial_id, state)
