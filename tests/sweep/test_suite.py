"""Suites as files: defaults, combinations and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.sweep.suite import read_suite

SUITES = Path(__file__).parents[2] / "search_spaces" / "suites"


@pytest.fixture
def read(tmp_path):
    """Return a function that reads the text of a suite."""

    def suite(text: str):
        path = tmp_path / "night.yaml"
        path.write_text(text)
        return read_suite(yaml_files.read_yaml(path), path, checks_names=False)

    return suite


def test_shipped_example_is_read():
    """Its lists become entries, its times seconds and its paths absolute."""
    path = SUITES / "example.yaml"
    suite = read_suite(yaml_files.read_yaml(path), path, checks_names=False)

    names = ["big-on-one-card", "everyday+chat", "everyday+agent", "fork-against-stock"]
    assert [entry.name for entry in suite.entries] == names
    assert suite.budget_s == 6 * 3600
    assert suite.baseline == SUITES / "example.baseline.json"
    big = suite.entries[0]
    assert (big.budget_s, big.time_out_s, big.context) == (3600, 7200, 32768)
    assert (big.devices, big.pins) == ({"CUDA0": "11GiB"}, {"load_mode": "mmap"})
    assert Path(big.model).is_absolute()
    assert ".." not in big.model


def test_defaults_are_filled_in_and_groups_merged(read):
    """An entry's own key wins; in set, env and thresholds each key by itself."""
    suite = read(
        "defaults: {model: a.gguf, rounds: 3, set: {ubatch: 512, batch: 2048}, env: {A: true}}\n"
        "entries:\n  - {name: x}\n  - {name: y, rounds: 7, set: {ubatch: 256}, env: {B: 1}}\n"
    )
    x, y = suite.entries

    assert (x.rounds, y.rounds) == (3, 7)
    assert y.pins == {"ubatch": "256", "batch": "2048"}
    assert y.env == {"A": "true", "B": "1"}


def test_paths_are_relative_to_the_suite_and_names_stay_names(read, tmp_path, monkeypatch):
    """Variables are replaced; a launch command is no path."""
    monkeypatch.setenv("MODELS", "/data/models")
    suite = read(
        "entries:\n"
        "  - name: x\n    model: $MODELS/a.gguf\n    runtime: llama-server\n    workload: w.yaml\n"
        "    mode: compare\n    against: ./old/bin\n    preset: llama-server -m /x/y.gguf\n"
        "  - {name: y, model: b.gguf, runtime: ../bin, dialect: ./mine.yaml}\n"
    )
    x, y = suite.entries

    assert x.model == "/data/models/a.gguf"
    assert (x.runtime, x.against) == ("llama-server", str(tmp_path / "old" / "bin"))
    assert x.workload == str(tmp_path / "w.yaml")
    assert x.preset == "llama-server -m /x/y.gguf"
    assert y.model == str(tmp_path / "b.gguf")
    assert y.runtime == str(tmp_path.parent / "bin")
    assert y.dialect == str(tmp_path / "mine.yaml")


def test_fault_in_the_defaults_has_their_line(read):
    """A fault that an entry has from the defaults has the line of the defaults."""
    with pytest.raises(UsageError) as raised:
        read("defaults:\n  rounds: 2\n  runtime: $NO_SUCH_THING/bin\n  model: m.gguf\n"
             "entries:\n  - name: a\n")  # fmt: skip

    assert "night.yaml:3: entries.0: runtime: the variable $NO_SUCH_THING" in str(raised.value)


def test_shard_does_not_depend_on_the_order_in_the_file(read):
    """The names alone decide which shard has an entry."""
    text = "defaults: {model: m.gguf}\nentries: [{name: c}, {name: a}, {name: b}]\n"
    other = "defaults: {model: m.gguf}\nentries: [{name: a}, {name: b}, {name: c}]\n"

    parts = [[entry.name for entry in read(one).select((), (1, 2))] for one in (text, other)]
    assert sorted(parts[0]) == sorted(parts[1]) == ["a", "c"]
