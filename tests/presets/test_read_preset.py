"""Presets that a user gives: files, folders of studies and commands."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from presets.preset_sample import SPECIAL, write_file

from autofit.errors import UsageError
from autofit.presets.read_preset import read_preset, shorten, shorten_apart

LONG = "/opt/llama.cpp/build/bin/llama-server -m /models/big-moe-q4.gguf -c 32768 -ngl 99"


@pytest.mark.parametrize(
    ("one", "other", "first", "second"),
    [
        (
            f"{LONG} --n-cpu-moe 12 -ub 512",
            f"{LONG} --n-cpu-moe 2 -ub 512",
            "/opt/llama.cpp/bui ... --n-cpu-moe 12 -ub 512",
            "/opt/llama.cpp/bui ... --n-cpu-moe 2 -ub 512",
        ),
        (LONG, f"{LONG} -ub 512", "/opt/llama.cpp/bui ... -ngl 99", None),
        ("llama-server -m a", "llama-server -m b", "llama-server -m a", "llama-server -m b"),
        (LONG, LONG, shorten(LONG), shorten(LONG)),
    ],
)
def test_two_long_commands_are_cut_around_their_difference(one, other, first, second):
    """Both labels show the flag that differs; short or equal commands are cut as usual."""
    labels = shorten_apart(one, other)

    assert labels[0] == first
    assert second is None or labels[1] == second


@given(
    *(st.text("ab -/.", min_size=0, max_size=n) for n in (90, 60, 60)),
)
def test_labels_of_different_commands_differ(same, one, other):
    """Labels are short, and differ however long the commands' common beginning is."""
    texts = " ".join((same + one).split()), " ".join((same + other).split())
    assume(texts[0] != texts[1])

    labels = shorten_apart(*texts)

    assert labels[0] != labels[1]
    assert max(map(len, labels)) <= 60


def test_the_folder_of_a_study_gives_its_preset(tmp_path):
    """A study's folder is read as the only preset in it."""
    (tmp_path / "presets").mkdir()
    write_file("json", tmp_path / "presets", SPECIAL)

    assert read_preset(str(tmp_path)).server.argv == SPECIAL.argv


@pytest.mark.parametrize(
    ("text", "argv", "env"),
    [
        (
            "llama-server -m 'a b.gguf' -ngl 99",
            ("llama-server", "-m", "a b.gguf", "-ngl", "99"),
            {},
        ),
        ("A=1 B='x y' ./llama-server -c 8", ("./llama-server", "-c", "8"), {"A": "1", "B": "x y"}),
        (
            "env A=1 numactl -N 0 srv -fa on",
            ("numactl", "-N", "0", "srv", "-fa", "on"),
            {"A": "1"},
        ),
    ],
)
def test_a_command_is_a_preset(text, argv, env):
    """Settings before the program are variables, as in a shell."""
    found = read_preset(text).server

    assert (found.argv, found.env) == (argv, env)


def test_a_users_script_is_read(tmp_path):
    """Continued lines are one command, and `set` does not change it."""
    path = tmp_path / "run.sh"
    path.write_text("#!/bin/bash\nset -e\nexport A=1\nB=2 srv -m x.gguf \\\n  -ngl 9 # all\n")

    found = read_preset(str(path)).server

    assert (found.argv, found.env) == (("srv", "-m", "x.gguf", "-ngl", "9"), {"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "is not a preset"),
        ("a.json", "{", "is not a preset"),
        ("a.ini", "[a]\nc = 1\n[b]\nc = 2\n", "2 servers: a, b"),
        ("a.ini", "[a]\nnonsense\n", "neither"),
        ("a.sh", "one -a\ntwo -b\n", "more than one command"),
        ("a.args", "# nothing\n", "no launch command"),
        ("a.args", "srv 'open", "is not a preset"),
    ],
)
def test_a_faulty_file_is_refused_by_name(name, text, message, tmp_path):
    """The error names the fault and the file."""
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(UsageError, match=message) as raised:
        read_preset(str(path))

    assert name in raised.value.message


@pytest.mark.parametrize("given", ["missing.json", "results/none", "", "A=1 'open"])
def test_neither_file_nor_command_is_refused(given):
    """A misspelled file name is not read as a command."""
    with pytest.raises(UsageError):
        read_preset(given)


def test_a_folder_without_presets_is_refused(tmp_path):
    """A study without a preset cannot be read as one."""
    with pytest.raises(UsageError, match="no presets"):
        read_preset(str(tmp_path))
