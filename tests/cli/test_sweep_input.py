"""`autofit sweep` without a launch: arguments, suites, shards, merges and folders."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from autofit import yaml_files
from autofit.machine.lock import machine_lock
from autofit.sweep.entry_record import EntryFailure, EntryRecord, LaunchValues
from autofit.sweep.night_folder import NightFolder, NightHead
from autofit.sweep.suite import read_suite

SUITE = """\
defaults: {model: m.gguf, runtime: ./bin, time_out: 5m, missing: skip}
budget: 30m
entries:
  - {name: one, budget: 20m}
  - {name: two, workload: [chat, batch], budget: 20m}
  - {name: three, mode: compare, against: ./old, budget: 20m, args: [--no-warmup]}
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A suite of four entries in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "night.yaml"
    path.write_text(SUITE)
    return path


def _record(name: str, **changed: object) -> EntryRecord:
    launches = tuple(LaunchValues(request_s=1.0 + n / 1000) for n in range(5))
    return replace(
        EntryRecord(name=name, mode="tune", date="2026-01-01T00:00:00+00:00",
                    autofit_version="1", launches=launches),
        **changed,
    )  # fmt: skip


def test_a_dry_run_shows_the_commands_and_leaves_nothing(cli, suite, tmp_path):
    """A dry run prints each entry with its budget and first command, and makes nothing."""
    ended = cli("sweep", suite, "--dry-run", "--json")

    assert ended.code == 0, ended.err
    lines = json.loads(ended.out)["commands"]
    assert [line["about"].partition(":")[0] for line in lines] == [
        "one", "two+chat", "two+batch", "three",
    ]  # fmt: skip
    # 30 minutes are shared by what wants 80.
    assert all(", 7 min 30 s, ended after 5 min 00 s" in line["about"] for line in lines)
    assert lines[0]["command"].startswith(f"autofit tune {tmp_path}/m.gguf --runtime")
    assert lines[3]["command"].endswith("-- --no-warmup")
    assert f"--against {tmp_path}/old" in lines[3]["command"]
    assert [path.name for path in tmp_path.iterdir()] == ["night.yaml"]


def test_shards_share_the_entries(cli, suite):
    """Every entry is in exactly one shard."""
    names = []
    for shard in ("1/3", "2/3", "3/3"):
        document = json.loads(cli("sweep", suite, "--shard", shard, "--dry-run", "--json").out)
        names += [line["about"].partition(":")[0] for line in document["commands"]]

    assert sorted(names) == sorted(["one", "two+chat", "two+batch", "three"])


def test_only_selects_all_combinations_of_an_entry(cli, suite):
    """The name in the file selects all entries that were made of it."""
    document = json.loads(cli("sweep", suite, "--only", "two", "--dry-run", "--json").out)

    assert [line["about"].partition(":")[0] for line in document["commands"]] == [
        "two+chat", "two+batch",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--only", "four"], "no entry 'four'"),
        (["--shard", "4/3"], "--shard '4/3' must have the form I/N"),
        (["--shard", "0/3"], "--shard '0/3' must have the form I/N"),
        (["--shard", "5/5"], "this shard has no entries"),
        (["--resume"], "no such sweep to resume"),
        (["--merge"], "--merge needs the folders"),
        (["nowhere"], "unexpected nowhere"),
        (["nowhere", "--merge"], "nowhere is not the folder of a sweep"),
        (["nowhere", "--merge", "--resume"], "--merge measures nothing"),
        (["--baseline", "none.json"], "the baseline none.json does not exist"),
        (["--summary", "-", "--json"], "only one report can go to stdout"),
        (["--junit", "no/where.xml"], "there is no folder no"),
        (["--summary", "."], ". is a folder"),
        (["--folder", "."], "already contains other files"),
        (["--folder", "night.yaml"], "night.yaml is a file, not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_refused_before_a_launch(cli, suite, words, text):
    """The error names the fault."""
    ended = cli("sweep", suite, *words)

    assert ended.code in (1, 2)
    assert text in ended.err


def test_a_faulty_suite_names_file_and_line(cli, suite):
    """A faulty suite is reported as by `autofit check`."""
    suite.write_text(SUITE.replace("mode: compare", "mode: compere"))
    ended = cli("sweep", suite)

    assert ended.code == 2
    assert f"autofit: {suite}:6: entries.2.mode: " in ended.err
    assert cli("sweep", "nowhere.yaml").code == 2


def test_a_faulty_name_is_described(cli, suite):
    """The error lists the allowed characters instead of a regular expression."""
    suite.write_text(SUITE.replace("name: one", "name: the one"))
    ended = cli("sweep", suite)

    assert ended.code == 2
    assert "'the one': a name may contain only letters, digits" in ended.err


def test_a_damaged_baseline_is_kept_until_it_is_moved(cli, suite, tmp_path):
    """A damaged baseline is never overwritten; once it is moved away, a new one is made."""
    damaged = tmp_path / "night.baseline.json"
    damaged.write_text('{"schema": 1, "entr')
    ended = cli("sweep", suite, "--update-baseline", "--dry-run")

    assert ended.code == 2
    assert "move it away" in ended.err
    damaged.rename(tmp_path / "damaged.json")
    ended = cli("sweep", suite, "--update-baseline", "--dry-run")
    assert ended.code == 0, ended.err


def test_an_unwritable_baseline_costs_no_night(cli, suite):
    """/proc/sys, where not even root can write, is refused before a launch."""
    ended = cli("sweep", suite, "--update-baseline", "--baseline", "/proc/sys/night.json")

    assert ended.code == 2
    assert "/proc/sys" in ended.err
    assert "--baseline FILE" in ended.err


def test_a_missing_preset_is_a_fault_of_the_suite(cli, suite):
    """A missing preset is refused before a launch, and is no regression of the build."""
    suite.write_text(SUITE.replace("against: ./old", "against: ./old, preset: ./none.json"))
    ended = cli("sweep", suite)

    assert ended.code == 2
    assert "three: there is no preset" in ended.err
    assert cli("sweep", suite, "--dry-run").code == 0


def test_a_model_is_refused_as_a_suite(cli, tmp_path):
    """A large file is refused before it is read as YAML."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    ended = cli("sweep", f"{tmp_path}/model.gguf")

    assert ended.code == 2
    assert "more than 1 MiB" in ended.err


def test_a_machine_in_use_ends_with_4(cli, suite, tmp_path):
    """The exit code is 4 while another autofit measures, and no folder is made."""
    with machine_lock("another", folder=tmp_path / "lock"):
        ended = cli("sweep", suite)

    assert ended.code == 4
    assert not (tmp_path / "results").exists()


def test_missing_hardware_is_skipped_or_fails(cli, suite):
    """A missing model is skipped; with `missing: fail` the sweep fails."""
    ended = cli("sweep", suite, "--only", "one", "--json")

    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["skipped"] == ["one"]
    suite.write_text(SUITE.replace("missing: skip", "missing: fail"))
    ended = cli("sweep", suite, "--only", "one", "--json")
    assert ended.code == 1
    assert json.loads(ended.out)["broken"] == ["one"]
    assert "not measured: one" in ended.err


def test_shards_are_merged_into_one_verdict(cli, suite, tmp_path):
    """The records of all folders are judged together; an entry without a record is a failure."""
    read = read_suite(yaml_files.read_yaml(suite), suite)
    for number, names in ((1, ["one", "two+batch"]), (2, ["two+chat"])):
        head = replace(NightHead.of(read, (), (number, 2)), names=tuple(names))
        night = NightFolder.create(tmp_path / f"shard-{number}", head, today=None)
        for name in names:
            night.write_record(_record(name))
    ended = cli("sweep", suite, "shard-1", "shard-2", "--merge", "--json", "--update-baseline")

    assert ended.code == 1, ended.err
    document = json.loads(ended.out)
    assert document["broken"] == ["three"]
    assert "in their shard, and merge again" in ended.err
    assert [entry["name"] for entry in document["entries"]] == [
        "one", "two+chat", "two+batch", "three",
    ]  # fmt: skip
    assert document["skipped"] == ["three"]
    lines = cli("sweep", suite, "shard-1", "shard-2", "--merge").out.splitlines()
    assert lines[1] == "sweep night: 3 same, 1 skipped"
    (skipped,) = (line for line in lines if line.startswith("three"))
    assert skipped.split()[1] == "skipped"
    assert "none of the folders contains this entry" in skipped
    kept = json.loads((tmp_path / "night.baseline.json").read_text())["entries"]
    assert sorted(kept) == ["one", "two+batch", "two+chat"]
    suite.write_text(SUITE + "# changed\n")
    assert "of another suite" in cli("sweep", suite, "shard-1", "--merge").err


def test_a_sweep_of_a_changed_suite_is_not_resumed(cli, suite, tmp_path):
    """A suite that has changed since would mix different entries."""
    head = NightHead.of(read_suite(yaml_files.read_yaml(suite), suite), (), None)
    NightFolder.create(tmp_path / "results/sweeps/night-1", head, today=None)
    suite.write_text(SUITE + "# changed\n")
    ended = cli("sweep", suite, "--resume")

    assert ended.code == 2
    assert "the suite has changed since" in ended.err


def test_a_part_of_a_suite_is_resumed_with_the_same_options(cli, suite, tmp_path):
    """A resume without the --only of the beginning is refused, with the entries."""
    head = NightHead.of(read_suite(yaml_files.read_yaml(suite), suite), ("one",), None)
    NightFolder.create(tmp_path / "part", head, today=None)
    ended = cli("sweep", suite, "--folder", "part", "--resume")

    assert ended.code == 2
    assert "began with other entries: one" in ended.err
    assert "--only or --shard" in ended.err


def test_a_damaged_record_is_named(cli, suite, tmp_path):
    """The error names the damaged file, with a hint."""
    head = NightHead.of(read_suite(yaml_files.read_yaml(suite), suite), ("one",), None)
    night = NightFolder.create(tmp_path / "night", head, today=None)
    night.write_record(_record("one", status="failed", failure=EntryFailure("crashed", "it died")))
    path = night.entry("one") / "record.json"
    path.write_text(path.read_text()[:100])
    ended = cli("sweep", suite, "--only", "one", "--folder", "night", "--resume")

    assert ended.code == 1
    assert f"{path} is damaged" in ended.err
