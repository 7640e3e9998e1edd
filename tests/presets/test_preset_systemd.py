"""A systemd unit says what was meant, by systemd's rules for quotes, `%` and `$`."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import facts

from autofit.errors import UsageError
from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset

awkward = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)
_ESCAPE = re.compile(rb'\\x([0-9a-f]{2})|\\(["\\])')
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"\'\\]+)')


def _unit(text: str) -> configparser.ConfigParser:
    """The unit's sections; only what these units hold."""
    unit = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=False
    )
    unit.optionxform = str
    unit.read_string(text.replace(" \\\n", " "))
    return unit


def _words(line: str) -> list[str]:
    """The words of a value as systemd.syntax(7) tells, with specifiers and variables undone."""
    words = []
    for quoted, plain in _WORD.findall(line):
        raw = (quoted or plain).encode()
        text = _ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else m[2], raw).decode()
        assert not re.search(r"%(?!%)", text.replace("%%", ""))
        assert not re.search(r"\$(?!\$)", text.replace("$$", ""))
        words.append(text.replace("%%", "%").replace("$$", "$"))
    return words


@given(st.lists(awkward, max_size=4))
def test_words_come_back(words):
    """Whatever the arguments, the unit starts the program with these."""
    special = facts(arguments=tuple(words), address=(), help=None)

    command = _unit(write_preset("systemd", special))["Service"]["ExecStart"]

    assert _words(command) == ["/opt/llama.cpp/llama-server", *words]


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({}, None),
        ({"params": {"load_mode": "mlock"}}, "infinity"),
        ({"arguments": ("--load-mode", "mmap+mlock")}, "infinity"),
        ({"arguments": ("--mlock",)}, "infinity"),
        ({"env": {"LLAMA_ARG_MLOCK": "1"}}, "infinity"),
    ],
)
def test_locked_memory_is_allowed_where_it_is_needed(changes, limit):
    """The limit is lifted for a server that locks its weights, and only for that."""
    service = _unit(write_preset("systemd", facts(**changes)))["Service"]

    assert service.get("LimitMEMLOCK") == limit


def test_a_name_stays_within_its_line():
    """A model's name joins no lines and begins no specifier."""
    unit = _unit(write_preset("systemd", facts(model_name="a%n\n\\")))

    assert unit["Unit"]["Description"] == "llama.cpp server for a%%n"
    assert unit["Service"]["Type"] == "exec"


def test_variables_and_wrapper_are_set():
    """A variable's value is escaped, the wrapper comes before the program."""
    special = facts(env={"GGML_X": 'a "b" %n $c'}, wrapper=("/usr/bin/nice", "-n", "5"))
    service = _unit(write_preset("systemd", special))["Service"]

    assert service["Environment"] == '"GGML_X=a \\"b\\" %%n $c"'
    assert _words(service["ExecStart"])[:4] == [
        *("/usr/bin/nice", "-n", "5", "/opt/llama.cpp/llama-server"),
    ]


def test_autofit_reads_its_own_unit(tmp_path):
    """What was written comes back word for word when it is imported."""
    special = facts(
        env={"GGML_X": "3 $a %n"},
        wrapper=("/usr/bin/nice", "-n", "5"),
        arguments=(*("--model", '/m/it\'s 5%n "$HOME" ä;#.gguf'), *("--lora", "C:\\x y")),
    )
    unit = tmp_path / "x.service"
    unit.write_text(write_preset("systemd", special), encoding="utf-8")

    found = read_preset(str(unit))

    assert tuple(found.argv) == special.argv
    assert found.env == special.env


def test_a_path_that_systemd_would_expand_is_refused():
    """A program's own path cannot escape a `$`."""
    with pytest.raises(UsageError, match=r"`\$`"):
        write_preset("systemd", facts(command=("/opt/$x/llama-server",)))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this system has no systemd")
def test_systemd_takes_the_unit(tmp_path):
    """systemd-analyze finds no fault with a unit of awkward words."""
    special = facts(
        command=("/bin/sh",), arguments=("--lora", 'a "b" %n $c \\ é; #', "\t\n"), env={"A": "% $"}
    )
    unit = tmp_path / "x.service"
    unit.write_text(write_preset("systemd", special), encoding="utf-8")

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip

    assert (done.returncode, "x.service" in done.stderr) == (0, False), done.stderr
