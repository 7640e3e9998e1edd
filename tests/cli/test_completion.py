"""Shell completion, and `--version`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from study.study_sample import ENVIRONMENT, header

from autofit import __version__
from autofit.study.study_folder import Study


def _autofit(*words, cwd=None, **variables):
    done = subprocess.run(
        [sys.executable, "-m", "autofit", *words], capture_output=True, text=True, timeout=60,
        check=True, cwd=cwd, env={**os.environ, **variables},
    )  # fmt: skip
    return done.stdout


def _completed(line, cwd=None, breaks="=:", **variables):
    """Return the kind and text of each completion that bash offers at the end of a line.

    Bash also ends words at the characters `breaks`, which are words of their own.
    """
    words = [
        w for word in line.split(" ") for w in re.split(f"([{breaks}])", word) if w or not word
    ]
    out = _autofit(
        cwd=cwd,
        COMP_WORDS="\n".join(words),
        COMP_CWORD=str(len(words) - 1),
        _AUTOFIT_COMPLETE="bash_complete",
        **variables,
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
        ("autofit tune --set cache_type_k=q8", "q8_0"),
        ("autofit tune --set load_mode=", "mmap"),
        ("autofit tune --set swa_full=o", "on"),
        ("autofit tune --kv-floor q8", "q8_0"),
        ("autofit tune --kv-floor=q8", "q8_0"),
        ("autofit probe --kv q8_0,f", "q8_0,f16"),
        ("autofit probe --layout bal", "balanced"),
        ("autofit replay rtx5060", "rtx5060ti-8gb_qwen36-35b_win"),
        ("autofit sweep de", "demo"),
        ("autofit export x --format s", "systemd"),
    ],
)
def test_a_word_is_completed(line, word):
    """Commands, options, and the names of spaces, workloads, dialects and parameters."""
    assert ["plain", word] in _completed(line)


def test_words_that_bash_does_not_split_are_completed_whole():
    """A user who took `=` out of COMP_WORDBREAKS gets the whole word."""
    words = _completed("autofit tune --set cache_type_k=q8", breaks="@")

    assert words == [["plain", "cache_type_k=q8_0"]]


def test_cached_models_are_completed_by_name(tmp_path):
    """`-hf` offers names, MODEL also files; after the colon only the rest of a name."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    folder = tmp_path / "models--me--Tiny-GGUF" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "Tiny-Q8_0.gguf").write_bytes(b"GGUF")
    places = {"LLAMA_CACHE": str(tmp_path), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}

    name = ["plain", "me/Tiny-GGUF:Q8_0"]
    assert _completed("autofit plan -hf me/", **places) == [name]
    assert _completed("autofit plan me/", **places) == [["file", "me/"], name]
    assert ["plain", "Q8_0"] in _completed("autofit plan -hf me/Tiny-GGUF:Q", **places)
    assert ["plain", "Q8_0"] in _completed("autofit plan -hf me/Tiny-GGUF:", **places)


def test_devices_of_earlier_studies_are_completed(tmp_path):
    """`--device` and single layouts offer them; nothing is started to find devices."""
    environment = replace(ENVIRONMENT, devices=("CUDA0: NVIDIA RTX, 12288 MiB", "RPC0: far"))
    with Study.create(tmp_path / "results" / "one", header(environment=environment)):
        pass

    assert ["plain", "RPC0"] in _completed("autofit tune --device ", cwd=tmp_path)
    layouts = _completed("autofit probe --layout single:RP", cwd=tmp_path)
    assert layouts == [["plain", "RPC0"]]


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
