"""The small model of the demo, in the user's cache."""

from __future__ import annotations

import pytest

from autofit.model.gguf.header import read_header
from autofit.model.synth.demo_model import make_demo_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of a user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autofit"


def test_the_model_is_written_once(cache):
    """The first demo writes it into the user's cache, and the next one uses it."""
    path = make_demo_model()
    before = path.stat()

    assert path.parent == cache
    assert make_demo_model() == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    header = read_header(path)
    assert header.metadata["general.architecture"] == "qwen3moe"
    assert 5e6 < before.st_size < 50e6


def test_an_incomplete_model_is_written_again(cache):
    """A demo that was killed while writing does not disturb the next one."""
    path = make_demo_model()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:5000])

    assert make_demo_model().stat().st_size == size
    assert [found.name for found in cache.glob("*.gguf")] == [path.name]
