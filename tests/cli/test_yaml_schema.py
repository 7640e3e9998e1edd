"""JSON Schemas of the YAML files that people write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from autofit.cli.commands.check import command
from autofit.cli.yaml_check import SCHEMA_PATHS

ROOT = Path(__file__).parents[2]
SHIPPED = [(kind, path) for kind, place in SCHEMA_PATHS.items()
           for path in sorted((ROOT / place.parent).glob("*.yaml"))]  # fmt: skip


def _printed(kind):
    done = CliRunner().invoke(command, ["--schema", kind])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def _valid(kind, data):
    return jsonschema.Draft202012Validator(_printed(kind)).is_valid(data)


@pytest.mark.parametrize("kind", SCHEMA_PATHS)
def test_a_shipped_schema_is_current(kind):
    """The schema in the folder of its files is what `check --schema` prints."""
    shipped = json.loads((ROOT / SCHEMA_PATHS[kind]).read_text(encoding="utf-8"))

    assert shipped == _printed(kind), f"autofit check --schema {kind} > {SCHEMA_PATHS[kind]}"
    jsonschema.Draft202012Validator.check_schema(shipped)


@pytest.mark.parametrize(
    ("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "name", value)
)
def test_a_shipped_file_matches_its_schema(kind, path):
    """Every shipped file names its schema in its first line and is valid against it."""
    text = path.read_text(encoding="utf-8")

    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_PATHS[kind].name}\n")
    assert (path.parent / SCHEMA_PATHS[kind].name).is_file()
    jsonschema.validate(YAML(typ="safe", pure=True).load(text), _printed(kind))


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("space", {"layout": ["balanced"]}),
        ("space", {"layouts": ["balance"]}),
        ("space", {"parameters": {"ubatch": {"values": []}}}),
        ("space", {"suits": "all"}),
        ("workload", {"context": 0, "requests": [{"prompt_tokens": 1, "predicted_tokens": 1}]}),
        ("workload", {"context": 512, "requests": [{"prompt_tokens": 1}]}),
        ("dialect", {"extend": "llama_server"}),
        ("dialect", {"parameters": {"ubatch": {"type": "whole"}}}),
        ("dialect", {"failures": [{"has": "x", "kind": "broken"}]}),
        ("suite", {"entries": []}),
        ("suite", {"entries": [{"name": "a", "modus": "tune"}]}),
        ("suite", {"entries": [{"name": "a", "mode": "retune"}]}),
        ("suite", {"entries": [{"name": "../a"}]}),
    ],
)
def test_a_schema_finds_a_fault(kind, data):
    """A schema rejects a misspelt key, an unknown word and a value out of range."""
    assert not _valid(kind, data)


def test_a_file_that_extends_another_may_remove_keys():
    """The schema of dialects accepts a file that extends another, with missing or null keys."""
    assert _valid("dialect", {"extends": "llama_server", "parameters": {"repack": None}})


@pytest.mark.parametrize(
    ("kind", "example"),
    [
        ("space", "moe.yaml"),
        ("workload", "chat.yaml"),
        ("dialect", "llama_server.yaml"),
        ("suite", "example.yaml"),
    ],
)
def test_every_key_is_shown_in_an_example(kind, example):
    """A shipped file shows or explains every key of its kind."""
    schema = _printed(kind)
    text = (ROOT / SCHEMA_PATHS[kind].parent / example).read_text(encoding="utf-8")
    keys = {*schema["properties"], *(key for part in schema["$defs"].values()
                                     for key in part.get("properties", ()))}  # fmt: skip

    missing = {key for key in keys if not re.search(rf"\b{key}\b", text)}

    assert not missing


def test_every_key_has_a_description():
    """The schema describes each key of a space, a workload and a suite, for editors."""
    for kind in ("space", "workload", "suite"):
        schema = _printed(kind)
        for properties in [
            schema["properties"],
            *(d["properties"] for d in schema["$defs"].values()),
        ]:
            assert all(part.get("description") for part in properties.values()), kind
