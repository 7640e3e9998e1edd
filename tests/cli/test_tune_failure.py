"""Tunes with failures: each ends with a result, an exit code and no process left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from cli.tune_document import RESULT
from process_stage import MARK, Stage
from small_disk import needs_small_disk
from tune_machine import HOST, TuneMachine

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path) -> TuneMachine:
    """A machine with a card that is too small for the model."""
    return TuneMachine(tmp_path, 2600.0)


@pytest.fixture
def tune(cli, monkeypatch, tmp_path):
    """Return a function that runs a tune with --json and checks that no process is left."""
    stage = Stage(tmp_path)
    monkeypatch.setenv(MARK, stage.mark)

    def run(machine: TuneMachine, *more: object, code: int, **changed: object):
        changed = {"max_launches": 4, **changed}
        done = cli(*machine.words(tmp_path / "study", **changed), "--json", *more)
        stage.wait_empty()
        assert machine.owners == []
        assert done.code == code, done.err
        result = json.loads(done.out)
        jsonschema.validate(result, RESULT)
        return result, done.err

    return run


def test_a_baseline_that_fails_leaves_no_gain(tune, machine):
    """If the runtime refuses the user's command, a winner is proven and the gain is null."""
    command = f"llama-server -m {machine.model} --no-such-flag"
    result, err = tune(machine, "--baseline", command, code=0, max_launches=2)

    assert result["baseline"]["outcome"]["kind"] == "rejected"
    assert "--no-such-flag" in result["baseline"]["outcome"]["evidence"]
    assert result["baseline"]["estimates"] == {}
    assert result["gain"] is None
    assert result["tie"] is False
    assert result["winner"]["proven"] is True
    assert "--baseline failed (rejected" in err


def test_a_runtime_that_fails_in_every_launch(tune, machine):
    """If every launch fails, the result has every failure, and a hint."""
    machine.fail("oom-kv")
    result, err = tune(machine, code=3)

    assert (result["winner"], result["gain"], result["preset"]) == (None, None, None)
    assert result["outcomes"] == {"out_of_memory": result["launches"]}
    assert 1 < result["launches"] <= 4
    assert "autofit: no settings were proven to work" in err
    assert "hint: `autofit show " in err
    study = Path(result["study"])
    assert "Nothing was proven" in (study / "report.md").read_text()
    assert not (study / "presets").exists()
    assert all(trial.outcome.evidence for trial in Study.open(study).trials())


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        ("illegal:load", "crashed", "illegal_instruction"),
        ("impossible-speed", "incorrect", None),
    ],
)
def test_every_kind_of_failure_has_its_outcome(tune, machine, fault, kind, reason):
    """The failure of a launch is the outcome of its trial, with evidence."""
    name, _, stage = fault.partition(":")
    machine.fail(name, stage or None)
    result, _ = tune(machine, code=3, max_launches=1)

    outcome = result["baseline"]["outcome"]
    assert outcome["kind"] == kind
    assert outcome["evidence"]
    assert reason is None or outcome["reason"] == reason


def test_a_model_that_fits_nowhere(tune, tmp_path):
    """If neither card nor host has room, the exit code is 3 and the memory is named."""
    small = TuneMachine(tmp_path, 700.0)
    small.change(host=type(HOST)(ram_mib=1050, other_mib=1000, refuses=True))
    result, _ = tune(small, code=3)

    assert set(result["outcomes"]) == {"out_of_memory"}
    assert result["winner"] is None


@pytest.mark.slow
def test_a_server_that_will_not_end(tune, machine):
    """A server that ignores SIGTERM is killed after its grace time, and the tune continues."""
    machine.fail("ignore-term", launches=[1])
    result, _ = tune(machine, code=0, max_launches=1)

    assert result["baseline"]["outcome"]["kind"] == "completed"


# $1 the folder of a small disk, $2 when it fills up, the rest a tune with its study there.
FILLING = """\
place=$1 when=$2; shift 2
mount -t tmpfs -o size=210m none "$place"
"$@" & tune=$!
while ! ls "$place"/study/trials/$when >/dev/null 2>&1; do sleep 0.05; done
head -c 220m /dev/zero > "$place/letters" 2>/dev/null
wait $tune; echo "ended with $?" >&2
ls "$place"/study/trials/*.json | wc -l >&2
rm "$place/letters"
"$@" --resume; echo "went on with $?" >&2
mount -o remount,ro "$place"
"$@" --resume; echo "refused with $?" >&2
"""


@needs_small_disk
@pytest.mark.slow
@pytest.mark.parametrize("when", ["0001.running", "0003.log"])
def test_a_full_and_a_read_only_disk_end_the_tune(machine, tmp_path, when):
    """A full disk ends the tune with a hint; with room it resumes; read-only is an error."""
    place = tmp_path / "disk"
    place.mkdir()
    stage = Stage(tmp_path)
    words = [*machine.words(place / "study", max_launches=2), "--json"]
    done = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", FILLING, "sh", place, when, sys.executable, "-m",
         "autofit", *words],
        cwd=tmp_path,
        env={**stage.env, "AUTOFIT_LOCK_DIR": str(tmp_path / "lock"), "TMPDIR": str(tmp_path),
             "PYTHONPATH": str(REPOSITORY)},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    stage.wait_empty()

    assert "Traceback" not in done.stderr, done.stderr
    assert "fault in autofit" not in done.stderr, done.stderr
    first, second, third = (json.loads(line) for line in done.stdout.splitlines())
    assert "ended with 1\n" in done.stderr, done.stderr
    assert "No space left" in first["error"]["message"]
    assert "resume" in first["error"]["hint"]
    assert "went on with 0\n" in done.stderr, done.stderr
    assert second["winner"]["proven"] is True
    assert "refused with 1\n" in done.stderr, done.stderr
    assert "Read-only file system" in third["error"]["message"]
    assert "--study DIR" in third["error"]["hint"]
