"""A queue that several processes share: every item is done once, whatever happens to them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from process_stage import FAKES, wait_for

from autofit.errors import UsageError
from autofit.fleet.storage import HEARTBEAT_VARIABLE, open_storage
from autofit.fleet.work_queue import WorkQueue

pytestmark = pytest.mark.timeout(180)

IDENTITY = {"version": "1"}


class Workers:
    """Workers on one queue, in processes of their own, with heartbeats every second."""

    def __init__(self, url: str, folder: Path, *items: str, seconds: float = 0.2) -> None:
        self.url, self.items = url, items
        self.log = folder / "work.log"
        self.seconds = seconds
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, count: int = 1) -> list[subprocess.Popen[bytes]]:
        """Start workers at the same moment."""
        argv = [sys.executable, str(FAKES / "queue_worker.py"), self.url, str(self.log)]
        started = [
            subprocess.Popen([*argv, str(self.seconds), *self.items], stderr=subprocess.DEVNULL)
            for _ in range(count)
        ]
        self.processes += started
        return started

    def lines(self, verb: str) -> list[tuple[str, int]]:
        """Return item and process of each line with a verb."""
        text = self.log.read_text() if self.log.exists() else ""
        words = [line.split() for line in text.splitlines()]
        return [(item, int(pid)) for found, item, pid in words if found == verb]

    def wait_begun(self, item: str, count: int = 1) -> int:
        """Wait until an item was begun that many times, and return the last process."""

        def begun() -> list[int]:
            found = [pid for name, pid in self.lines("begin") if name == item]
            return found if len(found) >= count else []

        return wait_for(begun, 60)[-1]

    def finish(self) -> WorkQueue:
        """Wait for all workers, and return the queue."""
        for process in self.processes:
            process.wait(90)
        return self.queue()

    def queue(self) -> WorkQueue:
        """Return the queue, as another worker sees it."""
        return WorkQueue.find(open_storage(self.url, report=print), "night", IDENTITY, self.items)

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a worker."""
        next(one for one in self.processes if one.pid == pid).send_signal(number)

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(20)


@pytest.fixture(autouse=True)
def _heartbeat(monkeypatch):
    monkeypatch.setenv(HEARTBEAT_VARIABLE, "1")


def test_workers_that_start_together_do_each_item_once(new_url, tmp_path):
    """Three workers of the same moment fill the queue once and share its items."""
    items = tuple(f"item{number}" for number in range(8))
    with Workers(new_url(), tmp_path, *items, seconds=0.05) as workers:
        workers.start(3)
        queue = workers.finish()
        assert all(process.returncode == 0 for process in workers.processes)
    assert Counter(name for name, _ in workers.lines("begin")) == dict.fromkeys(items, 1)
    assert {item.state for item in queue.items().values()} == {"done"}


@pytest.mark.parametrize("new_url", ["journal", "postgresql"], indirect=True)
def test_item_of_a_dead_worker_is_taken_over_once(new_url, tmp_path):
    """After kill -9 another worker does the item; if that dies, too, the item is lost."""
    with Workers(new_url(), tmp_path, "first", "second", seconds=3) as workers:
        workers.start(1)
        workers.kill(workers.wait_begun("first"))
        workers.start(1)
        workers.kill(workers.wait_begun("first", 2))
        workers.seconds = 0.1
        workers.start(1)
        items = workers.finish().items()
    assert items["first"].state == "lost"
    assert items["second"].state == "done"
    begun = Counter(name for name, _ in workers.lines("begin"))
    assert begun["first"] == 2


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_stopped_worker_gives_its_item_back_at_once(new_url, tmp_path):
    """An item of a worker that was stopped is no failed attempt."""
    with Workers(new_url(), tmp_path, "first", seconds=30) as workers:
        for count in (1, 2, 3):
            (worker,) = workers.start(1)
            workers.wait_begun("first", count)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(20) == 130
            assert workers.queue().items()["first"].state == "waiting"


@pytest.mark.parametrize("new_url", ["journal"], indirect=True)
def test_worker_that_slept_delivers_late(new_url, tmp_path):
    """A worker that was stopped for long and goes on leads to one result for its item."""
    with Workers(new_url(), tmp_path, "first", seconds=1) as workers:
        workers.start(1)
        sleeper = workers.wait_begun("first")
        workers.kill(sleeper, signal.SIGSTOP)
        (other,) = workers.start(1)
        other.wait(60)
        workers.kill(sleeper, signal.SIGCONT)
        item = workers.finish().items()["first"]
    assert item.state == "done"
    assert item.result == {"pid": other.pid}


@pytest.mark.parametrize("new_url", ["journal"], indirect=True)
def test_unclaimed_retry_takes_the_late_result(new_url, tmp_path):
    """The result of a worker that counted as dead is used if no other has begun its item again."""
    with Workers(new_url(), tmp_path, "first", seconds=1) as workers:
        workers.start(1)
        sleeper = workers.wait_begun("first")
        workers.kill(sleeper, signal.SIGSTOP)
        queue = workers.queue()

        def is_queued_again() -> bool:
            queue.revive()
            return queue.items()["first"].state == "waiting"

        wait_for(is_queued_again, 30)
        workers.kill(sleeper, signal.SIGCONT)
        item = workers.finish().items()["first"]
    assert item.result == {"pid": sleeper}


@pytest.mark.parametrize("new_url", ["sqlite"], indirect=True)
def test_creator_that_dies_leaves_a_usable_queue(new_url, tmp_path):
    """A queue without identity or with few items is completed by the next worker."""
    url = new_url()
    storage = open_storage(url, report=print)
    optuna.create_study(storage=storage, study_name="night")
    with Workers(url, tmp_path, "first", "second", seconds=0.05) as workers:
        workers.start(1)
        items = workers.finish().items()
    assert {item.state for item in items.values()} == {"done"}


def test_other_work_of_the_same_name_is_refused(tmp_path):
    """A study of that name with another identity, or of something else, is a usage error."""
    storage = open_storage(f"sqlite:///{tmp_path / 'a.db'}", report=print)
    WorkQueue.join(storage, "night", IDENTITY, ["first"])
    with pytest.raises(UsageError, match="another version"):
        WorkQueue.join(storage, "night", {"version": "2"}, ["first"])
    optuna.create_study(storage=storage, study_name="tune").add_trial(optuna.create_trial(value=1))
    with pytest.raises(UsageError):
        WorkQueue.join(storage, "tune", IDENTITY, ["first"])
    with pytest.raises(UsageError) as caught:
        WorkQueue.find(storage, "other", IDENTITY, ["first"])
    assert "night" in caught.value.hint


def test_database_that_restarts_costs_no_item(postgres, tmp_path):
    """Items are done once although the server restarts and connections are cut meanwhile."""
    items = tuple(f"item{number}" for number in range(12))
    with Workers(postgres.new_url(), tmp_path, *items, seconds=0.5) as workers:
        workers.start(2)
        workers.wait_begun("item0")
        for number in (signal.SIGINT, signal.SIGQUIT):
            postgres.restart(number)
            time.sleep(1)
            postgres.cut_connections()
        found = workers.finish().items()
    assert {item.state for item in found.values()} == {"done"}
    begun = Counter(name for name, _ in workers.lines("begin"))
    # A cut answer can hide that a worker has begun an item. It is then begun a second time.
    assert max(begun.values()) <= 2
