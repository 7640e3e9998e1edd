"""`autofit probe` on simulated machines, in real processes."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest
from autofit_program import AutofitProgram
from fakes.machine import Device, Host, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

MODEL = build_model(ModelShape(layers=24, experts=64, used=4, embd=1024, ff=1024, vocab=512))
CARD = Device("CUDA0", total_mib=2400, context_mib=300, pool_mib=60, reserve_mib=0)
MACHINE = Machine("one", (CARD,), Host(ram_mib=24000, other_mib=1000)).without_noise()
KEYS = {
    "layout",
    "cache_type",
    "n_cpu_moe",
    "fits",
    "fails",
    "outcome",
    "proven",
    "source",
    "ubatch",
}


@pytest.fixture
def fake(tmp_path):
    """A machine with one card."""
    return FakeMachine(tmp_path, MACHINE)


@pytest.fixture
def words(fake):
    """The arguments of every command here."""
    model = fake.write_model(MODEL)
    return ["probe", model, "--runtime", fake.server, "--dialect", fake.dialect, "--yes"]


def test_probe_prints_the_boundary_as_json(cli, fake, words, tmp_path):
    """The document has the keys of a tune's boundary, and the study has every launch."""
    study = tmp_path / "study"

    ended = cli(*words, "--kv", "q8_0", "--ubatch", 1024, "--study", study, "--json")

    assert ended.code == 0
    result = json.loads(ended.out)
    (row,) = result["boundary"]
    assert row.keys() >= KEYS
    assert (row["layout"], row["cache_type"]) == ("single:CUDA0", "q8_0")
    assert row["n_cpu_moe"] == row["fits"] == row["fails"] + 1
    assert (row["outcome"], row["proven"], row["source"]) == ("out_of_memory", True, "launch")
    assert row["params"]["ubatch"] == row["ubatch"] == 1024
    assert row["params"]["n_cpu_moe"] == row["fits"]
    assert result["launches"] == fake.launches == len(list((study / "trials").glob("*.json")))
    assert json.loads((study / "study.json").read_text())["result"] == result
    assert fake.owners == []


def test_probe_shows_a_table(cli, words, tmp_path):
    """Without --json a table is printed; `show` repeats it from the study."""
    ended = cli(*words, "--kv", "f16", "--study", tmp_path / "study")
    shown = cli("show", tmp_path / "study")

    assert ended.code == 0
    assert "1 of 1 boundaries proven" in ended.out
    assert "single:CUDA0" in ended.out
    assert "1 of 1 boundaries proven" in shown.out


def test_expected_failures_have_no_advice(cli, words, tmp_path):
    """Neither `show` nor the report give advice; `explain` does, for a log."""
    study = tmp_path / "study"
    cli(*words, "--kv", "q8_0", "--study", study)
    failed = next(
        path for path in sorted(study.glob("trials/*.json"))
        if json.loads(path.read_text())["outcome"]["kind"] == "out_of_memory"
    )  # fmt: skip

    shown, reported = cli("show", study).out, cli("report", study).out
    explained = cli("explain", failed.with_suffix(".log")).out

    assert "out of memory" in shown
    assert "raise n_cpu_moe" not in shown + reported
    assert "raise n_cpu_moe" in explained


def test_nothing_fits(cli, tmp_path):
    """The exit code is 3, and the document is still printed."""
    fake = FakeMachine(tmp_path, replace(MACHINE, devices=(replace(CARD, total_mib=500),)))
    model = fake.write_model(MODEL)

    ended = cli("probe", model, "--runtime", fake.server, "--dialect", fake.dialect,
                "--study", tmp_path / "study", "--kv", "q8_0", "--yes", "--json")  # fmt: skip

    assert ended.code == 3
    assert json.loads(ended.out)["boundary"][0]["fits"] is None
    assert "nothing fits" in ended.err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--layout", "balanced"], "use one of: single:CUDA0"),
        (["--kv", "q3_K"], "--kv q3_K"),
        (["--set", "n_cpu_moe=3"], "no boundary to find"),
        (["--resume"], "--resume needs --study"),
        (["--budget", "soon"], "is not a duration"),
        (["--ubatch", "16384"], "ubatch <= batch"),
    ],
)
def test_faulty_options_are_refused_before_any_launch(cli, fake, words, more, text):
    """The error names the fault."""
    ended = cli(*words, *more)

    assert ended.code == 2
    assert text in ended.err
    assert fake.launches == 0


def test_a_used_up_budget_leaves_boundaries_open_until_a_resume(cli, fake, words, tmp_path):
    """No launch begins any more; open boundaries are named, and a larger budget proves them."""
    study = tmp_path / "study"
    words = [*words, "--kv", "q8_0,f16", "--study", study, "--json"]

    first = cli(*words, "--budget", "0.1s")
    result = json.loads(first.out)
    launches = fake.launches

    assert (launches, result["ended_by"]) == (1, "budget")
    assert first.code == (0 if result["outcomes"].get("completed") else 3)
    assert not any(row["proven"] for row in result["boundary"])
    assert [row["source"] for row in result["boundary"]] == ["launch", "estimate"]
    notes = result["notes"]
    assert any("to prove both sides of 2 boundaries" in note for note in notes)
    assert f"--study {study} --resume" in notes[1]
    assert notes[2].startswith("single:CUDA0, q8_0: ")
    assert notes[3] == "single:CUDA0, f16: nothing was launched"
    assert "the budget is spent" in first.err

    same = json.loads(cli(*words, "--budget", "0.1s", "--resume").out)

    assert fake.launches == launches
    assert same["boundary"] == result["boundary"]

    done = cli(*words, "--resume")
    result = json.loads(done.out)

    assert (done.code, result["ended_by"]) == (0, "done")
    assert all(row["proven"] for row in result["boundary"])
    assert fake.launches == result["launches"] == len(list(study.glob("trials/*.json")))
    assert not any("budget" in note for note in result["notes"])


def test_interrupted_probe_is_resumed_without_repeating_a_launch(fake, words, tmp_path):
    """Ctrl-C ends it after the stage under way; a resume repeats no launch."""
    study = tmp_path / "study"
    program = AutofitProgram(tmp_path)
    words = [*words, "--kv", "q8_0", "--study", study, "--json"]

    with program.start(*words) as run:
        run.wait_for_text("#1 boundary")
        run.send(signal.SIGINT)
        stopped = run.finish()

    assert stopped.code == 130, stopped.err
    assert "--resume" in stopped.err
    assert stopped.json["error"]["kind"] == "interrupted"
    assert fake.owners == []

    done = program.run(*words, "--resume")

    assert done.code == 0, done.err
    assert all(row["proven"] for row in done.json["boundary"])
    # What was under way may have been cut off before the server counted itself.
    assert done.json["launches"] - fake.launches in (0, 1)
    candidates = [json.loads(p.read_text())["params"] for p in study.glob("trials/*.json")]
    assert all(candidates.count(params) == 1 for params in candidates)
