"""Models by name on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autofit.model.synth.random_model import SynthSpec, write_model


@pytest.fixture
def cached(tmp_path, monkeypatch) -> Path:
    """A model in a cache that has the name `me/Tiny-GGUF:Q8_0`."""
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "models"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    commit = "0123456789abcdef0123456789abcdef01234567"
    path = tmp_path / "models" / "models--me--Tiny-GGUF" / "snapshots" / commit / "Tiny-Q8_0.gguf"
    path.parent.mkdir(parents=True)
    write_model(
        SynthSpec(layers=2, experts=4, used=2, embd=64, ff=32, vocab=512, type="f16"), path
    )
    return path


def test_models_lists_name_size_and_file(cli, cached):
    """One line each, or one JSON document."""
    listed, as_json = cli("models"), cli("models", "--json")

    assert listed.code == as_json.code == 0
    assert listed.out.split("  ")[0] == "me/Tiny-GGUF:Q8_0"
    assert str(cached) in listed.out
    (row,) = json.loads(as_json.out)["models"]
    assert (row["name"], row["file"], row["complete"]) == ("me/Tiny-GGUF:Q8_0", str(cached), True)


@pytest.mark.parametrize(
    "words",
    [
        ("me/Tiny-GGUF",),
        ("-hf", "me/Tiny-GGUF:Q8_0"),
        ("--hf-repo=me/tiny-gguf",),
        ("-hf", "me/Tiny-GGUF", "--", "--metrics"),
    ],
)
def test_a_model_can_be_given_by_name(cli, cached, words):
    """MODEL takes a name, and -hf is spelled as for llama-server."""
    done = cli("plan", "--json", "--dialect", "llama_server", "--device", "CUDA0=1GiB", *words)

    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert str(cached) in document["launch"]["argv"]
    assert ("--metrics" in document["launch"]["argv"]) == ("--metrics" in words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "MODEL is missing"),
        (("--", "--metrics"), "MODEL is missing"),
        (("model.gguf", "-hf", "me/Tiny-GGUF"), "both"),
        (("-hf", "you/Other"), "no cached model"),
        (("you/Other",), "no cached model"),
        (("-hf", "model.gguf"), "not the name"),
    ],
)
@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("command", ["tune", "plan", "probe"])
def test_a_model_that_is_not_one_is_refused(cli, command, words, message):
    """No model, two models and unknown names end with a usage error."""
    done = cli(command, *words)

    assert done.code == 2
    assert message in done.err


@pytest.mark.usefixtures("cached")
def test_other_commands_that_take_a_model_take_a_name(cli):
    """`compare --model` and `replay --model` find it, and refuse an unknown name."""
    assert "no cached model" in cli("compare", "a.ini", "b.ini", "--model", "you/Other").err
    assert "no cached model" in cli("replay", "table", "--model", "you/Other").err
    assert "a.ini" in cli("compare", "a.ini", "b.ini", "--model", "me/Tiny-GGUF").err


@pytest.mark.parametrize(
    ("words", "is_found"),
    [
        ("-hf me/Tiny-GGUF:Q8_0", True),
        ("--hf-repo me/Tiny-GGUF", True),
        ("-hf you/Other", False),
        ("-hf me/Tiny-GGUF -hff Tiny-F16.gguf", False),
        ("-m x.gguf -hf me/Tiny-GGUF", False),
    ],
)
def test_a_command_that_names_a_cached_model_has_its_file(cli, cached, words, is_found):
    """`import` reads -hf of a user's own command, unless it also names a file."""
    done = cli("import", f"llama-server {words} -c 4096", "--json")

    assert done.code == 0, done.err
    assert (json.loads(done.out)["model_path"] == str(cached)) == is_found
