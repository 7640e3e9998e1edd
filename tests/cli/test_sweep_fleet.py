"""One night that several runners share through a storage, each runner a process of its own."""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path

import pytest
from postgres_server import postgres  # noqa: F401 - a fixture
from process_stage import wait_for
from sweep.night_sample import night
from sweep_machine import Nights, found

from autofit.fleet.storage import open_storage
from autofit.fleet.work_queue import WorkQueue
from autofit.sweep.baseline_file import Baseline
from autofit.sweep.verdict import Thresholds

pytestmark = pytest.mark.timeout(600)

NIGHT = ("--study-name", "night")


class Fleet:
    """Runners of one suite that are machines of their own: each has its own lock and folder."""

    def __init__(self, nights: Nights, url: str) -> None:
        self.nights, self.url = nights, url
        self._stack = ExitStack()
        self._count = 0

    def start(self, *words: object, name: str | None = None):
        """Start a runner; `name` is its machine."""
        self._count += 1
        place = self.nights.folder / (name or f"machine{self._count}")
        place.mkdir(exist_ok=True)
        run = self.nights.program.start(
            *("sweep", self.nights.suite, "--storage", self.url, *NIGHT, "--json", *words),
            cwd=place,
            AUTOFIT_LOCK_DIR=str(place / "lock"),
            AUTOFIT_HEARTBEAT_S="1",
        )
        return self._stack.enter_context(run)

    def merge(self, *words: object):
        """Judge the night without a runner."""
        return self.nights.sweep("--merge", "--storage", self.url, *NIGHT, *words)

    def states(self) -> dict[str, str]:
        """The states of the entries."""
        storage = open_storage(self.url, report=print)
        items = WorkQueue.find(storage, "night", {}, list(self.nights.entries)).items()
        return {name: item.state for name, item in items.items()}

    def launches(self) -> dict[str, int]:
        """The number of loads of each entry's model."""
        return {name: machine.launches for name, machine in self.nights.machines.items()}

    def __enter__(self):
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@pytest.fixture
def nights(tmp_path):
    """A suite without entries."""
    return Nights(tmp_path)


def _codes(*runs) -> list[int]:
    return [run.process.wait(300) for run in runs]


def test_runners_share_a_night_and_one_judges_it(nights, tmp_path):
    """Two runners of the same moment measure each entry once; one writes the only verdict."""
    nights.add("first")
    nights.add("second")
    nights.write()
    with Fleet(nights, f"sqlite:///{tmp_path / 'night.db'}") as fleet:
        runs = [fleet.start("--junit", tmp_path / f"{name}.xml") for name in ("a", "b")]
        assert _codes(*runs) == [0, 0]
        assert fleet.launches() == {"first": 1, "second": 1}
        assert set(fleet.states().values()) == {"done"}
        reports = list(tmp_path.glob("?.xml"))
        assert len(reports) == 1
        cases = ET.parse(reports[0]).getroot().iter("testcase")  # noqa: S314 - our own file
        assert [case.get("name") for case in cases]
        documents = [json.loads(run.finish().out) for run in runs]
        judged = [one for one in documents if one["entries"]]
        assert len(judged) == 1
        assert [entry["name"] for entry in judged[0]["entries"]] == ["first", "second"]
        again = fleet.merge()
        assert again.code == 0, again.err
        assert [entry["verdict"] for entry in again.json["entries"]] == ["new", "new"]
        late = fleet.start()
        assert late.finish().code == 0
        assert fleet.launches() == {"first": 1, "second": 1}


def test_entry_of_a_killed_runner_is_taken_over(nights, tmp_path):
    """After kill -9 in the middle of an entry another runner measures it, and nothing is left."""
    nights.add("first", rounds=3)
    nights.write()
    with Fleet(nights, str(tmp_path / "night.journal")) as fleet:
        dead = fleet.start()
        dead.wait_for_text("first: remeasure")
        wait_for(lambda: fleet.launches()["first"], 60)
        dead.process.send_signal(signal.SIGKILL)
        dead.process.wait(20)
        nights.program.stage.wait_empty()
        other = fleet.start()
        done = other.finish(300)
    assert done.code == 0, done.err
    assert found(done.json, "first")["verdict"] == "new"
    assert done.json["broken"] == []


@pytest.mark.slow
def test_stopped_runner_resumes_its_entry(nights, tmp_path):
    """A stopped runner gives its entry back; --resume repeats no launch that has ended."""
    nights.add("first", rounds=2)
    nights.write()
    with Fleet(nights, f"sqlite:///{tmp_path / 'night.db'}") as fleet:
        run = fleet.start(name="one")
        run.wait_for_text("[1/1] #1")
        run.send(signal.SIGTERM)
        stopped = run.finish()
        assert stopped.code == 130
        assert fleet.states() == {"first": "waiting"}
        done = fleet.start("--resume", name="one").finish(200)
        assert done.code == 0, done.err
        # What was under way when it was stopped is the only one to be launched again.
        assert fleet.launches()["first"] <= 3


def test_database_restarts_in_the_middle_of_an_entry(nights, postgres):  # noqa: F811
    """A runner measures on while the database is away, and delivers its record when it is back."""
    nights.add("first")
    nights.write()
    with Fleet(nights, postgres.new_url()) as fleet:
        run = fleet.start()
        run.wait_for_text("first: remeasure")
        postgres.stop(signal.SIGQUIT)
        try:
            run.wait_for_text("is away", 120)
            records = list(
                Path(nights.folder).glob("machine1/results/sweeps/*/entries/*/record.json")
            )
            assert len(records) == 1
        finally:
            postgres.start()
        done = run.finish(120)
        assert done.code == 0, done.err
        assert fleet.launches() == {"first": 1}
        assert "sesame" not in done.err + done.out
        for path in nights.folder.glob("machine1/results/**/*.*"):
            assert not path.is_file() or b"sesame" not in path.read_bytes()


def test_entry_that_no_machine_can_measure(nights, tmp_path):
    """An entry whose needs no runner meets, or whose model none has, is judged as missing."""
    nights.add("elsewhere", needs={"host": "no-such-host-*"})
    nights.add("optional", needs={"devices": 9, "device": "Fake"}, missing="skip")
    nights.add("no-model", model=str(tmp_path / "missing.gguf"))
    nights.write()
    with Fleet(nights, f"sqlite:///{tmp_path / 'night.db'}") as fleet:
        done = fleet.start().finish(120)
        assert done.code == 1, done.err
        assert set(done.json["broken"]) == {"elsewhere", "no-model"}
        assert set(done.json["skipped"]) == {"elsewhere", "no-model", "optional"}
        assert set(fleet.states().values()) == {"waiting"}
        merged = fleet.merge()
        assert (merged.code, merged.json["broken"]) == (1, done.json["broken"])
        assert sum(fleet.launches().values()) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--storage", "night"),
        ("--storage", "mysql://u:pw@h/d"),
        ("--storage", "a.journal", "--shard", "1/2"),
        ("--storage", "a.journal", "--only", "first"),
        ("--study-name", "night"),
        ("--merge", "--storage", "a.journal", "folder"),
        ("--merge",),
        ("--merge", "--storage", "a.journal"),
    ],
)
def test_contradictions_are_refused(nights, words, cli, monkeypatch, tmp_path):
    """Options that contradict a shared night end with 2, and measure nothing."""
    monkeypatch.chdir(tmp_path)
    nights.add("first")
    nights.write()
    done = cli("sweep", nights.suite, *words)
    assert done.code == 2
    assert "pw" not in done.err
    assert nights.launches == 0


def test_other_suite_or_baseline_is_refused(nights, tmp_path):
    """A runner with another version of the suite or of the baseline cannot join a night."""
    nights.add("elsewhere", needs={"host": "no-such-host-*"})
    nights.write()
    with Fleet(nights, f"sqlite:///{tmp_path / 'night.db'}") as fleet:
        first = fleet.start()
        first.wait_for_text("night night")
        first.send(signal.SIGTERM)
        first.finish()
        good = Baseline().updated([night()], {"qwen": Thresholds()})
        good.write(nights.baseline)
        done = fleet.start().finish()
        assert done.code == 2
        assert "baseline" in done.err
        nights.write(about="another version")
        done = fleet.start().finish()
        assert done.code == 2
        assert "suite" in done.err
