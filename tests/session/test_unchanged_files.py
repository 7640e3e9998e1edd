"""A model or runtime that is replaced during a run is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tune_machine import TuneMachine

from autofit.errors import AutofitError
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.session.unchanged_files import UnchangedFiles


@pytest.fixture
def machine(tmp_path) -> TuneMachine:
    """A machine with a model and a runtime."""
    return TuneMachine(tmp_path, 2600.0)


@pytest.fixture
def model(tmp_path) -> Path:
    """A file in the place of a model."""
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF" * 1000)
    return path


@pytest.fixture
def files(machine, model) -> UnchangedFiles:
    """The model and the machine's runtime at the start of a run."""
    runtime = find_runtime(str(machine.server), "llama_server")
    return UnchangedFiles([model], runtime)


def test_a_model_with_the_same_contents_is_unchanged(model, files):
    """Another time or another copy is no other model."""
    files.check()
    os.utime(model, (1.0, 1.0))
    files.check()
    data = model.read_bytes()
    model.unlink()
    model.write_bytes(data)
    files.check()


@pytest.mark.parametrize("change", ["header", "end", "size", "removed"])
def test_another_model_ends_the_run(model, files, change):
    """Its header, its last bytes, its size or its absence show it."""
    data = bytearray(model.read_bytes())
    model.unlink()
    if change == "header":
        data[40] ^= 1
    elif change == "end":
        data[-1] ^= 1
    elif change == "size":
        data += b"\0"
    if change != "removed":
        model.write_bytes(data)

    with pytest.raises(AutofitError, match="the model") as caught:
        files.check()
    assert "resume" in caught.value.hint


@pytest.mark.parametrize("name", ["llama-server", "libggml-base.so", "libggml-new.so"])
def test_another_runtime_ends_the_run(machine, files, name):
    """A replaced program, and a replaced or new library near it, show it."""
    path = machine.bin / name
    path.write_bytes(b"" if not path.exists() else path.read_bytes() + b"\n")

    with pytest.raises(AutofitError, match="the runtime"):
        files.check()
