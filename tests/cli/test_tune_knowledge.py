"""A second tune on a machine begins with what the first one showed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from autofit_program import AutofitProgram, Done
from tune_machine import TuneMachine

pytestmark = pytest.mark.timeout(180)
QUICK = ("--no-answers", "--json")


class Tunes:
    """Short tunes on one machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = AutofitProgram(folder)
        self.machine = TuneMachine(folder, 2600.0)
        self.knowledge = folder / "data" / "autofit" / "knowledge"

    def tune(self, study: str, *more: str, launches: int = 2, **env: str) -> Done:
        """Tune with at most this many launches."""
        words = self.machine.words(study, max_launches=launches)
        done = self.program.run(*words, *QUICK, *more, **env)
        assert done.code == 0, done.err
        return done

    def used(self, study: str) -> list[str]:
        """Return the studies that the search of a study began with."""
        path = self.folder / study / "knowledge.json"
        return (
            [one["id"] for one in json.loads(path.read_text())["studies"]] if path.exists() else []
        )


@pytest.fixture(scope="module")
def tunes(tmp_path_factory) -> Tunes:
    """A machine on which one tune has ended."""
    found = Tunes(tmp_path_factory.mktemp("knowledge"))
    found.tune("first")
    return found


def test_a_finished_tune_is_kept(tunes) -> None:
    """The first search had nothing to begin with, and left a file."""
    assert tunes.used("first") == []
    (path,) = tunes.knowledge.glob("*.json")
    assert json.loads(path.read_text())["studies"][0]["id"].startswith("first")


def test_the_next_search_begins_with_it_also_if_resumed(tunes) -> None:
    """A resumed search uses the same studies, and repeats no launch."""
    second = tunes.tune("second")
    assert "notice: expected: about" in second.err
    assert [name.split()[0] for name in tunes.used("second")] == ["first"]

    resumed = tunes.tune("second", "--resume", launches=3)

    assert [name.split()[0] for name in tunes.used("second")] == ["first"]
    before, after = (done.json["launches_by_phase"] for done in (second, resumed))
    assert after["baseline"] == before["baseline"]
    assert sum(after.values()) <= sum(before.values()) + 5


def test_fresh_ignores_it(tunes) -> None:
    """With --fresh the search begins with nothing."""
    tunes.tune("fresh", "--fresh")
    assert tunes.used("fresh") == []


def test_a_copy_is_used_where_the_variable_names_it(tunes) -> None:
    """An identical machine can use a copy; a damaged file in it costs a notice only."""
    copy = tunes.folder / "copy"
    shutil.copytree(tunes.knowledge, copy)
    (copy / "damaged.json").write_text('{"schema": 1}')

    done = tunes.tune("copied", AUTOFIT_KNOWLEDGE=str(copy))

    assert "damaged.json" in done.err
    assert "first" in [name.split()[0] for name in tunes.used("copied")]
    texts = [path.read_text() for path in (*copy.glob("*.json"), *tunes.knowledge.glob("*.json"))]
    assert [text.count('"copied ') for text in texts].count(1) == 1


def test_a_plan_has_expected_rates_that_are_marked(tunes) -> None:
    """Each layout has an interval of both rates; with --fresh it has none."""
    machine = tunes.machine
    words = ["plan", machine.model, "--runtime", machine.server, "--workload", machine.workload]
    shown = tunes.program.run(*words, "--json").json
    rates = shown["layouts"][0]["expected"]
    for rate in (rates["pp_per_s"], rates["tg_per_s"]):
        assert 0 < rate["low"] < rate["median"] < rate["high"]
    assert "not measured" in tunes.program.run(*words).out
    fresh = tunes.program.run(*words, "--json", "--fresh").json
    assert fresh["layouts"][0]["expected"] is None


def test_doctor_says_what_is_known(tunes) -> None:
    """It counts studies and names the files."""
    done = tunes.program.run("doctor", "--runtime", tunes.machine.server, "--json")
    known = done.json["knowledge"]
    assert known["studies"] >= 1
    assert known["models"] == ["model"]
    assert Path(known["files"][0]).exists()
