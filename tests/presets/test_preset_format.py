"""Every format carries what was meant, or says that it cannot."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import ARGUMENTS, facts

from autofit.errors import UsageError
from autofit.presets.facts import winner_facts
from autofit.presets.formats.ini import section_name
from autofit.presets.formats.registry import FORMATS, write_preset

ADDRESS = ("--host", "127.0.0.1", "--port", "8080")
HEADED = ("ini", "llama-swap", "shell", "systemd", "compose", "env")


def test_ini_is_what_the_router_reads():
    """Keys without dashes below a section, the model first, nothing the router sets itself."""
    text = write_preset("ini", facts(arguments=(*ARGUMENTS, "--no-warmup", *ADDRESS)))
    lines = [line for line in text.splitlines() if not line.startswith(";")]

    assert lines == [
        "version = 1",
        "",
        "[tiny]",
        "model = /models/tiny.gguf",
        "n-gpu-layers = 49",
        "n-cpu-moe = 20",
        "ctx-size = 8192",
        "parallel = 1",
        "flash-attn = on",
        "fit = off",
        "warmup = false",
    ]


@pytest.mark.parametrize("name", HEADED)
def test_heading_says_for_what_where_and_how_good(name):
    """Workload, gain with interval, headroom, machine, build, date and check value are there."""
    text = write_preset(name, facts())

    for part in (
        "chat: context 8192, parallel 1",
        "25% faster than the baseline (interval 1.2 to 1.31 times its speed)",
        "CUDA0 900 MiB, host unknown",
        "AMD Ryzen 9 7950X",
        "NVIDIA GeForce RTX 3060",
        "11434 (abc123)",
        "2026-11-29",
        "autofit 0.1.0",
        facts().environment.check_value,
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tie": True, "gain": {"median": 1.01, "low": 0.98, "high": 1.04}}, "a tie"),
        ({"gain": None}, "gain: unknown: not measured"),
        ({"proven": False}, "NOT proven"),
        ({"free_mib": {}}, "headroom: unknown"),
    ],
)
def test_heading_does_not_claim_what_is_not_known(changes, words):
    """A tie is a tie, an unknown gain is unknown, and no proof is said to be none."""
    assert words in write_preset("ini", facts(**changes))


@pytest.mark.parametrize("name", HEADED)
@pytest.mark.parametrize("breaker", ["\n", "\r", "\x0b", "\u2028", "\x1b[31m"])
def test_foreign_text_cannot_leave_the_heading(name, breaker):
    """A name with line breaks or terminal codes stays within its comment."""
    text = write_preset(name, facts(model_name=f"a{breaker}rm -rf x"))

    assert "\x1b" not in text
    assert not [line for line in text.splitlines() if line.startswith("rm")]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("/models/a;b.gguf", "';'"),
        ("/models/a#b.gguf", "'#'"),
        ("/models/a.gguf ", "blanks"),
        ("", "empty"),
        ("/models/a\nb.gguf", "more than one line"),
        (os.fsdecode(b"/models/\xe9.gguf"), "valid Unicode"),
    ],
)
def test_value_that_ini_cannot_hold_is_refused(value, reason):
    """A value that the router would cut or misread is named with its key and a way out."""
    with pytest.raises(UsageError) as caught:
        write_preset("ini", facts(arguments=("--chat-template-kwargs", value)))

    assert "chat-template-kwargs" in caught.value.message
    assert reason in caught.value.message
    assert "shell" in caught.value.hint


def test_model_path_that_ini_cannot_hold_is_refused():
    """The model's own path is checked like any value."""
    with pytest.raises(UsageError, match="value of model"):
        write_preset("ini", facts(model_path="/models/v#2.gguf"))


@pytest.mark.parametrize("name", ["ini", "env"])
def test_unlisted_flag_is_refused_where_it_would_break(name):
    """One unknown key would keep the router from starting at all."""
    with pytest.raises(UsageError, match="--prefetch"):
        write_preset(name, facts(arguments=("--prefetch", "3")))
    with pytest.raises(UsageError, match=r"not known"):
        write_preset(name, facts(help=None))


def test_settings_outside_the_arguments_are_pointed_out():
    """Variables and a wrapper stand in every format, in ini as the way to start the router."""
    special = facts(env={"GGML_X": "a b"}, wrapper=("numactl", "--membind=0"))

    for name in FORMATS:
        text = write_preset(name, special)

        assert "numactl" in text
        assert "GGML_X" in text
    assert "env 'GGML_X=a b' numactl --membind=0 /opt/llama.cpp/llama-server" in write_preset(
        "ini", special
    )


def test_address_is_added_only_where_the_user_gave_none():
    """A preset listens where the user said, else on the local port."""
    own = facts(arguments=("--port", "9000", "--host", "0.0.0.0"))  # noqa: S104 - only text

    assert facts().argv[-4:] == ADDRESS
    assert own.argv == ("/opt/llama.cpp/llama-server", "--port", "9000", "--host", "0.0.0.0")  # noqa: S104


def test_env_names_what_has_no_variable():
    """A flag without a variable is not dropped silently."""
    text = write_preset("env", facts(arguments=("--no-warmup", "-nkvo", "-c", "4096")))

    assert "# NOTE: these have no variable, give them as arguments: --no-warmup" in text
    assert "LLAMA_ARG_KV_OFFLOAD=false\nLLAMA_ARG_CTX_SIZE=4096\n" in text


def test_json_carries_what_programs_need():
    """Params, argv, variables, estimates and machine come back from the JSON format."""
    document = json.loads(write_preset("json", facts(env={"A": "1"})))

    assert document["argv"] == ["/opt/llama.cpp/llama-server", *ARGUMENTS, *ADDRESS]
    assert document["params"] == {"n_gpu_layers": 49, "n_cpu_moe": 20}
    assert document["env"] == {"A": "1"}
    assert document["estimates"]["tg_per_s"]["n"] == 5
    assert document["machine"]["cpu"] == "AMD Ryzen 9 7950X"
    assert document["free_mib"] == {"CUDA0": 900.0, "host": None}
    assert document["taken_mib"] == {"CUDA0": 9100.0, "host": 4000.0}
    assert document["check"] == facts().environment.check_value


awkward = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12
).map("x".__add__)


@given(st.lists(awkward, max_size=4), awkward)
def test_args_reads_back_word_for_word(words, value):
    """Whatever the words, splitting the line as a shell does gives them back."""
    special = facts(arguments=tuple(words), address=(), env={"A": value}, help=None)

    read = shlex.split(write_preset("args", special))

    assert read == ["env", f"A={value}", "/opt/llama.cpp/llama-server", *words]


@pytest.mark.parametrize("name", ["args", "shell", "env"])
def test_a_real_shell_reads_the_same_words(tmp_path, name):
    """/bin/sh starts the program with the words and variables that were meant."""
    words = ["--lora", '/it\'s "$HOME" `x` \\ *;#&.gguf', "--threads", "é\n-1"]
    special = facts(
        command=(sys.executable, "-c", "import sys, os; print(sys.argv[1:], os.environ['A'])"),
        arguments=tuple(words),
        address=(),
        env={"A": "a'b $x"},
        help=facts().help if name == "env" else None,
    )
    script = tmp_path / "preset"
    script.write_text(write_preset(name, special))
    if name == "env":
        program = "import os; print([os.environ['LLAMA_ARG_THREADS']], os.environ['A'])"
        command = f"set -a; . {script}; exec {shlex.join([sys.executable, '-c', program])}"
        expected = f"{[words[3]]} a'b $x\n"
    else:
        command = f". {script}"
        expected = f"{words} a'b $x\n"

    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=20, check=True
    )

    assert done.stdout == expected


def test_unknown_and_unfit_formats_are_named():
    """A wrong format name lists the known ones, one the runtime cannot use those it can."""
    with pytest.raises(UsageError) as caught:
        write_preset("toml", facts())
    assert "ini, llama-swap, shell" in caught.value.hint

    with pytest.raises(UsageError) as caught:
        write_preset("ini", facts(formats=("shell", "args")))
    assert "shell, args" in caught.value.hint


@given(st.text(max_size=20))
def test_section_name_cannot_break_the_file(name):
    """Whatever the model is called, its section is one plain, non-empty name."""
    section = section_name(name)

    assert section == section.strip()
    assert section
    assert not set("[]:\n\r") & set(section)


def test_study_without_a_winner_has_no_preset():
    """Where nothing was proven there is nothing to write."""
    with pytest.raises(UsageError, match="no winner"):
        winner_facts(
            None, {"winner": None}, runtime=None, folder=facts().folder, made_on=facts().made_on
        )
