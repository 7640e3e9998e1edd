"""Shell completion, and `--version`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from autofit import __version__


def _autofit(*words, cwd=None, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "autofit", *words], capture_output=True, text=True, timeout=60,
        check=True, cwd=cwd, env={**os.environ, **variables},
    )  # fmt: skip
    return done.stdout


def _completed(line, cwd=None):
    """Return the kind and text of each completion that bash offers at the end of a line."""
    words = line.split(" ")
    out = _autofit(
        cwd=cwd, COMP_WORDS=line, COMP_CWORD=str(len(words) - 1), _AUTOFIT_COMPLETE="bash_complete"
    )
    return [item.split(",", 1) for item in out.splitlines()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    """bash, zsh and fish get a script that asks autofit for completions."""
    assert f"_AUTOFIT_COMPLETE={shell}_complete" in _autofit(_AUTOFIT_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("autofit tu", "tune"),
        ("autofit tune --max", "--max-launches"),
        ("autofit tune --objective t", "tg"),
        ("autofit tune --workload ch", "chat"),
        ("autofit probe --space mo", "moe"),
        ("autofit plan --dialect ik", "ik_llama_server"),
        ("autofit tune --set n_cpu_m", "n_cpu_moe="),
    ],
)
def test_a_word_is_completed(line, word):
    """Commands, options, and the names of spaces, workloads, dialects and parameters."""
    assert ["plain", word] in _completed(line)


def test_a_users_file_is_offered(tmp_path):
    """A workload in the working directory is offered with the shipped ones."""
    folder = tmp_path / "search_spaces" / "workloads"
    folder.mkdir(parents=True)
    (folder / "ours.yaml").write_text("", encoding="utf-8")

    offered = [word for _, word in _completed("autofit tune --workload ", cwd=tmp_path)]

    assert "ours" in offered
    assert "chat" in offered


def test_studies_are_completed(tmp_path):
    """`show` offers the studies of results/."""
    (tmp_path / "results" / "tiny-1").mkdir(parents=True)
    (tmp_path / "results" / "tiny-1" / "study.json").write_text("{}", encoding="utf-8")

    assert _completed("autofit show ti", cwd=tmp_path) == [["plain", "tiny-1"]]
    assert ["plain", "studies"] in _completed("autofit stu")


def test_a_path_is_completed_as_a_file():
    """A word with a slash is completed by the shell's own completion of files."""
    assert _completed("autofit tune --space ./mi") == [["file", "./mi"]]


def test_the_version_has_python_system_and_libraries():
    """`--version` names Python, the system, and each library and extra with its version."""
    lines = dict(line.split(": ", 1) for line in _autofit("--version").splitlines()[1:])

    assert _autofit("--version").startswith(f"autofit {__version__}\n")
    assert set(lines) == {
        "python", "system", "program", "shipped files", "libraries", "extras"
    }  # fmt: skip
    assert "optuna" in lines["libraries"]
    assert "xllamacpp" in lines["extras"]
