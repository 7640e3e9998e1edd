"""Shell text split into commands without running it."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.presets.formats.shell_parser import parse_shell
from autofit.presets.formats.variable_expansion import unknown_reasons
from autofit.presets.server_entry import ServerEntry


def _commands(text: str) -> list[ServerEntry]:
    return parse_shell(text)[0]


WORDS = st.lists(
    st.text(st.characters(exclude_categories=("Cs", "Co", "Cc")), min_size=1), min_size=1
)


@given(WORDS)
def test_quoted_words_are_read_back(words):
    """Words that `shlex` quotes are read as they were, with the variables set before."""
    text = f"export A=1\n{shlex.join(['run', *words])} # comment\n"

    (command,) = _commands(text)

    assert command.argv == ("run", *words)
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
def test_words_are_the_same_as_in_a_shell(line):
    """Bash gives the same words for quotes, variables, comments and redirections."""
    script = 'a() { for word in "$@"; do printf "%s\\n" "[$word]" >&3; done; }\n' + line
    expected = subprocess.run(
        ["bash", "--posix", "-c", f"exec 3>&1; {script}"],
        capture_output=True, text=True, check=True, timeout=20,
    ).stdout  # fmt: skip

    (command,) = _commands(line)

    assert "".join(f"[{word}]\n" for word in command.argv[1:]) == expected
    assert command.faults == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a $X", "line 1: $X has no value here"),
        ("X=$(b)\na $X", "line 1: only a shell can evaluate $(b)"),
        ("if b; then X=1; fi\na $X", "line 1: `if` decides the value of X"),
        ("for i in 1 2; do\n a $i\ndone", "line 1: `for` begins"),
        ("a `b`", "line 1: only a shell can evaluate `b`"),
        ("a ${X%.gguf}", "line 1: ${X%.gguf} has no value here"),
        ('cd "$(dirname "$0")"\na b.gguf', 'only a shell can evaluate $(dirname "$0")'),
        ("f() {\n a b\n}\n", "line 1: `{` begins"),
    ],
)
def test_text_for_a_shell_is_a_fault_of_its_command(text, fault):
    """The fault names the line; commands that do not need the text have no fault."""
    found = {
        command.argv[0]: (*command.faults, *unknown_reasons(command.argv))
        for command in _commands(text + "\nz 1")
    }

    assert any(fault in one for one in found["a"])
    assert found["z"] == ()


@given(st.text(alphabet="ab $\\'\"`(){}<>|&;#=\n[@]"))
def test_any_text_is_parsed_or_refused(text):
    """Random text raises a ValueError or nothing."""
    try:
        commands = _commands(text)
    except (ValueError, RecursionError):
        return
    assert all(command.argv for command in commands)


def test_variables_of_the_callers_shell_are_known(monkeypatch):
    """PATH and its like, which scripts extend, have the value that autofit has."""
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)

    (command,) = _commands(
        "export PATH=/a:$PATH\nexport LD_LIBRARY_PATH=/l:$LD_LIBRARY_PATH\nrun 1"
    )

    assert command.env == {"PATH": "/a:/bin", "LD_LIBRARY_PATH": "/l:"}
