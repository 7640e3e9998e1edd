"""Several workers of one shared tune, each with simulated launches of its own."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from session.simulated_launching import NO_ROOM, SimulatedLaunching
from session.task_sample import problem_of, runner
from tune.whole_tune import one_card

from autofit.cli.tune_worker import summarize
from autofit.fleet.shared_tune import SharedTune
from autofit.fleet.storage import open_storage
from autofit.quality.quality_gate import QualityGate
from autofit.search.optuna_study import SearchStudy
from autofit.session.events import Event, LaunchStarted
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.outcome import Completed
from autofit.tune.explore import Exploration
from autofit.tune.follow import follow
from autofit.tune.pipeline import run_tune

pytestmark = pytest.mark.timeout(120)

BUDGET = {"seconds": None, "max_launches": 12}


@dataclass
class Worker:
    """A worker with a study folder, and what became of it."""

    url: str
    folder: Path
    task: Task
    stops_in: str = ""
    result: dict[str, Any] | None = None
    error: BaseException | None = None
    running: TrialRunner | None = None
    launching: SimulatedLaunching = field(default_factory=lambda: SimulatedLaunching(
        outcome_of=lambda c, _: Completed() if c.get_int("n_cpu_moe", 9) >= 4 else NO_ROOM,
        seconds_of=lambda c: 1.0 + 0.1 * c.get_int("n_cpu_moe", 9),
    ))  # fmt: skip

    def stop(self, event: Event) -> None:
        """Stop before the first launch after one in the phase `stops_in`."""
        trials = self.running.trials if self.running else []
        if isinstance(event, LaunchStarted) and any(t.phase == self.stops_in for t in trials):
            raise KeyboardInterrupt

    def run(self) -> None:
        """Take part in the tune until its end."""
        running = replace(runner(self.task, self.folder), launching=self.launching)
        running.budget.max_launches = BUDGET["max_launches"]
        search = SearchStudy(problem_of(self.task, running.memory), seed=1)
        shared = SharedTune(
            storage=open_storage(self.url, report=lambda _: None),
            name="tune",
            worker=self.folder.name,
            distributions=search.distributions,
            summarize=lambda trial: summarize(trial, self.task),
            report=lambda _: None,
        )
        running = self.running = replace(running, shared=shared)
        running.emit = self.stop
        exploration = Exploration(self.task, running, running.memory, search)
        gate = QualityGate(None, running.note)
        with running.study, shared.joined(running.study.header, ["CUDA0"]):
            shared.deliver_missing(running.study.trials())
            try:
                self.result = follow(exploration, shared, BUDGET)
                if self.result is None:
                    made = run_tune(exploration, gate, seed=1)
                    self.result = {**made.to_dict(), "budget": BUDGET}
                    shared.conclude(self.result)
            except KeyboardInterrupt as error:
                self.error = error

    @property
    def own(self) -> list[int]:
        """The numbers of the launches that this worker made."""
        return sorted(int(path.stem) for path in self.folder.glob("trials/[0-9]*.json"))


def _run_together(*workers: Worker) -> None:
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(110)
    assert all(worker.result or worker.error for worker in workers)


@pytest.fixture(scope="module")
def about(tmp_path_factory) -> Task:
    """A task on one card that does not fit all experts."""
    return one_card(tmp_path_factory.mktemp("card"))


@pytest.fixture
def make(about, tmp_path):
    """A function that returns a worker of one tune."""

    def worker(name: str, **options: Any) -> Worker:
        return Worker(f"sqlite:///{tmp_path}/fleet.db", tmp_path / name, about, **options)

    return worker


def test_workers_divide_the_launches_and_end_with_one_result(make):
    """Three workers make every launch of the search once, and have the same proven winner."""
    workers = [make(name) for name in "abc"]
    _run_together(*workers)
    first = workers[0].result
    assert first["winner"]["proven"]
    assert all(worker.result["winner"] == first["winner"] for worker in workers)
    numbers = Counter(number for worker in workers for number in worker.own)
    assert set(numbers.values()) == {1}
    assert first["launches"] == len(numbers)
    phases = [Counter(t.phase for t in worker.running.trials) for worker in workers]
    assert sorted(count["baseline"] for count in phases) == [0, 0, 1]
    assert sorted(bool(count["confirm"]) for count in phases) == [False, False, True]


def test_every_worker_has_seen_all_launches_of_the_search(make):
    """Memory and search of each worker know the launches of all others."""
    workers = [make(name) for name in "ab"]
    _run_together(*workers)
    searched = [
        {t.number for t in worker.running.trials if t.phase in ("boundary", "search")}
        for worker in workers
    ]
    assert searched[0] == searched[1]
    assert all(len(w.running.memory.launches) == len(w.running.trials) for w in workers)


def test_the_next_worker_leads_if_the_leader_stops(make):
    """The leader is stopped in its rounds; another measures the rounds again and has a result."""
    leader = make("a", stops_in="confirm")
    leader.run()
    assert isinstance(leader.error, KeyboardInterrupt)
    other = make("b")
    other.run()
    assert other.result["winner"]["proven"]
    rounds = [t for t in other.running.trials if t.phase == "confirm"]
    assert {t.number for t in rounds} <= set(other.own)
    searched = [t for t in other.running.trials if t.phase in ("boundary", "search")]
    assert {t.number for t in searched} & set(leader.own)


def test_a_stopped_worker_resumes_without_a_repeated_launch(make):
    """A resumed worker takes its launches from the storage and its rounds from its folder."""
    leader = make("a", stops_in="prove")
    leader.run()
    before = leader.own
    again = make("a")
    again.run()
    assert again.result["winner"]["proven"]
    assert not again.launching.made
    assert again.own == before


def test_a_worker_that_joins_at_the_end_has_the_result(make):
    """It launches nothing."""
    make("a").run()
    late = make("b")
    late.run()
    assert late.result["winner"]["proven"]
    assert not late.own
