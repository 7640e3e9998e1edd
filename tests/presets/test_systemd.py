"""systemd units by systemd's rules for quotes, `%` and `$`, written and read."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import make_preset

from autofit.errors import UsageError
from autofit.presets.formats.preset_format import PresetFile
from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.read_preset import read_preset

awkward = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12)


_ESCAPE = re.compile(rb'\\x([0-9a-f]{2})|\\(["\\])')


_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"|([^\s"\'\\]+)')


def _unit(text: str) -> configparser.ConfigParser:
    """Return the sections of a unit that autofit has written."""
    unit = configparser.ConfigParser(
        interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=False
    )
    unit.optionxform = str
    unit.read_string(text.replace(" \\\n", " "))
    return unit


def _words(line: str) -> list[str]:
    """Split a value by systemd.syntax(7), with specifiers and variables unescaped."""
    words = []
    for quoted, plain in _WORD.findall(line):
        raw = (quoted or plain).encode()
        text = _ESCAPE.sub(lambda m: bytes.fromhex(m[1].decode()) if m[1] else m[2], raw).decode()
        assert not re.search(r"%(?!%)", text.replace("%%", ""))
        assert not re.search(r"\$(?!\$)", text.replace("$$", ""))
        words.append(text.replace("%%", "%").replace("$$", "$"))
    return words


@given(st.lists(awkward, max_size=4))
def test_any_arguments_are_started(arguments):
    """The unit starts the program with the same arguments."""
    special = make_preset(arguments=tuple(arguments), address=(), help=None)

    command = _unit(write_preset("systemd", special))["Service"]["ExecStart"]

    assert _words(command) == ["/opt/llama.cpp/llama-server", *arguments]


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
def test_memory_may_be_locked_if_the_server_does_so(changes, limit):
    """Only a server that locks its weights has no limit."""
    service = _unit(write_preset("systemd", make_preset(**changes)))["Service"]

    assert service.get("LimitMEMLOCK") == limit


def test_a_name_stays_within_its_line():
    """A model's name does not join lines or begin a specifier."""
    unit = _unit(write_preset("systemd", make_preset(model_name="a%n\n\\")))

    assert unit["Unit"]["Description"] == "llama.cpp server for a%%n"
    assert unit["Service"]["Type"] == "exec"


def test_variables_and_wrapper_are_set():
    """A variable's value is escaped, and the wrapper comes before the program."""
    special = make_preset(env={"GGML_X": 'a "b" %n $c'}, wrapper=("/usr/bin/nice", "-n", "5"))
    service = _unit(write_preset("systemd", special))["Service"]

    assert service["Environment"] == '"GGML_X=a \\"b\\" %%n $c"'
    assert _words(service["ExecStart"])[:4] == [
        *("/usr/bin/nice", "-n", "5", "/opt/llama.cpp/llama-server"),
    ]


def test_a_written_unit_is_read_back(tmp_path):
    """The command and the variables of a written unit are the same again."""
    special = make_preset(
        env={"GGML_X": "3 $a %n"},
        wrapper=("/usr/bin/nice", "-n", "5"),
        arguments=(*("--model", '/m/it\'s 5%n "$HOME" ä;#.gguf'), *("--lora", "C:\\x y")),
    )
    unit = tmp_path / "x.service"
    unit.write_text(write_preset("systemd", special), encoding="utf-8")

    found = read_preset(str(unit)).server

    assert found.argv == special.argv
    assert found.env == special.env


def test_a_path_that_systemd_would_expand_is_refused():
    """A `$` in the program's own path cannot be escaped."""
    with pytest.raises(UsageError, match=r"`\$`"):
        write_preset("systemd", make_preset(command=("/opt/$x/llama-server",)))


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="this system has no systemd")
def test_systemd_accepts_the_unit(tmp_path):
    """systemd-analyze finds no fault in a unit with awkward arguments."""
    special = make_preset(
        command=("/bin/sh",), arguments=("--lora", 'a "b" %n $c \\ é; #', "\t\n"), env={"A": "% $"}
    )
    unit = tmp_path / "x.service"
    unit.write_text(write_preset("systemd", special), encoding="utf-8")

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        check=False, capture_output=True, text=True, timeout=30,
    )  # fmt: skip

    assert (done.returncode, "x.service" in done.stderr) == (0, False), done.stderr


def test_an_empty_setting_removes_earlier_commands():
    """An empty `ExecStart=` removes the earlier ones; several are several servers."""
    text = "[Service]\nExecStart=/bin/a -x\nExecStart=\nExecStart=-/bin/b -y\n"

    (server,) = _read(text)

    assert server.argv == ("/bin/b", "-y")
    both = _read(text.replace("ExecStart=\n", ""))
    assert [server.name for server in both] == ["mine 1", "mine 2"]


def test_an_environment_file_is_read(tmp_path):
    """Its variables override those of the unit; a file that cannot be read gets a notice."""
    (tmp_path / "env").write_text("# mine\nA=file\nC='x y'\n")
    unit = tmp_path / "mine.service"
    unit.write_text(
        f"[Service]\nEnvironmentFile={tmp_path}/env\nEnvironmentFile=-/gone/env\n"
        "Environment=A=unit B=unit\nExecStart=/bin/llama-server --alias ${A}\n"
    )

    server = read_preset(str(unit)).server

    assert server.env == {"A": "file", "B": "unit", "C": "x y"}
    assert server.argv[-1] == "file"
    assert ["/gone/env" in notice for notice in server.notices] == [True]


def _read(text: str):
    return FORMATS["systemd"].read(PresetFile(Path("mine.service"), text))
