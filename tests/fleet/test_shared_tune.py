"""A worker's part in a shared tune: claims, deliveries, the leader, and workers that die."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fleet.shared_sample import EXPLORE, POINT, joined, worker
from study.study_sample import ENVIRONMENT, header, trial

from autofit.errors import UsageError
from autofit.fleet.gathered_study import gather_study
from autofit.fleet.storage import HEARTBEAT_VARIABLE
from autofit.trial.outcome import OutOfMemory

pytestmark = pytest.mark.timeout(120)

NO_ROOM = OutOfMemory("prompt", "CUDA error: out of memory", "device", "pool", "CUDA0")


@pytest.fixture
def url(tmp_path):
    """The URL of a new SQLite file."""
    return f"sqlite:///{tmp_path}/fleet.db"


def _launch(shared, point=POINT, outcome=None, *, purpose=EXPLORE):
    """Claim a point and deliver its trial."""
    assert shared.claim(point, purpose)
    made = replace(trial(shared.begin(purpose), outcome), purpose=purpose)
    shared.deliver(made)
    return made


def _taken(shared):
    shared.read()
    return list(shared.take())


def test_a_point_claimed_by_two_workers_at_once_is_launched_by_one(new_url):
    """Of four workers that claim one point at the same moment, exactly one gets it."""
    url, barrier, won = new_url(), threading.Barrier(4), []

    def claim(name):
        with joined(url, name) as shared:
            barrier.wait(60)
            won.append(shared.claim(POINT, EXPLORE))
            barrier.wait(60)

    workers = [threading.Thread(target=claim, args=(name,)) for name in "abcd"]
    for one in workers:
        one.start()
    for one in workers:
        one.join(100)
    assert sorted(won) == [False, False, False, True]


def test_a_delivered_trial_is_taken_once_by_every_other_worker(new_url):
    """Another worker takes point and trial unchanged and once; its own worker does not."""
    url = new_url()
    with joined(url, "a") as first, joined(url, "b") as second:
        made = _launch(first)
        failed = _launch(first, {**POINT, "host_layers": 2}, NO_ROOM)
        taken = _taken(second)
        assert [(one.worker, one.point, one.trial) for one in taken] == [
            ("a", POINT, made),
            ("a", {**POINT, "host_layers": 2}, failed),
        ]
        assert _taken(second) == _taken(first) == []


def test_a_finished_point_is_launched_again_only_by_who_knows_its_trial(url):
    """A worker that has not taken the trial of a point does not launch the point."""
    with joined(url, "a") as first, joined(url, "b") as second:
        _launch(first)
        assert not second.claim(POINT, EXPLORE)
        _taken(second)
        assert second.claim(POINT, EXPLORE)


def test_points_in_progress_are_pending_for_others(url):
    """A claimed point is pending for the others until its worker delivers it or lets it go."""
    with joined(url, "a") as first, joined(url, "b") as second:
        assert first.claim(POINT, EXPLORE)
        second.read()
        assert second.pending == [POINT]
        first.read()
        assert first.pending == []
        first.let_go()
        second.read()
        assert second.pending == []


def test_a_delivery_that_is_repeated_counts_once(new_url):
    """A trial whose claim was declared dead is delivered; a second delivery adds nothing."""
    url = new_url()
    with joined(url, "a") as first, joined(url, "b") as second:
        assert first.claim(POINT, EXPLORE)
        made = trial(first.begin(EXPLORE))
        first.let_go()
        first.deliver(made)
        first.deliver(made)
        first.deliver_missing([made])
        taken = _taken(second)
        assert [(one.point, one.trial.seconds) for one in taken] == [(POINT, made.seconds)]


def test_a_resumed_worker_delivers_what_its_folder_has(url):
    """Trials that could not be delivered are delivered at resume, with the points they had."""
    with joined(url, "a") as first:
        assert first.claim(POINT, EXPLORE)
        made = trial(first.begin(EXPLORE))
    with joined(url, "a") as again, joined(url, "b") as second:
        again.deliver_missing([made])
        assert [one.point for one in _taken(second)] == [POINT]
        assert [one.point for one in _taken(again)] == [POINT]
        again.deliver_missing([made])
        assert _taken(second) == []


def test_only_identical_machines_share_a_study(url):
    """A worker with another driver and another objective is refused, and each is named."""
    other = replace(ENVIRONMENT, driver="NVIDIA 550.54")
    with joined(url, "a") as first:
        with (
            pytest.raises(UsageError) as refused,
            joined(url, "b", environment=other, objective="tg"),
        ):
            pass
        for fact in ("NVIDIA 580.95", "NVIDIA 550.54", "objective", "tg"):
            assert fact in refused.value.message
        first.read()
        assert first.leads


def test_the_worker_that_joined_first_leads(url):
    """The second worker leads once the first has left, and knows what it has announced."""
    with joined(url, "b") as second:
        assert second.leads
    with joined(url, "a") as first:
        with joined(url, "b") as second:
            assert first.leads
            assert not second.leads
            first.announce(stage="decide", poor_kv=[("q4_0", "q4_0")])
            second.read()
            assert not second.is_searching
            assert second.poor_kv == (("q4_0", "q4_0"),)
            first.announce(stage="search")
            second.read()
            assert second.is_searching
        first.read()
        assert first.leads


def test_a_worker_without_heartbeats_is_replaced(new_url, monkeypatch):
    """Its launch fails, its point is free again, and the next worker leads."""
    monkeypatch.setenv(HEARTBEAT_VARIABLE, "1")
    url = new_url()
    with joined(url, "b") as second:
        pass
    with joined(url, "a") as first:
        assert first.claim(POINT, EXPLORE)
        first._left.set()  # its process has died
        with joined(url, "b") as second:
            for _ in range(100):
                second.read()
                if second.leads:
                    break
                second.wait()
            assert second.leads
            assert second.pending == []
            assert second.claim(POINT, EXPLORE)
            made = trial(first.begin(EXPLORE))
            first.deliver(made)  # it was only asleep
            assert [one.trial.seconds for one in _taken(second)] == [made.seconds]
            first.read()
            assert not first.leads


def test_a_point_whose_workers_died_twice_is_not_launched_again(url):
    """It is reported once, and counts as a launch that failed."""
    with joined(url, "c") as third:
        for name in "ab":
            shared = worker(url, name)
            with shared.joined(header(), ["CUDA0"]):
                assert shared.claim(POINT, EXPLORE)
                shared._claim = None  # killed here, without letting go
            third.read()
        assert list(third.take_crashed()) == [POINT]
        assert list(third.take_crashed()) == []


def test_workers_with_other_names_of_equal_devices_share_a_study(url):
    """Points, trials and results have the names of the worker that reads them."""
    other = replace(ENVIRONMENT, devices=("CUDA1: NVIDIA GeForce RTX 3060, 12288 MiB",))
    with joined(url, "a") as first, joined(url, "b", device="CUDA1", environment=other) as second:
        there = {**POINT, "layout": "single:CUDA1"}
        _launch(first)
        assert [one.point for one in _taken(second)] == [there]
        made = _launch(second, {**there, "host_layers": 7})
        assert set(made.measurement.peak_mib) == {"CUDA0", "host"}
        second.conclude({"winner": "--device CUDA1", "budget": {}})
        assert first.find_result({})["winner"] == "--device CUDA0"
        assert second.find_result({})["winner"] == "--device CUDA1"


def test_a_result_of_an_earlier_budget_does_not_count(url):
    """A worker that joins with a larger budget continues a finished study."""
    small, large = {"seconds": 60}, {"seconds": 600}
    with joined(url, "a") as first:
        first.conclude({"winner": 1, "budget": small})
    with joined(url, "b") as second:
        assert second.find_result(large) is None
        assert second.find_result(small)["winner"] == 1
        second.conclude({"winner": 2, "budget": large})
        assert second.find_result(large)["winner"] == 2


def test_a_storage_is_gathered_into_a_study_folder(url, tmp_path, monkeypatch):
    """The folder has every trial once with its number and host, and grows with the storage."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with joined(url, "a") as first, joined(url, "b") as second:
        made = _launch(first)
        assert [t.number for t in gather_study(url, print).trials()] == [made.number]
        _taken(second)
        again = _launch(second)
        first.conclude({"budget": {}})
        gathered = gather_study(f"{url}#tune", print)
    assert [t.number for t in gathered.trials()] == [made.number, again.number]
    assert all("launched on" in t.notes[-1] for t in gathered.trials())
    assert gathered.header == header()
    assert gathered.result["budget"] == {}


def test_a_storage_without_the_study_is_a_usage_error(url):
    """The error names the studies that there are."""
    with pytest.raises(UsageError):
        gather_study(url, print)
    with joined(url, "a"), pytest.raises(UsageError) as refused:
        gather_study(f"{url}#other", print)
    assert "#tune" in refused.value.hint
