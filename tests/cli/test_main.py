"""The command line as a whole: help, exit codes, errors as JSON, signals, closed pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from output.tune_sample import make_study

from autofit.cli.main import COMMANDS
from autofit.errors import (
    AutofitError,
    Interrupted,
    MachineInUseError,
    NothingFitsError,
    RegressionError,
    UsageError,
)

AUTOFIT = [sys.executable, "-m", "autofit"]
# Runs autofit with one more command, a module in the current folder.
WITH_BROKEN = (
    "import autofit.cli.commands, os, sys\n"
    "from autofit.cli import main\n"
    "autofit.cli.commands.__path__.append(os.getcwd())\n"
    "main.COMMANDS['broken'] = ('broken', 'Fails.')\n"
    "main.main()\n"
)


def _run_broken(
    body: str, folder: Path, *words: str, before: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "broken.py").write_text(
        "import click\nfrom autofit import errors\n"
        "@click.command('broken')\n@click.option('--json', 'as_json', is_flag=True)\n"
        f"def command(as_json):\n    {body}\n"
    )
    return subprocess.run(
        [sys.executable, "-c", before + WITH_BROKEN, "broken", *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(cli, name):
    """`--help` of a command has its name and a description."""
    done = cli(name, "--help")

    assert done.code == 0
    assert done.out.startswith(f"Usage: autofit {name}")
    assert done.err == ""


def test_help_lists_every_command_without_importing_one(cli):
    """The commands and exit codes are listed without importing anything heavy."""
    script = (
        "import sys; from autofit.cli.main import _run; _run(['--help']); "
        "own = sorted(m for m in sys.modules if m.startswith('autofit.cli.')); "
        "print(own, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )

    modules = [f"autofit.cli.{name}" for name in ("main", "output_streams", "say")]
    assert done.stdout.endswith(f"{modules} False\n")
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in COMMANDS)
    codes = re.search(r"Exit codes:\n((?: +\d+  +\w.*\n)+)", done.stdout)
    assert codes is not None
    assert [int(line.split()[0]) for line in codes[1].splitlines()] == [0, 1, 2, 3, 4, 5, 130]
    assert "\\b" not in done.stdout
    assert "\b" not in done.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["report"], "Missing argument 'STUDY'"),
        (["show", "x", "--wrong"], "No such option '--wrong'"),
        (["show", "x", "--port", "many"], "'many' is not a valid integer"),
    ],
)
def test_usage_errors_end_with_2_and_name_the_help(cli, words, text):
    """A wrong command line names the fault and the help to read."""
    done = cli(*words)

    assert done.code == 2
    assert text in done.err
    assert "--help`" in done.err
    assert done.out == ""


def test_an_unknown_command_gets_a_suggestion_and_a_list(cli):
    """The hint has the most similar command, and each command on a line of its own."""
    done = cli("tuna")

    assert (done.code, done.out) == (2, "")
    assert "unknown command 'tuna'" in done.err
    assert "did you mean tune?" in done.err
    assert all(re.search(rf"^  {name} ", done.err, re.MULTILINE) for name in COMMANDS)


def test_json_errors_are_one_document_on_stdout(cli):
    """With --json an error is also on stdout, unless --json is an argument of the runtime."""
    done = cli("show", "nowhere", "--json")

    error = json.loads(done.out)["error"]
    assert set(error) == {"kind", "message", "hint"}
    assert (error["kind"], error["message"]) == ("usage", "no such study: nowhere")
    assert cli("show", "nowhere", "--", "--json").out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AutofitError, 1),
        (UsageError, 2),
        (NothingFitsError, 3),
        (MachineInUseError, 4),
        (RegressionError, 5),
        (Interrupted, 130),
    ],
)
def test_every_error_has_its_exit_code(tmp_path, error, code):
    """An error becomes a message, a hint and the documented exit code."""
    done = _run_broken(f"raise errors.{error.__name__}('it went wrong', 'do this')", tmp_path)

    assert done.returncode == code
    assert done.stderr == "autofit: it went wrong\nhint: do this\n"
    assert done.stdout == ""


def test_an_internal_error_writes_its_traceback_to_a_file(tmp_path):
    """An internal error is one line that names a file with the traceback."""
    done = _run_broken("return {}['missing']", tmp_path, "--json")

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "a fault in autofit itself: KeyError: 'missing'" in done.stderr
    (file,) = tmp_path.glob("autofit-fault-*.txt")
    assert str(file) in done.stderr
    assert "Traceback" in file.read_text()
    assert json.loads(done.stdout)["error"]["kind"] == "failed"


def test_a_system_error_names_its_file(tmp_path):
    """A file that cannot be opened is named, without a traceback."""
    done = _run_broken("open('/nowhere/at/all')", tmp_path)

    assert done.returncode == 1
    first, hint = done.stderr.splitlines()
    assert first.startswith("autofit: cannot use /nowhere/at/all: ")
    assert hint.startswith("hint: ")


def test_a_broken_pipe_other_than_stdout_is_a_failure(tmp_path):
    """A broken pipe that is not stdout ends with a failure, unlike `| head`."""
    body = "import os; r, w = os.pipe(); os.close(r); os.write(w, b'x')"
    done = _run_broken(body, tmp_path)

    assert done.returncode == 1
    assert "a pipe to another program was closed" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_a_run_as_interrupted(number):
    """A supervisor's signal ends a waiting command with 130 and the error document.

    A command that measures nothing has no hint about what is saved.
    """
    with subprocess.Popen(
        [*AUTOFIT, "explain", "-", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(b"main: loading model\n" * 5000)  # more than a pipe holds: it reads
        process.stdin.flush()
        process.send_signal(number)
        out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert json.loads(out)["error"] == {"kind": "interrupted", "message": "stopped", "hint": None}
    assert b"Traceback" not in err


def test_an_interrupt_that_an_import_replaces_is_no_fault(tmp_path):
    """An extension that is interrupted while it is imported raises an error of its own."""
    body = (
        "try: raise KeyboardInterrupt\n"
        "    except KeyboardInterrupt as error: raise ImportError('failed') from error"
    )
    done = _run_broken(body, tmp_path)

    assert done.returncode == 130
    assert done.stderr == "autofit: stopped\n"


@pytest.mark.parametrize("stop", ["{}", "exec('{}')"], ids=["code", "code made from text"])
def test_ctrl_c_during_the_imports_is_quiet(stop, tmp_path):
    """An interrupt during the imports ends with 130 and one line."""
    stop = stop.format("signal.raise_signal(signal.SIGINT)")
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == 'autofit.cli.main': {stop}\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "autofit"],
        env=env, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr) == (130, "", "autofit: stopped\n")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("autofit.cli.main", "SIGINT"),
        *(("autofit.cli.commands.doctor", name) for name in ("SIGHUP", "SIGTERM", "SIGINT")),
    ],
)
def test_a_signal_that_python_drops_still_ends_a_run(module, name, tmp_path):
    """An interrupt while an object is deleted, as in each import, cannot leave that code."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal, sys\n"
        "class Deleted:\n"
        "    def __del__(self): "
        f"signal.raise_signal(signal.{name})\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == '{module}': Deleted()\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [*AUTOFIT, "doctor"], env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "autofit: stopped")


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGINT"])
def test_a_signal_that_is_ignored_at_the_start_stays_ignored(tmp_path, name):
    """`nohup` works, and so does a shell that ignores SIGINT for a background job."""
    before = f"import signal; signal.signal(signal.{name}, signal.SIG_IGN)\n"
    body = f"import signal; signal.raise_signal(signal.{name}); print('went on')"

    done = _run_broken(body, tmp_path, before=before)

    assert (done.returncode, done.stdout) == (0, "went on\n"), done.stderr


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGINT"])
def test_a_signal_after_the_end_does_not_change_the_exit_code(tmp_path, name):
    """A signal at exit, and while Python removes its modules, does not change the exit code."""
    before = (
        "import atexit, os, signal, sys\n"
        "class Late:\n"
        f"    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{name}):\n"
        "        kill(pid, number)\n"
        "sys.modules['late'] = Late()\n"
        f"atexit.register(signal.raise_signal, signal.{name})\n"
    )

    done = _run_broken("print('done')", tmp_path, before=before)
    failed = _run_broken("raise errors.NothingFitsError('no', '')", tmp_path, before=before)

    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert (failed.returncode, failed.stderr) == (3, "autofit: no\n")


@pytest.mark.parametrize(
    "words",
    [["show", "STUDY"], ["show", "STUDY", "--json"], ["report", "STUDY"], ["--help"]],
    ids=" ".join,
)
def test_a_reader_that_closes_the_pipe_is_no_failure(tmp_path, words):
    """`autofit ... | head -0` succeeds silently."""
    make_study(tmp_path / "study")
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    try:
        done = subprocess.run(
            [*AUTOFIT, *(str(tmp_path / "study") if w == "STUDY" else w for w in words)],
            stdout=write_fd,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(write_fd)

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("redirection", "code"), [(">&-", 2), (">&- 2>&-", 2), (">/dev/full", 2), ("2>/dev/full", 2)]
)
def test_errors_keep_their_exit_code_on_closed_streams(redirection, code):
    """Closed and full streams do not change the exit code, and print no traceback."""
    line = f'"$0" -m autofit show nowhere --json {redirection}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_full_disk_under_stdout_is_a_failure(tmp_path):
    """Output that cannot be written ends with a failure."""
    make_study(tmp_path / "study")
    with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [*AUTOFIT, "show", str(tmp_path / "study"), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
            check=False,
        )

    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [["show", "STUDY"], ["show", "STUDY", "--command", "1"], ["report", "STUDY"], ["--help"]],
    ids=" ".join,
)
def test_a_closed_stdout_is_a_failure(tmp_path, words):
    """A result that cannot be written is a failure, as text and as raw bytes."""
    make_study(tmp_path / "study")
    given = " ".join(str(tmp_path / "study") if word == "STUDY" else word for word in words)
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m autofit {given} >&-', sys.executable],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 1
    assert done.stderr == "autofit: stdout is closed: the result could not be written\n"


def test_arguments_of_raw_bytes_are_reported_in_json():
    """A path that is not Unicode breaks neither the message nor the document."""
    done = subprocess.run(
        [*AUTOFIT, "show", os.fsdecode(b"\xff"), "--json"],
        capture_output=True,
        timeout=30,
        check=False,
    )

    assert done.returncode == 2
    assert os.fsencode(json.loads(done.stdout)["error"]["message"]).endswith(b"\xff")
