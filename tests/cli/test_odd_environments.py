"""Environments in which folders, variables or the working directory are not as usual."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from autofit_program import AutofitProgram, Done
from output.tune_sample import make_study
from small_disk import full_disk, needs_small_disk, read_only
from tune_machine import TuneMachine

pytestmark = pytest.mark.timeout(120)

_FOLDERS = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
_GONE = ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh"]


@pytest.fixture
def program(tmp_path) -> AutofitProgram:
    """Runs of autofit in a folder."""
    return AutofitProgram(tmp_path)


@pytest.fixture
def machine(tmp_path) -> TuneMachine:
    """A machine with a card that is too small for the model."""
    return TuneMachine(tmp_path, 3000.0)


def run(program: AutofitProgram, words, wrapper=(), **options) -> Done:
    """Run autofit to its end below a wrapper."""
    with program.start(*words, wrapper=wrapper, **options) as running:
        return running.finish(100)


def tune_words(machine: TuneMachine, study: Path, *more: str) -> list[str]:
    """Return the words of a tune of two launches and a proof."""
    return [*machine.words(study, max_launches=1), "--no-answers", *more]


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def without_home(program: AutofitProgram, folder: Path) -> list[str]:
    """Remove HOME and the name of a file system's encoding, and hide new files from others."""
    program.env.pop("HOME", None)
    program.env |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    program.env |= {"PYTHONIOENCODING": "ascii", "TMPDIR": "/nowhere/at/all", "TZ": "Nowhere/No"}
    return ["sh", "-c", 'umask 077; exec "$@"', "sh"]


def files_in_place(program: AutofitProgram, folder: Path) -> list[str]:
    """Put files in the places of all folders, HOME and TMPDIR included."""
    for name in (*_FOLDERS, "HOME", "TMPDIR"):
        program.env[name] = str(folder / f"{name}.file")
        Path(program.env[name]).write_text("text")
    return []


def empty_variables(program: AutofitProgram, folder: Path) -> list[str]:
    """Set the names of all folders to empty texts, and HOME to a folder that does not exist."""
    program.env |= dict.fromkeys((*_FOLDERS, "TMPDIR", "COLUMNS", "TERM"), "")
    program.env["HOME"] = str(folder / "nowhere")
    return []


def read_only_folders(program: AutofitProgram, folder: Path) -> list[str]:
    """Make all folders read-only, and TMPDIR a full disk."""
    places = [Path(program.env[name]) for name in _FOLDERS]
    program.env["TMPDIR"] = str(folder / "small")
    for place in (*places, folder / "small"):
        place.mkdir()
    return [*read_only(*places), *full_disk(folder / "small")]


@pytest.mark.parametrize(
    "make",
    [
        without_home,
        files_in_place,
        empty_variables,
        pytest.param(read_only_folders, marks=needs_small_disk),
    ],
)
def test_a_tune_needs_no_folder_but_its_study(make, program, machine, tmp_path):
    """Caches and remembered memory are a convenience: without them the result is complete."""
    study = tmp_path / "study"
    wrapper = make(program, tmp_path)
    done = run(program, tune_words(machine, study), wrapper)
    shown = run(program, ["show", study], wrapper)

    assert done.code == shown.code == 0, done.err + shown.err
    result = json.loads((study / "study.json").read_text())["result"]
    assert result["winner"]["proven"]
    assert Path(result["preset"]).is_file()
    assert (study / "report.md").is_file()
    # Other users must be able to lock the machine, whatever the umask of the first.
    lock = Path(program.env["AUTOFIT_LOCK_DIR"]) / "autofit.lock"
    assert stat.S_IMODE(lock.stat().st_mode) & 0o666 == 0o666


def test_a_removed_working_directory_ends_a_tune_before_its_first_launch(
    program, machine, tmp_path
):
    """The doctor says so, too; what needs no working directory still works."""
    make_study(tmp_path / "made").close()
    tuned = run(program, tune_words(machine, tmp_path / "study"), _GONE)
    examined = run(program, ["doctor", "--json"], _GONE)
    shown = run(program, ["show", tmp_path / "made"], _GONE)

    assert (tuned.code, examined.code, shown.code) == (2, 3, 0)
    assert "working directory" in tuned.err
    assert "no_working_directory" in {one["kind"] for one in examined.json["findings"]}
    assert machine.launches == 0


def test_a_study_behind_a_link_is_one_study(program, machine, tmp_path):
    """A resume by the folder's own name finds what was launched through the link."""
    link = tmp_path / "link"
    link.symlink_to("folder")
    (tmp_path / "folder").mkdir()
    made = run(program, tune_words(machine, link))
    launches = machine.launches
    again = run(program, tune_words(machine, tmp_path / "folder", "--resume"))

    assert made.code == again.code == 0, made.err + again.err
    assert machine.launches == launches
    assert link.is_symlink()
    assert (tmp_path / "folder" / "study.json").is_file()


@needs_small_disk
def test_a_study_in_a_read_only_folder_can_be_read(program, machine, tmp_path):
    """Commands that only read work; a new study below it ends with 1 before any launch."""
    study = tmp_path / "study"
    make_study(study).close()
    before = files(study)
    wrapper = read_only(study)
    exported = run(program, ["export", study, "--format", "shell", "-o", "-"], wrapper)
    reported = run(program, ["report", study, "--html", tmp_path / "page.html"], wrapper)
    tuned = run(program, tune_words(machine, study / "new"), wrapper)

    assert (exported.code, reported.code, tuned.code) == (0, 0, 1)
    assert (tmp_path / "page.html").is_file()
    assert str(study) in tuned.err
    assert "hint: " in tuned.err
    assert machine.launches == 0
    assert files(study) == before


def test_a_lock_that_cannot_be_made_ends_a_tune_before_its_first_launch(
    program, machine, tmp_path
):
    """The message names the variable for another folder, and the doctor finds it, too."""
    (tmp_path / "lock").write_text("text")
    tuned = run(program, tune_words(machine, tmp_path / "study"))
    examined = run(program, ["doctor", "--json"])

    assert (tuned.code, examined.code) == (1, 3)
    assert "AUTOFIT_LOCK_DIR" in tuned.err
    assert machine.launches == 0
    assert not (tmp_path / "study").exists()
