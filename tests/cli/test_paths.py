"""Paths that cannot be used: each command reports the fault, with a hint."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from autofit.cli.options.paths import check_writable, describe_path_error
from autofit.errors import UsageError

LONG = "x" * 300
# The wording of the system, which does not help users.
RAW = re.compile(r"\[?Errno|strerror")


@contextmanager
def without_root():
    """Give up the rights of the superuser, who may write everywhere."""
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(was)


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A working directory with a file and a folder."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("text")
    Path("folder").mkdir()
    Path("circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "fault", "hint"),
    [
        ("nowhere/models.ini", "there is no folder nowhere", "mkdir -p nowhere"),
        ("folder", "folder is a folder", "the name of a file in that folder"),
        ("file/models.ini", "file is a file, not a folder", "another path"),
        (f"{LONG}.ini", "the name is too long", "shorter"),
        ("circle", "the links of the path lead in a circle", "the path of the file itself"),
    ],
)
@pytest.mark.parametrize(
    "words",
    [
        ["export", "study", "--format", "ini", "--merge", "-o"],
        ["export", "study", "--format", "ini", "-o"],
        ["import", "llama-server -m m.gguf", "-o"],
        ["report", "study", "--html"],
        ["sweep", "demo", "--dry-run", "--junit"],
        ["sweep", "demo", "--dry-run", "--summary"],
    ],
    ids=lambda words: "-".join(word for word in words if word[0] != "-")[:20],
)
@pytest.mark.usefixtures("there")
def test_an_unwritable_target_is_refused_before_any_work(cli, words, target, fault, hint):
    """The exit code is 2, with fault and hint; nothing is printed or made."""
    ended = cli(*words, target)

    assert ended.code == 2, ended.err
    assert fault in ended.err
    assert hint in ended.err
    assert ended.out == ""
    assert not RAW.search(ended.err)
    assert sorted(path.name for path in Path().iterdir() if path.name != "cache") == [
        "circle", "file", "folder",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "fault"),
    [
        ("folder", "folder"),
        ("file/night.json", "a file, not a folder"),
        (f"{LONG}/night.json", "the name is too long"),
        ("circle", "the links of the path lead in a circle"),
        ("circle/night.json", "the links of the path lead in a circle"),
    ],
)
@pytest.mark.usefixtures("there")
def test_an_unwritable_baseline_is_refused_before_a_night(cli, target, fault):
    """A missing folder is made; everything else is refused."""
    ended = cli("sweep", "demo", "--dry-run", "--update-baseline", "--baseline", target)

    assert ended.code == 2, ended.err
    assert fault in ended.err
    assert "hint: " in ended.err
    assert not RAW.search(ended.err)


def test_a_folder_without_write_permission_is_refused():
    """It is refused also for a file in it that exists."""
    # pytest's own folder is closed to other users.
    with tempfile.TemporaryDirectory() as name:
        target = Path(name) / "models.ini"
        target.write_text("")
        Path(name).chmod(0o555)
        with without_root(), pytest.raises(UsageError) as raised:
            check_writable(target)
        Path(name).chmod(0o755)
        check_writable(target)

    assert name in raised.value.message
    assert raised.value.hint
    check_writable(Path("/dev/null"))


@pytest.mark.parametrize(
    "words",
    [
        ["show", LONG],
        ["report", LONG],
        ["export", LONG, "--format", "args"],
        ["replay", LONG],
        ["synth", LONG],
        ["sweep", "demo", "--baseline", LONG, "--dry-run"],
        ["sweep", "demo", "--folder", LONG, "--resume"],
        ["sweep", "demo", "--folder", "folder", "--resume"],
        ["sweep", "demo", "--folder", "file/night", "--resume"],
        ["plan", "file/m.gguf"],
        ["explain", "folder"],
        ["check", "file/a.yaml"],
    ],
    ids=lambda words: "-".join(words)[:24],
)
@pytest.mark.usefixtures("there")
def test_no_command_shows_the_wording_of_the_system(cli, words):
    """An unreadable path is a fault of the command line, with a hint."""
    ended = cli(*words)

    assert ended.code == 2, ended.err
    assert "hint: " in ended.err
    assert not RAW.search(ended.err)


def test_a_fault_of_the_system_is_no_usage_error():
    """A full disk and an unknown fault end with 1."""
    full = describe_path_error(OSError(errno.ENOSPC, "No space left on device", "/a/b"))
    odd = describe_path_error(OSError(errno.EIO, "Input/output error", "/a/b"))
    bare = describe_path_error(OSError("odd"))

    assert (full.exit_code, full.message) == (1, "cannot use /a/b: the disk is full")
    assert "free some space" in full.hint
    assert (odd.exit_code, odd.message) == (1, "cannot use /a/b: Input/output error")
    assert bare.message == "odd"


def test_a_removed_working_directory_is_reported(there, monkeypatch):
    """The error names the working directory instead of a file."""
    gone = there / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    error = describe_path_error(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    monkeypatch.chdir(there)

    assert "working directory" in error.message
    assert error.exit_code == 2
