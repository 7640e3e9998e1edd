"""Sweeps that are stopped or killed, and resumed."""

from __future__ import annotations

import json
import signal

import pytest
from sweep_machine import Nights

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def nights(tmp_path):
    """A suite of two entries, the second of several launches."""
    nights = Nights(tmp_path)
    nights.add("first")
    nights.add("second", rounds=2)
    nights.write()
    return nights


def _launched(nights: Nights) -> dict[str, int]:
    return {name: machine.launches for name, machine in nights.machines.items()}


def test_a_killed_sweep_resumes_without_repeating_a_launch(nights, tmp_path):
    """After kill -9 no process is left, and a resume launches only what is missing."""
    with nights.program.start("sweep", nights.suite) as run:
        run.wait_for_text("[2/2] second: remeasure")
        folder = next((tmp_path / "results" / "sweeps").iterdir()) / "entries" / "second"
        while not list(folder.glob("remeasure/trials/*.json")):
            assert run.process.poll() is None, run.err
        run.process.send_signal(signal.SIGKILL)
        run.process.wait(20)
        nights.program.stage.wait_empty()
    before = _launched(nights)
    done = nights.sweep("--resume")

    assert done.code == 0, done.err
    assert any(line.startswith("[2/2] #1 ") for line in done.err.splitlines())
    study = Study.open(folder / "remeasure")
    launched = _launched(nights)
    assert launched["first"] == before["first"] == 1
    assert len({trial.purpose.identity for trial in study.trials()}) == len(study.trials()) == 2
    # What was under way when it was killed is the only one to be launched again.
    assert launched["second"] <= len(study.started()) <= 2 + 1
    assert [entry["verdict"] for entry in done.json["entries"]] == ["new", "new"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_has_a_hint_to_resume(nights, number):
    """The exit code is 130, everything is saved, no process is left; --resume continues."""
    with nights.program.start("sweep", nights.suite, "--json") as run:
        run.wait_for_text("[2/2] second: remeasure")
        run.send(number)
        done = run.finish()

    assert done.code == 130
    assert "--resume" in json.loads(done.out)["error"]["hint"]
    again = nights.sweep("--resume")
    assert again.code == 0, again.err
    assert _launched(nights)["first"] == 1


@pytest.mark.slow
def test_a_second_sweep_is_refused_while_one_runs(nights, tmp_path):
    """The second sweep ends with 4, and no folder is made for it."""
    with nights.program.start("sweep", nights.suite) as run:
        run.wait_for_text("[1/2] first: remeasure")
        with nights.program.start("sweep", nights.suite, "--json") as other:
            code = other.process.wait(60)
        assert code == 4
        assert len(list((tmp_path / "results" / "sweeps").iterdir())) == 1
        run.send(signal.SIGTERM)
        run.finish()
