"""llama-server's router presets, written and read."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import ARGUMENTS, SMALL_HELP, make_preset, write_file

from autofit.errors import UsageError
from autofit.presets.command_options import parse_options
from autofit.presets.formats.ini import section_name
from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset


def test_a_section_has_keys_without_dashes():
    """The model comes first, and keys that the router sets itself are missing."""
    text = write_preset(
        "ini", make_preset(arguments=(*ARGUMENTS, "--no-warmup", "--port", "8080"))
    )
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
def test_a_value_that_ini_cannot_hold_is_refused(value, reason):
    """The error names the key, the reason and another format."""
    with pytest.raises(UsageError) as caught:
        write_preset("ini", make_preset(arguments=("--chat-template-kwargs", value)))

    assert "chat-template-kwargs" in caught.value.message
    assert reason in caught.value.message
    assert "shell" in caught.value.hint


def test_a_model_path_that_ini_cannot_hold_is_refused():
    """The model's own path is checked like any other value."""
    with pytest.raises(UsageError, match="value of model"):
        write_preset("ini", make_preset(model_path="/models/v#2.gguf"))


@given(st.text(max_size=20))
def test_section_name_cannot_break_the_file(name):
    """A model of any name has a section name without brackets, colons and line breaks."""
    section = section_name(make_preset(model_name=name))

    assert section == section.strip()
    assert section
    assert not set("[]:\n\r") & set(section)


def test_settings_of_all_models_are_written_once():
    """Settings that all sections share are in [*], except the model."""
    other = make_preset(model_name="other", arguments=("-c", "8192"))
    text = write_preset("ini", make_preset(), other)
    lines = [line for line in text.splitlines() if not line.startswith(";")]

    assert lines == [
        *("version = 1", "", "[*]", "ctx-size = 8192", "", "[tiny]", "model = /models/tiny.gguf"),
        *("n-gpu-layers = 49", "n-cpu-moe = 20", "parallel = 1", "flash-attn = on", "fit = off"),
        *("", "[other]", "model = /models/tiny.gguf"),
    ]


def test_models_with_other_variables_get_a_note():
    """A note says that one router gives all models the same variables."""
    text = write_preset("ini", make_preset(env={"GGML_X": "1"}), make_preset(model_name="other"))

    assert text.startswith("; NOTE: ")


def test_defaults_of_all_models_apply_to_each(tmp_path):
    """Section [*] applies to every model, whose own section may override it."""
    path = tmp_path / "models.ini"
    path.write_text("version = 1\n[*]\nc = 4096 ; all\nngl = 9\n[tiny]\nmodel = t.gguf\nngl = 1\n")

    argv = read_preset(str(path)).server.full_argv(SMALL_HELP, "srv")

    assert argv == ("srv", "-c", "4096", "--model", "t.gguf", "-ngl", "1")


def test_an_option_counts_once_in_the_order_of_the_router(tmp_path):
    """A section overrides [*] in any spelling, and overrides are sorted by their spelling."""
    path = tmp_path / "models.ini"
    path.write_text(
        "[*]\nLLAMA_ARG_N_CPU_MOE = 40\nLLAMA_ARG_OTHER = 1\nc = 1\n"
        "[tiny]\not = a=CPU\nncmoe = 20\nLLAMA_ARG_CTX_SIZE = 2\n"
    )

    server = read_preset(str(path)).server

    assert server.full_argv(SMALL_HELP, "srv") == (
        *("srv", "--ctx-size", "2", "-ncmoe", "20", "-ot", "a=CPU"),
    )
    assert server.full_env(SMALL_HELP) == {"LLAMA_ARG_OTHER": "1"}


def test_options_of_the_router_go_to_no_model(tmp_path):
    """A model does not get them, and a notice names each."""
    path = tmp_path / "models.ini"
    path.write_text("[*]\nmodels-max = 1\nLLAMA_ARG_MODELS_DIR = /m\n[tiny]\nc = 1\n")

    server = read_preset(str(path)).server

    assert server.options == (("c", "1"),)
    named = [notice.split()[0] for notice in server.notices]
    assert {"models-max", "LLAMA_ARG_MODELS_DIR"} <= set(named)


def test_a_written_section_is_read_back(tmp_path):
    """Keys become flags again, and switches that are off become negative flags."""
    arguments = (*ARGUMENTS, "--no-warmup", "--override-tensor", r"blk\.1\.ffn=CPU")

    found = read_preset(str(write_file("ini", tmp_path, make_preset(arguments=arguments)))).server
    program, *read = found.full_argv(SMALL_HELP, "llama-server")

    assert program == "llama-server"
    assert "--no-warmup" in read
    assert _options(read) == _options(arguments)


def _options(arguments) -> set:
    return {option.canonical for option in parse_options(arguments, SMALL_HELP)}
