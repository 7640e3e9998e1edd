"""Values that a format might not hold: each is read back as it was, or refused by name."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from presets.preset_sample import RULES, SMALL_HELP, make_preset

from autofit.errors import UsageError
from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.read_preset import read_preset

PARTS = [
    *";#'\"\\$%{}[](),=-:&|<>*?!~` \t\n\r\x0b\x0c\x1b\x7f\x85\xa0é中😀\u2028\u2029\ufeff\udcff",
    *("a", "0", "--", "-x", " #", " ;", "${A}", "$A", "$$", "%h", "%%", "\\\n", "\\n", "\\"),
    *("#!", "null", "true", "1e3", "[x]", "{{", "@file", "/a/b", "''", "&&", "<<EOF", "$(x)"),
]
VALUES = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


def written(format_name: str, folder: Path, preset) -> Path | UsageError:
    """Return the file of a preset, or the error if the format refuses it."""
    try:
        text = write_preset(format_name, preset)
    except UsageError as error:
        return error
    path = folder / f"preset{FORMATS[format_name].suffix}"
    path.write_bytes(os.fsencode(text))
    return path


def values_of(argv, flag: str) -> list[str]:
    """Return the values of a flag in a command."""
    return [value for given, value in pairwise(argv) if given == flag]


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=60)
@given(value=VALUES, path=VALUES, variable=VALUES)
def test_a_value_is_read_back_or_refused(format_name, value, path, variable, tmp_path_factory):
    """Model path, an argument and a variable are the same again, in every format."""
    model = "/models/" + path.replace("/", "") + ".gguf"
    preset = make_preset(
        model_path=Path(model),
        arguments=("--model", model, "--chat-template-kwargs", value),
        env={} if format_name == "ini" else {"NOTE": variable},
        help=SMALL_HELP,
        rules=RULES,
    )
    file = written(format_name, tmp_path_factory.getbasetemp(), preset)
    if isinstance(file, UsageError):
        assert "cannot" in file.message
        assert file.hint
        return
    server = read_preset(str(file)).server
    argv, env = server.full_argv(SMALL_HELP, "llama-server"), server.full_env(SMALL_HELP)
    if format_name == "env":
        assert env["LLAMA_ARG_MODEL"] == model
    else:
        assert values_of(argv, "--model") == [model]
        assert values_of(argv, "--chat-template-kwargs") == [value]
    if format_name != "ini":
        assert env["NOTE"] == variable
