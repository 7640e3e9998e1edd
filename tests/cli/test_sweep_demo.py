"""The shipped suite of the demo's model, on the embedded runtime."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from autofit_program import AutofitProgram
from ruamel.yaml import YAML
from sweep_machine import found

SUITE = Path(__file__).parents[2] / "search_spaces" / "suites" / "demo.yaml"

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(not find_spec("xllamacpp"), reason="needs the extra `embedded`"),
]


def _shortened(folder: Path) -> Path:
    """The suite with settings that are given, not tuned, and one launch of them.

    A second thread would wait for a core on a machine that does something else, too.
    """
    yaml = YAML()
    data = yaml.load(SUITE)
    for entry in data["entries"]:
        entry.update(mode="remeasure", preset="llama-server -t 1 -c 2048 -np 1", rounds=1)
    path = folder / "short.yaml"
    yaml.dump(data, path)
    return path


@pytest.mark.timeout(240)
def test_a_short_form_runs(tmp_path):
    """The model is made, launched on the embedded runtime, and measured."""
    program = AutofitProgram(tmp_path)
    done = program.run("sweep", _shortened(tmp_path), "--only", "again", "--json", timeout_s=200)

    assert done.code == 0, done.err
    entry = found(done.json, "again")
    assert entry["verdict"] == "new"
    metrics = {one["metric"]: one for one in entry["metrics"]}
    assert metrics["outcome"]["verdict"] == "same"
    assert metrics["request_s"]["now"] > 0


@pytest.mark.slow
@pytest.mark.timeout(2500)
def test_the_whole_suite_runs(tmp_path):
    """The suite is found by name; its baseline is in the working directory."""
    program = AutofitProgram(tmp_path)
    first = program.run("sweep", "demo", "--update-baseline", "--json", timeout_s=1200)

    assert first.code == 0, first.err
    assert [entry["verdict"] for entry in first.json["entries"]] == ["new", "new"]
    assert (tmp_path / "demo.baseline.json").is_file()
    second = program.run("sweep", "demo", "--json", timeout_s=1200)
    # How fast a busy machine is tonight is no fault of the suite's.
    assert second.code in (0, 5), second.err
    for entry in second.json["entries"]:
        assert {"new_failure", "preset_rejected"}.isdisjoint(entry["kinds"])
        assert entry["metrics"][0]["verdict"] == "same"
