"""Files of llama-swap and compose say what was meant, in the form they must have."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import ARGUMENTS, facts
from ruamel.yaml import YAML

from autofit.errors import UsageError
from autofit.presets.formats.llama_swap import command_words
from autofit.presets.formats.registry import write_preset

LOCAL = ["--host", "127.0.0.1", "--port"]
awkward = st.text(
    st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), max_size=12
)
# What the published config-schema.json of llama-swap asks of the keys that are written here.
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


def _read(text: str) -> dict:
    return YAML(typ="safe", pure=True).load(text)


def _compose_schema() -> dict:
    place = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return json.loads(place.read_text(encoding="utf-8"))


VARIETY = [
    {},
    {"env": {"GGML_X": "3"}, "wrapper": ("numactl", "--membind=0")},
    {"params": {"load_mode": "mlock"}},
    {"arguments": ("--rpc", "10.0.0.2:50052", *ARGUMENTS)},
    {"model_path": Path("/models/a-00001-of-00003.gguf"), "model_name": "3"},
    {"arguments": ("--port", "9000", "--host", "0.0.0.0")},  # noqa: S104 - only text
    {"image": "mine:1", "model_name": "Größe: 1 # x"},
]


@pytest.mark.parametrize("changes", VARIETY)
def test_files_have_the_form_of_their_schemas(changes):
    """Every kind of preset, and two in one file, are valid by what is published."""
    for presets in ([facts(**changes)], [facts(**changes), facts(model_name="other")]):
        jsonschema.validate(_read(write_preset("llama-swap", *presets)), LLAMA_SWAP)
        jsonschema.validate(_read(write_preset("compose", *presets)), _compose_schema())


@given(st.lists(awkward, max_size=4), awkward.map(lambda text: text.replace("$", "")))
def test_llama_swap_reads_the_same_words(words, value):
    """Split as llama-swap does, with the port filled in first, the command is as meant."""
    special = facts(arguments=tuple(words), env={"A": value.replace("\r", "")}, help=None)

    model = _read(write_preset("llama-swap", special))["models"]["tiny"]

    filled = model["cmd"].replace("${PORT}", "5801")
    assert "${" not in filled
    own = [word for word in words if word not in LOCAL]
    assert command_words(filled) == ["/opt/llama.cpp/llama-server", *own, *LOCAL, "5801"]
    assert model["env"] == [f"A={special.env['A']}"]


def test_llama_swap_macros_in_a_value_stay_text():
    """`${PORT}` in an argument is no macro, as the same in the address is."""
    template = '{"a": "${PORT} ${env.HOME}"}'
    special = facts(arguments=("--chat-template-kwargs", template))
    command = _read(write_preset("llama-swap", special))["models"]["tiny"]["cmd"]

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
def test_what_llama_swap_cannot_hold_is_refused(changes, fault):
    """A value that would be misread is refused with a way out."""
    with pytest.raises(UsageError, match=fault) as caught:
        write_preset("llama-swap", facts(**changes))

    assert "`args` or `shell`" in caught.value.hint


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))), awkward
)
def test_compose_runs_the_same_words(words, value):
    """With `$$` taken for `$`, as compose does, command and variables are as meant."""
    special = facts(arguments=tuple(words), address=(), env={"A": value}, help=None)

    service = _read(write_preset("compose", special))["services"]["tiny"]

    assert [word.replace("$$", "$") for word in service["command"]] == words
    assert service["environment"] == {"A": value.replace("$", "$$")}
    assert not any("$" in word.replace("$$", "") for word in service["command"])


def test_compose_container_sees_files_devices_and_the_port():
    """All shards and named files are mounted where they lie, the port is for this machine."""
    here = Path(__file__)
    special = facts(
        model_path=Path("/m/a-00001-of-00002.gguf"),
        arguments=("--lora", str(here)),
        wrapper=("numactl", "--membind=0"),
        params={"load_mode": "mlock"},
    )
    service = _read(write_preset("compose", special))["services"]["tiny"]

    assert [mount["target"] for mount in service["volumes"]] == [
        *("/m/a-00001-of-00002.gguf", "/m/a-00002-of-00002.gguf", str(here)),
    ]
    assert all(mount["read_only"] for mount in service["volumes"])
    assert service["entrypoint"] == ["numactl", "--membind=0", "/app/llama-server"]
    assert service["command"][-4:] == ["--host", "0.0.0.0", "--port", "8080"]  # noqa: S104
    assert service["ports"] == ["127.0.0.1:8080:8080"]
    gpus = service["deploy"]["resources"]["reservations"]["devices"]
    assert gpus == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert service["ulimits"] == {"memlock": -1}
    assert service["cap_add"] == ["SYS_NICE"]


def test_compose_needs_an_image_for_the_devices():
    """Where no image is published for the runtime, one must be named."""
    without = facts(container=facts().container.__class__())
    with pytest.raises(UsageError, match="no container image"):
        write_preset("compose", without)

    assert 'image: "example.org/llama:cuda"' in write_preset("compose", facts())


def test_several_models_share_what_is_common_in_ini():
    """What all sections say alike stands once under [*], but never the model."""
    text = write_preset("ini", facts(), facts(model_name="other", arguments=("-c", "8192")))
    lines = [line for line in text.splitlines() if not line.startswith(";")]

    assert lines == [
        *("version = 1", "", "[*]", "ctx-size = 8192", "", "[tiny]", "model = /models/tiny.gguf"),
        *("n-gpu-layers = 49", "n-cpu-moe = 20", "parallel = 1", "flash-attn = on", "fit = off"),
        *("", "[other]", "model = /models/tiny.gguf"),
    ]


def test_ini_says_that_one_router_has_one_environment():
    """Models that need different variables cannot all have theirs from one router."""
    text = write_preset("ini", facts(env={"GGML_X": "1"}), facts(model_name="other"))

    assert "one router gives all the same" in text.splitlines()[0]
    with pytest.raises(UsageError, match="holds one model"):
        write_preset("shell", facts(), facts())
