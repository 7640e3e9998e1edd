"""llama-swap's configuration, written and read by its rules."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import VARIETY, make_preset
from ruamel.yaml import YAML

from autofit.errors import UsageError
from autofit.presets.formats.llama_swap import command_words
from autofit.presets.formats.preset_format import PresetFile
from autofit.presets.formats.registry import FORMATS, write_preset
from autofit.presets.formats.variable_expansion import unknown_reasons

LOCAL = ["--host", "127.0.0.1", "--port"]


awkward = st.text(
    st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), max_size=12
)


# The published config-schema.json of llama-swap, for the keys that autofit writes.
LLAMA_SWAP = {
    "type": "object",
    "required": ["models"],
    "additionalProperties": False,
    "properties": {
        "healthCheckTimeout": {"type": "integer", "minimum": 15},
        "models": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "required": ["cmd"],
                "additionalProperties": False,
                "properties": {
                    "cmd": {"type": "string", "minLength": 1},
                    "env": {
                        "type": "array",
                        "items": {"type": "string", "pattern": "^[A-Z_][A-Z0-9_]*=.*$"},
                    },
                    "proxy": {"type": "string", "format": "uri"},
                },
            },
        },
    },
}


def _load(text: str) -> dict:
    return YAML(typ="safe", pure=True).load(text)


@pytest.mark.parametrize("changes", VARIETY)
def test_a_configuration_has_the_form_of_the_schema(changes):
    """Every kind of preset, and two in one file, are valid."""
    one, other = make_preset(**changes), make_preset(model_name="other")

    jsonschema.validate(_load(write_preset("llama-swap", one)), LLAMA_SWAP)
    jsonschema.validate(_load(write_preset("llama-swap", one, other)), LLAMA_SWAP)


@given(st.lists(awkward, max_size=4), awkward.map(lambda text: text.replace("$", "")))
def test_llama_swap_reads_the_same_command(arguments, value):
    """Split as llama-swap does it, after its port is set, the command is the same."""
    special = make_preset(
        arguments=tuple(arguments), env={"A": value.replace("\r", "")}, help=None
    )

    model = _load(write_preset("llama-swap", special))["models"]["tiny"]

    filled = model["cmd"].replace("${PORT}", "5801")
    assert "${" not in filled
    own = [word for word in arguments if word not in LOCAL]
    assert command_words(filled) == ["/opt/llama.cpp/llama-server", *own, *LOCAL, "5801"]
    assert model["env"] == [f"A={special.env['A']}"]


def test_text_like_a_macro_stays_text():
    """`${PORT}` is a macro in the address only, and not in an argument."""
    template = '{"a": "${PORT} ${env.HOME}"}'
    special = make_preset(arguments=("--chat-template-kwargs", template))
    command = _load(write_preset("llama-swap", special))["models"]["tiny"]["cmd"]

    assert command.count("${") == 1
    assert template in command_words(command)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"arguments": ("--lora", "a\nb")}, "more than one line"),
        ({"env": {"lower": "1"}}, "capitals"),
        ({"env": {"A": "${x}"}}, "macro"),
        ({"arguments": ("--lora", "\udce9")}, "valid Unicode"),
    ],
)
def test_a_value_that_llama_swap_cannot_hold_is_refused(changes, fault):
    """The error names the reason and other formats."""
    with pytest.raises(UsageError, match=fault) as caught:
        write_preset("llama-swap", make_preset(**changes))

    assert "`args` or `shell`" in caught.value.hint


def _server(cmd: str, **extra):
    text = json.dumps({"models": {"qwen": {"cmd": cmd}}, **extra})
    (server,) = FORMATS["llama-swap"].read(PresetFile(Path("x.json"), text))
    return server


@pytest.mark.parametrize("word", ["$HOME", "$$", "a$b", "100%"])
def test_a_dollar_without_braces_is_a_dollar(word):
    """llama-swap replaces `${NAME}` only, and does nothing else that a shell does."""
    found = _server(f"llama-server -m m.gguf --alias '{word}'")

    assert word in found.argv


def test_an_unknown_macro_is_a_fault():
    """The fault names it; known macros are replaced, also within each other."""
    found = _server("${server} --alias ${missing}", macros={"server": "${bin} -m ${file}",
                   "bin": "llama-server", "file": "m.gguf"})  # fmt: skip

    assert unknown_reasons(found.argv) == ("${missing} is not a macro of this file",)
    assert found.argv[:3] == ("llama-server", "-m", "m.gguf")
