"""Shell text cut into commands without running it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.presets.formats.read_systemd import entries_of_unit
from autofit.presets.formats.shell_text import simple_commands
from autofit.presets.formats.variables import filled, parameter_value

WORDS = st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Co", "Cc")), min_size=1), min_size=1
)


@given(WORDS)
def test_quoted_words_come_back(words):
    """Whatever `shlex` quotes is read as it was, with the variables before it."""
    text = f"export A=1\n{shlex.join(['run', *words])} # comment\n"

    (command,) = simple_commands(text)

    assert command.words == ("run", *words)
    assert (command.env, command.faults) == ({"A": "1"}, ())


@pytest.mark.parametrize(
    "line",
    [
        "a 'b c' \"d e\" f\\ g",
        'X="1 2"; a $X "$X" \'$X\'',
        'X=1; a "${X}b" ${X}c ${Y:-d e} "${Y-f}"',
        "X=; a ${X:-b} ${X-c}d",
        'a "\\$b \\"c\\" \\\\ \\d" \\$e',
        "a b#c # d",
        "a 2>&1 >/dev/null b",
        "a \\\n  b \\\n c",
        "cd / && a b",
        "X=1\nX=2\na $X",
        'X="a b"; Y="$X c"; a "$Y"',
    ],
)
def test_words_are_those_of_a_shell(line):
    """A shell itself agrees on quotes, variables, comments and redirections."""
    script = 'a() { for word in "$@"; do printf "%s\\n" "[$word]" >&3; done; }\n' + line
    told = subprocess.run(
        ["bash", "--posix", "-c", f"exec 3>&1; {script}"],
        capture_output=True, text=True, check=True, timeout=20,
    ).stdout  # fmt: skip

    (command,) = simple_commands(line)

    assert "".join(f"[{word}]\n" for word in command.words[1:]) == told
    assert command.faults == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a $X", "line 1: $X has no value here"),
        ("X=$(b)\na $X", "line 1: $(b) takes a shell to know"),
        ("if b; then X=1; fi\na $X", "line 1: `if` decides what X is"),
        ("for i in 1 2; do\n a $i\ndone", "line 1: `for` begins a loop"),
        ("a `b`", "line 1: `b` takes a shell to know"),
        ("a ${X%.gguf}", "line 1: ${X%.gguf} has no value here"),
        ('cd "$(dirname "$0")"\na b.gguf', '$(dirname "$0") takes a shell to know'),
        ("f() {\n a b\n}\n", "line 1: `{` begins"),
    ],
)
def test_what_takes_a_shell_is_a_fault_of_its_command(text, fault):
    """It is told with its line; commands that do not need it have no fault."""
    found = {command.words[0]: command.faults for command in simple_commands(text + "\nz 1")}

    assert any(fault in told for told in found["a"])
    assert found["z"] == ()


@given(st.text(alphabet="ab $\\'\"`(){}<>|&;#=\n[@]"))
def test_any_text_is_read_or_refused(text):
    """Nothing but a ValueError comes of a text that is no shell's."""
    try:
        commands = simple_commands(text)
    except (ValueError, RecursionError):
        return
    assert all(command.words for command in commands)


@given(st.text(), st.dictionaries(st.sampled_from(["A", "B"]), st.text()))
def test_texts_without_variables_stay(text, values):
    """Only dollars are looked at."""
    plain = text.replace("$", "")

    assert filled(plain, values.get) == (plain, [])


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("A", "1"),
        ("A:-x", "1"),
        ("B:-x", "x"),
        ("B-x", ""),
        ("C-x", "x"),
        ("C", None),
        ("#A", None),
    ],
)
def test_defaults_count_where_there_is_no_value(inner, value):
    """With a colon an empty value is none."""
    assert parameter_value(inner, {"A": "1", "B": ""}) == value


def test_a_drop_in_replaces_the_command():
    """An empty `ExecStart=` takes the earlier one away; several are several servers."""
    text = "[Service]\nExecStart=/bin/a -x\nExecStart=\nExecStart=-/bin/b -y\n"

    (entry,) = entries_of_unit(text, "mine")

    assert entry.argv == ("/bin/b", "-y")
    assert [e.name for e in entries_of_unit(text.replace("ExecStart=\n", ""), "mine")] == [
        "mine 1",
        "mine 2",
    ]
