"""`autofit tune --storage`: several processes share one tune."""

from __future__ import annotations

from pathlib import Path

import pytest
from autofit_program import AutofitProgram
from postgres_server import PASSWORD, postgres  # noqa: F401 - a fixture
from tune_machine import TuneMachine

pytestmark = pytest.mark.timeout(240)

FAST = ("--yes", "--no-answers", "--json")


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a worker with devices of its own."""
    return {"FAKE_STATE": str(folder / "state"), "AUTOFIT_HEARTBEAT_S": "2"}


def test_two_processes_share_a_tune_and_its_url_is_read_like_a_study(tmp_path):
    """Both end with the same winner; show, report and export read the URL."""
    machine = TuneMachine(tmp_path, 2600.0)
    url = f"sqlite:///{tmp_path}/fleet.db"
    programs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        programs.append(AutofitProgram(tmp_path / name))
    first, second = (
        one.start(*machine.words(storage=url, study_name="night"), *FAST,
                  **_environment(one.folder))
        for one in programs
    )  # fmt: skip
    with first, second:
        ended = [first.finish(200), second.finish(200)]
    assert [one.code for one in ended] == [0, 0], [one.err for one in ended]
    assert ended[0].json["winner"] == ended[1].json["winner"]
    made = sum(len(list((p.folder / "study/trials").glob("*.json"))) for p in programs)
    shown = programs[0].run("show", url, "--json").json
    assert len(shown["trials"]) == made == ended[0].json["launches"]
    assert shown["result"]["winner"] == ended[0].json["winner"]
    exported = programs[0].run("export", f"{url}#night", "--format", "args")
    assert "--n-cpu-moe" in exported.out
    assert "n_cpu_moe" in programs[0].run("report", url).out


def test_a_worker_with_another_task_is_refused_before_its_study_is_made(tmp_path):
    """The exit code is 2, the difference is named, and no folder is made."""
    machine = TuneMachine(tmp_path, 2600.0)
    program = AutofitProgram(tmp_path)
    url = f"sqlite:///{tmp_path}/fleet.db"
    words = (*FAST, "--max-launches", "2", "--budget", "30s")
    assert program.run(*machine.words(storage=url), *words, timeout_s=200).code == 0
    other = program.run(
        *machine.words(study=tmp_path / "other", storage=url), *words, "--context", "1024",
        "--study-name", "model-brief",
    )  # fmt: skip
    assert other.code == 2
    assert "workload" in other.json["error"]["message"]
    assert not (tmp_path / "other").exists()


def test_a_password_is_neither_printed_nor_written(tmp_path, postgres):  # noqa: F811
    """No file of the study and no output has the password of the URL."""
    machine = TuneMachine(tmp_path, 2600.0)
    program = AutofitProgram(tmp_path)
    words = (*FAST, "--max-launches", "2", "--budget", "30s")
    done = program.run(*machine.words(storage=postgres.new_url()), *words, timeout_s=200)
    assert done.code == 0, done.err
    escaped = PASSWORD.replace("/", "%2F").encode()
    files = [path for path in (tmp_path / "study").rglob("*") if path.is_file()]
    for text in (done.out.encode(), done.err.encode(), *(path.read_bytes() for path in files)):
        assert escaped not in text
        assert PASSWORD.encode() not in text


@pytest.mark.parametrize(
    ("words", "about"),
    [
        (("--study-name", "night"), "--storage"),
        (("--storage", "mysql://host/database"), "mysql"),
        (("--storage", "sqlite:////nowhere/fleet.db"), "fleet.db"),
    ],
)
def test_a_wrong_storage_is_a_usage_error(tmp_path, words, about):
    """The exit code is 2, and the message names the fault."""
    machine = TuneMachine(tmp_path, 2600.0)
    done = AutofitProgram(tmp_path).run(*machine.words(), *FAST, *words)
    assert done.code == 2
    assert about in done.json["error"]["message"] + str(done.json["error"]["hint"])
