"""The registry of formats: every format holds what it is given, or refuses it."""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest
from presets.preset_sample import SMALL_HELP, SPECIAL, make_preset, write_file

from autofit.errors import UsageError
from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.read_preset import read_preset
from autofit.runtime.dialect.dialect import PresetRules

ADDRESS = ("--host", "127.0.0.1", "--port", "8080")


@pytest.mark.parametrize("name", ["ini", "env"])
def test_an_unlisted_flag_is_refused(name):
    """Formats of known flags refuse any other flag, and a runtime without help."""
    with pytest.raises(UsageError, match="--prefetch"):
        write_preset(name, make_preset(arguments=("--prefetch", "3")))
    with pytest.raises(UsageError, match="not known"):
        write_preset(name, make_preset(help=None))


def test_every_format_has_variables_and_wrapper():
    """An ini file, which cannot hold them, names them in the router's command."""
    special = make_preset(env={"GGML_X": "a b"}, wrapper=("numactl", "--membind=0"))

    for name in FORMATS:
        text = write_preset(name, special)

        assert "numactl" in text
        assert "GGML_X" in text
    assert "env 'GGML_X=a b' numactl --membind=0 /opt/llama.cpp/llama-server" in write_preset(
        "ini", special
    )


def test_an_address_is_added_only_where_there_is_none():
    """A preset listens where its arguments say, and else on the local port."""
    own = make_preset(arguments=("--port", "9000", "--host", "0.0.0.0"))  # noqa: S104 - only text

    assert make_preset().argv[-4:] == ADDRESS
    assert own.argv == ("/opt/llama.cpp/llama-server", "--port", "9000", "--host", "0.0.0.0")  # noqa: S104


@pytest.mark.parametrize("name", ["args", "shell", "env"])
def test_a_real_shell_starts_the_same_command(tmp_path, name):
    """/bin/sh starts the program with the preset's arguments and variables."""
    arguments = ["--lora", '/it\'s "$HOME" `x` \\ *;#&.gguf', "--threads", "é\n-1"]
    special = make_preset(
        command=(sys.executable, "-c", "import sys, os; print(sys.argv[1:], os.environ['A'])"),
        arguments=tuple(arguments),
        address=(),
        env={"A": "a'b $x"},
        help=make_preset().help if name == "env" else None,
    )
    script = tmp_path / "preset"
    script.write_text(write_preset(name, special))
    if name == "env":
        program = "import os; print([os.environ['LLAMA_ARG_THREADS']], os.environ['A'])"
        command = f"set -a; . {script}; exec {shlex.join([sys.executable, '-c', program])}"
        expected = f"{[arguments[3]]} a'b $x\n"
    else:
        command = f". {script}"
        expected = f"{arguments} a'b $x\n"

    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=20, check=True
    )

    assert done.stdout == expected


def test_an_unknown_or_unusable_format_is_refused():
    """The hint lists the formats that are known, or that the runtime can use."""
    with pytest.raises(UsageError) as caught:
        write_preset("toml", make_preset())
    assert "ini, llama-swap, shell" in caught.value.hint

    with pytest.raises(UsageError) as caught:
        write_preset("ini", make_preset(rules=PresetRules(formats=("shell", "args"))))
    assert "shell, args" in caught.value.hint

    with pytest.raises(UsageError, match="one model"):
        write_preset("shell", make_preset(), make_preset())


@pytest.mark.parametrize("format_name", ["json", "args", "shell", "systemd"])
def test_a_written_command_is_read_back(format_name, tmp_path):
    """Wrapper, program, arguments and variables are the same again."""
    found = read_preset(str(write_file(format_name, tmp_path, SPECIAL))).server

    assert found.full_argv(SMALL_HELP, "other") == SPECIAL.argv
    assert found.env == SPECIAL.env


@pytest.mark.parametrize("format_name", ["llama-swap", "compose"])
def test_a_written_entry_is_read_back_except_its_address(format_name, tmp_path):
    """llama-swap chooses the port, and a container has the program at another path."""
    found = read_preset(str(write_file(format_name, tmp_path, SPECIAL))).server

    argv = found.full_argv(SMALL_HELP, "other")
    start, expected = argv.index("--model"), SPECIAL.argv.index("--model")
    assert argv[: start - 1] == SPECIAL.argv[: expected - 1]
    assert argv[start:-4] == SPECIAL.argv[expected:-4]
    assert argv[-4::2] == ("--host", "--port")
    assert found.env == SPECIAL.env
    assert found.in_container == (format_name == "compose")
