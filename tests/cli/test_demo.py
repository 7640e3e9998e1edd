"""`autofit demo`: the whole job on a small model, on any machine."""

from __future__ import annotations

from importlib.util import find_spec

import jsonschema
import pytest
from autofit_program import AutofitProgram
from cli.tune_document import RESULT

from autofit.cli.demo import demo_model
from autofit.model.gguf import read_header
from autofit.results.study import Study


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A user's cache, still empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "autofit"


def test_the_model_is_written_once(cache):
    """The first demo writes it into the user's cache, the next finds it there."""
    path = demo_model()
    before = path.stat()

    assert path.parent == cache
    assert demo_model() == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    header = read_header(path)
    assert header.metadata["general.architecture"] == "qwen3moe"
    assert 5e6 < before.st_size < 50e6


def test_a_model_that_was_cut_off_is_written_again(cache):
    """A demo that was killed while writing leaves nothing that the next one stumbles over."""
    path = demo_model()
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:5000])

    assert demo_model().stat().st_size == size
    assert [found.name for found in cache.glob("*.gguf")] == [path.name]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not find_spec("xllamacpp"), reason="the extra `embedded` is not installed")
def test_the_demo_comes_to_its_end(tmp_path):
    """A table with gain or tie, a preset, a report and a study, then what else the tool is for."""
    program = AutofitProgram(tmp_path)
    done = program.run("demo", "--json", "--study", tmp_path / "study", timeout_s=380)

    assert done.code == 0, done.err
    jsonschema.validate(done.json, RESULT)
    assert done.json["winner"]["proven"] is True
    assert done.json["gain"] is not None
    study = Study.open(tmp_path / "study")
    assert (study.path / "report.md").stat().st_size > 500
    assert list((study.path / "presets").iterdir())
    assert {trial.phase for trial in study.trials()} >= {"baseline", "search", "prove"}
    assert "random weights" in done.err
    assert "RECORDED, not measured here" in done.err
    assert "PLANNED, nothing launched" in done.err
