"""Suites as files: defaults, combinations, paths, and shares of time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.sweep.suite import Entry, granted_s
from autofit.sweep.suite_file import suite_of

SUITES = Path(__file__).parents[2] / "search_spaces" / "suites"


@pytest.fixture
def read(tmp_path):
    """Reads the text of a suite."""

    def suite(text: str):
        path = tmp_path / "night.yaml"
        path.write_text(text)
        return suite_of(yaml_files.read_yaml(path), path)

    return suite


def test_the_shipped_example_is_read_whole():
    """Its lists become entries of their own, its times seconds, its paths absolute."""
    path = SUITES / "example.yaml"
    suite = suite_of(yaml_files.read_yaml(path), path)

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
    """An entry's own key wins; of set, env and thresholds each key by itself."""
    suite = read(
        "defaults: {model: a.gguf, rounds: 3, set: {ubatch: 512, batch: 2048}, env: {A: true}}\n"
        "entries:\n  - {name: x}\n  - {name: y, rounds: 7, set: {ubatch: 256}, env: {B: 1}}\n"
    )
    x, y = suite.entries

    assert (x.rounds, y.rounds) == (3, 7)
    assert y.pins == {"ubatch": "256", "batch": "2048"}
    assert y.env == {"A": "true", "B": "1"}


def test_paths_start_at_the_suite_and_names_stay_names(read, tmp_path, monkeypatch):
    """Variables and the home folder are put in; a launch command is no path."""
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


def test_a_key_of_the_defaults_is_named_where_it_stands(read):
    """A fault that an entry has from the defaults leads to their line."""
    with pytest.raises(UsageError) as raised:
        read("defaults:\n  rounds: 2\n  runtime: $NO_SUCH_THING/bin\n  model: m.gguf\n"
             "entries:\n  - name: a\n")  # fmt: skip

    assert "night.yaml:3: entries.0: runtime: the variable $NO_SUCH_THING" in str(raised.value)


def test_a_shard_does_not_depend_on_the_order_in_the_file(read):
    """Which runner has an entry follows from the names alone."""
    text = "defaults: {model: m.gguf}\nentries: [{name: c}, {name: a}, {name: b}]\n"
    other = "defaults: {model: m.gguf}\nentries: [{name: a}, {name: b}, {name: c}]\n"

    parts = [[entry.name for entry in read(one).chosen((), (1, 2))] for one in (text, other)]
    assert sorted(parts[0]) == sorted(parts[1]) == ["a", "c"]


@given(
    wanted=st.lists(st.floats(1, 10_000), min_size=1, max_size=6),
    total=st.floats(1, 20_000),
    used=st.lists(st.floats(0, 1), min_size=6, max_size=6),
)
def test_shares_of_time_never_exceed_what_there_is(wanted, total, used):
    """All entries together keep the budget, none gets more than it wants, and none is starved."""
    entries = [Entry(name=str(n), place=n, model="m", budget_s=s) for n, s in enumerate(wanted)]
    left, spent = total, 0.0
    for place, entry in enumerate(entries):
        share = granted_s(entry, entries[place + 1 :], left)
        assert 0 < share <= entry.wanted_s
        assert share >= min(entry.wanted_s, left / (len(entries) - place)) * (1 - 1e-9)
        took = share * used[place]
        left, spent = left - took, spent + took
    assert spent <= total * (1 + 1e-9)
    assert granted_s(entries[0], entries[1:], None) == entries[0].wanted_s


def test_an_entry_without_a_budget_does_not_take_that_of_the_others():
    """A tune that would go on for an hour leaves a short entry what that one wants."""
    tune = Entry(name="tune", place=0, model="m")
    again, other = (Entry(name=n, place=1, model="m", mode="remeasure") for n in ("b", "c"))
    short = replace(again, budget_s=40.0)

    assert granted_s(tune, [short], 240) == pytest.approx(200)
    assert granted_s(short, [], 40) == pytest.approx(40)
    assert granted_s(tune, [again, other], 600) == pytest.approx(200)
    assert granted_s(tune, [again, other], 1e6) == tune.wanted_s


def test_what_one_leaves_over_the_later_ones_have():
    """An entry that ends early makes room for the others."""
    first, second = (Entry(name=name, place=0, model="m", budget_s=600.0) for name in ("a", "b"))

    assert granted_s(first, [second], 600) == pytest.approx(300)
    assert granted_s(second, [], 600 - 10) == pytest.approx(590)
    assert replace(first, time_out_s=5.0).time_limit_s(300) == 5.0
