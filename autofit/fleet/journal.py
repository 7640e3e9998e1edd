"""A journal file as a storage with heartbeats, which Optuna's own lacks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState


class JournalWithHeartbeat(JournalStorage, BaseHeartbeat):
    """A journal file whose workers touch a file for each trial that they run.

    The files are in the folder `FILE.alive`. Their times, and the time now, are those of the
    file server, so that the clocks of workers may differ.
    """

    def __init__(
        self,
        path: Path,
        *,
        heartbeat_interval: int,
        grace_period: int,
        heartbeat_stale_trial_callback: Callable[[optuna.Study, FrozenTrial], None],
    ) -> None:
        super().__init__(JournalFileBackend(str(path)))
        self._alive = path.with_name(f"{path.name}.alive")
        self._interval_s = heartbeat_interval
        self._grace_s = grace_period
        self._callback = heartbeat_stale_trial_callback

    def record_heartbeat(self, trial_id: int) -> None:
        """Note that the worker of a trial is alive."""
        self._alive.mkdir(exist_ok=True)
        (self._alive / str(trial_id)).touch()

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        found = []
        now_s = self._server_time_s() if running else 0.0
        for trial in running:
            try:
                beat_s = (self._alive / str(trial._trial_id)).stat().st_mtime  # noqa: SLF001 - as Optuna
            except FileNotFoundError:
                continue
            if now_s - beat_s > self._grace_s:
                found.append(trial._trial_id)  # noqa: SLF001
        return found

    def _server_time_s(self) -> float:
        """Return the time of the file server."""
        self._alive.mkdir(exist_ok=True)
        probe = self._alive / f"now-{os.getpid()}-{time.monotonic_ns()}"
        probe.touch()
        now_s = probe.stat().st_mtime
        probe.unlink()
        return now_s

    def get_heartbeat_interval(self) -> int:
        """Return the seconds between two heartbeats."""
        return self._interval_s

    def get_heartbeat_stale_trial_callback(
        self,
    ) -> Callable[[optuna.Study, FrozenTrial], None]:
        """Return what Optuna calls with the trial of a dead worker."""
        return self._callback
