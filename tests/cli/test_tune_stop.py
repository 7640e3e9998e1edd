"""A tune that is stopped at any moment, and resumed: nothing is left, lost or repeated."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter

import pytest
from autofit_program import AutofitProgram
from process_stage import wait_for
from tune_machine import TuneMachine

from autofit.machine.lock import machine_lock
from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(240)

CARD_MIB = 2600.0


@pytest.fixture
def program(tmp_path) -> AutofitProgram:
    """Runs of autofit in a folder."""
    return AutofitProgram(tmp_path)


@pytest.fixture
def machine(tmp_path) -> TuneMachine:
    """A machine with a card that is too small for the model."""
    return TuneMachine(tmp_path, CARD_MIB)


def kept(study) -> dict[str, bytes]:
    """Return the bytes of every trial's file."""
    return {path.name: path.read_bytes() for path in study.glob("trials/*.json")}


def assert_nothing_is_repeated(study) -> None:
    """Assert that a study has no launch twice."""
    trials = Study.open(study).trials()
    made = Counter((trial.candidate.key, trial.purpose.identity) for trial in trials)
    assert made.most_common(1)[0][1] == 1, made


def test_a_tune_that_is_stopped_in_every_phase_has_a_result(program, machine, tmp_path):
    """Ctrl-C once and twice, SIGTERM and kill -9 lose at most the launch under way."""
    study = tmp_path / "study"
    words = machine.words(study, max_launches=4)
    stops = [
        ("phase baseline", (signal.SIGINT,)),
        (" baseline, own settings", (signal.SIGINT, signal.SIGINT)),
        ("phase confirm", (signal.SIGTERM,)),
        (" round 1, own settings", (signal.SIGKILL,)),
        ("phase prove", (signal.SIGINT,)),
    ]
    for count, (text, numbers) in enumerate(stops):
        before = kept(study)
        with program.start(*words, *["--resume"] * (count > 0)) as run:
            run.wait_for_text(text)
            run.send(*numbers)
            done = run.finish()

        assert before.items() <= kept(study).items()
        if signal.SIGKILL in numbers:
            assert done.code == -signal.SIGKILL
            continue
        assert done.code == 130, done.err
        assert f"--study {study} --resume" in done.err
        finished = len(list(study.glob("trials/[0-9][0-9][0-9][0-9].json")))
        assert (f"{finished} finished" if finished else "no launch had finished") in done.err, (
            done.err[-900:]
        )
        assert done.out == ""
        # The first stop may come before any launch has ended.
        assert ("Best so far" in done.err) == bool(kept(study))
    done = program.run(*words, "--resume", "--json")

    assert done.code == 0, done.err
    result = done.json
    assert result["winner"]["proven"] is True
    assert_nothing_is_repeated(study)
    trials = Study.open(study).trials()
    # Each stop costs at most the launch that it cut off.
    assert len(trials) <= machine.launches <= len(trials) + len(stops)
    assert machine.launches <= result["launches"] <= len(trials) + len(stops)
    assert machine.owners == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_moments_lose_nothing(program, machine, tmp_path, seed):
    """After any number of kills the measured trials are there, and the tune has a result."""
    rng = random.Random(seed)
    study = tmp_path / "study"
    words = machine.words(study, max_launches=4)
    kills = 0
    for count in range(6):
        before = kept(study)
        is_there = (study / "study.json").exists()
        with program.start(*words, *["--resume"] * is_there) as run:
            time.sleep(rng.uniform(1.0, 9.0))
            kills += run.process.poll() is None
            run.send(rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]))
            run.finish()
        assert before.items() <= kept(study).items(), count
    done = program.run(*words, "--resume", "--json", timeout_s=200)

    assert done.code == 0, done.err
    assert_nothing_is_repeated(study)
    trials = Study.open(study).trials()
    assert len(trials) <= machine.launches <= len(trials) + kills


def test_ctrl_c_during_a_hanging_load_ends_at_once(program, machine, tmp_path):
    """A load that hangs does not delay the first Ctrl-C."""
    machine.fail("hang-load", 3600)
    with program.start(*machine.words()) as run:
        run.wait_for_text("phase baseline")
        wait_for(lambda: machine.owners, 30)
        run.send(signal.SIGINT)
        done = run.finish(30)

    assert done.code == 130
    assert "--resume" in done.err


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_ctrl_c_ends_requests_that_hang(program, machine, tmp_path, parallel):
    """Neither one request nor several at the same time delay Ctrl-C."""
    machine.fail("hang-request", 3600)
    machine.write_workload(parallel=parallel)
    with program.start(*machine.words()) as run:
        wait_for(lambda: "listening" in _log(tmp_path), 60)
        time.sleep(1.0)
        run.send(signal.SIGINT)
        done = run.finish(40)

    assert done.code == 130
    assert f"--study {tmp_path}/study --resume" in done.err
    assert machine.owners == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("fault", ["drip", "endless"])
def test_a_stop_ends_a_health_check_without_end(program, machine, fault, number):
    """A server whose health check never ends does not delay a stop."""
    machine.fail(fault, "/health")
    with program.start(*machine.words()) as run:
        wait_for(lambda: machine.owners, 60)
        run.send(number)
        done = run.finish(40)

    assert done.code == 130


def _log(folder) -> str:
    path = folder / "study/trials/0001.log"
    return path.read_text(errors="replace") if path.exists() else ""


def test_a_second_autofit_is_refused(program, machine, tmp_path):
    """The second autofit on a machine ends with 4, names the first, and leaves no folder."""
    machine.fail("hang-load", 3600)
    with program.start(*machine.words("first")) as run:
        run.wait_for_text("phase baseline")
        second = AutofitProgram(tmp_path / "second")
        second.folder.mkdir()
        second.env["AUTOFIT_LOCK_DIR"] = program.env["AUTOFIT_LOCK_DIR"]
        done = second.run(*machine.words(tmp_path / "other"), "--json")
        run.send(signal.SIGTERM)
        run.finish(30)

    assert done.code == 4
    error = done.json["error"]
    assert error["kind"] == "machine_in_use"
    assert f"process {run.process.pid}" in error["message"]
    assert "--wait" in error["hint"]
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (None, 4)])
def test_an_autofit_that_waits_for_another_ends_at_once(program, tmp_path, number, code):
    """Ctrl-C and the end of its time stop a wait for another autofit, without a study."""
    lock = tmp_path / "lock"
    with machine_lock("results/night", folder=lock):
        words = ("tune", "model.gguf", "--study", tmp_path / "study")
        with program.start(*words, "--wait" if number else "--wait=1s") as run:
            run.wait_for_text("waiting: another autofit is measuring on this machine: process")
            if number is not None:
                run.send(number)
            done = run.finish(20)

    assert done.code == code
    assert not (tmp_path / "study").exists()


def flip_last_byte(path) -> None:
    """Change a file in place: a model of a simulated machine is a large hole."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def test_a_resume_says_what_it_leaves_out(program, machine, tmp_path):
    """A changed model ends the run, and damaged and deleted trials are said and made again."""
    study = tmp_path / "study"
    words = [*machine.words(study, max_launches=1), "--no-answers"]
    with program.start(*words) as run:
        run.wait_for_text("#1 ")
        flip_last_byte(machine.model)
        done = run.finish()
    assert done.code == 1
    assert "was changed during the run" in done.err
    count = len(kept(study))
    assert count >= 1

    refused = program.run(*words, "--resume")
    assert refused.code == 2
    assert "other conditions" in refused.err
    assert len(kept(study)) == count

    flip_last_byte(machine.model)
    damaged = study / "trials/0001.json"
    damaged.write_text(damaged.read_text()[:100])
    with program.start(*words, "--resume") as run:
        run.wait_for_text("phase baseline")
        assert "0001.json is damaged" in run.err
        run.send(signal.SIGTERM)
        run.finish()

    shutil.rmtree(study / "trials")
    done = program.run(*words, "--resume", "--json")
    assert done.code == 0, done.err
    assert "trials/ is missing" in done.err
    assert done.json["winner"]["proven"]
    assert done.json["launches"] == len(kept(study))
