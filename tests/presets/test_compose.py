"""Compose files by the specification's schema and rules."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import RULES, VARIETY, make_preset
from ruamel.yaml import YAML

from autofit.errors import UsageError
from autofit.presets.formats.registry import write_preset
from autofit.presets.read_preset import read_preset
from autofit.runtime.dialect.dialect import PresetRules

awkward = st.text(
    st.characters(exclude_characters="\0\n", exclude_categories=("Cs",)), max_size=12
)


def _load(text: str) -> dict:
    return YAML(typ="safe", pure=True).load(text)


def _compose_schema() -> dict:
    place = files("check_jsonschema") / "builtin_schemas/vendor/compose-spec.json"
    return json.loads(place.read_text(encoding="utf-8"))


@pytest.mark.parametrize("changes", VARIETY)
def test_a_file_has_the_form_of_the_schema(changes):
    """Every kind of preset, and two in one file, are valid."""
    one, other = make_preset(**changes), make_preset(model_name="other")

    jsonschema.validate(_load(write_preset("compose", one)), _compose_schema())
    jsonschema.validate(_load(write_preset("compose", one, other)), _compose_schema())


@given(
    st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))), awkward
)
def test_compose_runs_the_same_command(arguments, value):
    """With `$$` read as `$`, command and variables are the same."""
    special = make_preset(arguments=tuple(arguments), address=(), env={"A": value}, help=None)

    service = _load(write_preset("compose", special))["services"]["tiny"]

    assert [word.replace("$$", "$") for word in service["command"]] == arguments
    assert service["environment"] == {"A": value.replace("$", "$$")}
    assert not any("$" in word.replace("$$", "") for word in service["command"])


def test_the_container_has_files_devices_and_port():
    """Shards and named files keep their path, and the port is published on loopback only."""
    here = Path(__file__)
    special = make_preset(
        model_path=Path("/m/a-00001-of-00002.gguf"),
        arguments=("--lora", str(here)),
        wrapper=("numactl", "--membind=0"),
        params={"load_mode": "mlock"},
    )
    service = _load(write_preset("compose", special))["services"]["tiny"]

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


def test_an_image_for_the_devices_is_needed():
    """A runtime without a published image is refused."""
    without = make_preset(rules=PresetRules(formats=RULES.formats))
    with pytest.raises(UsageError, match="no container image"):
        write_preset("compose", without)

    assert 'image: "example.org/llama:cuda"' in write_preset("compose", make_preset())


COMPOSE = """\
services:
  a:
    image: llama.cpp:server
    env_file: [one.env, {path: gone.env, required: false}]
    environment:
      - A=service
      - FILLED
      - EMPTY
"""


def test_variables_come_from_every_file(tmp_path):
    """`.env` fills names without a value; an env_file is read; missing values get notices."""
    (tmp_path / ".env").write_text("FILLED=1\nUNUSED=2\n")
    (tmp_path / "one.env").write_text("A=file\nB=file\n")
    (tmp_path / "compose.yaml").write_text(COMPOSE)

    server = read_preset(str(tmp_path / "compose.yaml")).server

    assert server.env == {"A": "service", "B": "file", "FILLED": "1"}
    assert sum("gone.env" in notice for notice in server.notices) == 1
    assert sum(notice.startswith("EMPTY ") for notice in server.notices) == 1


def test_a_file_with_models_and_services_is_a_compose_file(tmp_path):
    """Compose has a top-level `models` of its own, which llama-swap does not read."""
    path = tmp_path / "compose.yaml"
    path.write_text("models: {m: {model: ai/x}}\nservices: {a: {image: llama, command: -c 1}}\n")

    found = read_preset(str(path))

    assert (found.kind, found.server.argv) == ("compose", ("llama-server", "-c", "1"))
