"""Presets as environment variables."""

from __future__ import annotations

from presets.preset_sample import SMALL_HELP, SPECIAL, make_preset, write_file

from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset


def test_a_flag_without_a_variable_is_named():
    """A comment names the flags that no variable can hold."""
    text = write_preset("env", make_preset(arguments=("--no-warmup", "-nkvo", "-c", "4096")))

    (note,) = [line for line in text.splitlines() if line.startswith("# NOTE: ")]
    assert note.endswith(": --no-warmup")
    assert "LLAMA_ARG_KV_OFFLOAD=false\nLLAMA_ARG_CTX_SIZE=4096\n" in text


def test_written_variables_are_read_back(tmp_path):
    """The server has the variables, and any program may be started with them."""
    found = read_preset(str(write_file("env", tmp_path, SPECIAL))).server

    assert found.env["LLAMA_ARG_CTX_SIZE"] == "8192"
    assert found.env["NOTE"] == "two words"
    assert found.full_argv(SMALL_HELP, "llama-server") == ("llama-server",)


def test_a_name_without_a_value_is_named(tmp_path):
    """A variable that only the caller's environment could fill gets a notice."""
    path = tmp_path / "server.env"
    path.write_text("A=1\nexport B\nC='x y'\nD\nnot a name\n")

    server = read_preset(str(path)).server

    assert server.env == {"A": "1", "C": "x y"}
    assert [notice.split()[0] for notice in server.notices] == ["B", "D"]
