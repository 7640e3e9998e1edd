"""A whole tune as a program, on a simulated card that the model does not fit."""

from __future__ import annotations

import configparser
import json
import shlex
import subprocess
from pathlib import Path

import jsonschema
import pytest
from autofit_program import AutofitProgram, Done
from cli.tune_document import RESULT
from fakes.running import RunningServer
from tune_machine import MODEL, TuneMachine

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)

CARD_MIB = 2600.0


class Tuned:
    """A finished tune, its machine and its study."""

    def __init__(self, folder: Path) -> None:
        self.program = AutofitProgram(folder)
        self.machine = TuneMachine(folder, CARD_MIB)
        # A prompt that fills the context wants more than the workload's.
        self.machine.fail("oom-prompt", when={"n_cpu_moe": ["<", 4]})
        self.done: Done = self.program.run(
            *self.machine.words("study", max_launches=4, dialect=self.machine.dialect), "--json"
        )
        self.study = folder / "study"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Tuned:
    """One tune for all tests of this module."""
    return Tuned(tmp_path_factory.mktemp("tune"))


def test_the_result_has_every_documented_key(tuned):
    """With --json, stdout is one document with the documented keys and types."""
    assert tuned.done.code == 0, tuned.done.err
    jsonschema.validate(tuned.done.json, RESULT)


def test_the_study_keeps_the_path_of_a_users_dialect(tuned):
    """The study keeps the path of --dialect FILE, for later commands."""
    assert Path(Study.open(tuned.study).header.dialect_source).samefile(tuned.machine.dialect)


def test_the_winner_was_proven_at_full_context(tuned):
    """The winner ran twice with a prompt that leaves room only for the longest generation."""
    winner = tuned.done.json["winner"]

    proof = next(t for t in Study.open(tuned.study).trials() if t.number == winner["trial"])
    assert (proof.phase, proof.outcome.kind) == ("prove", "completed")
    assert dict(proof.candidate.params) == winner["params"]
    assert [(s.prompt_tokens, s.predicted_tokens) for s in proof.measurement.samples] == [
        (2048 - 33 - 64, 33)
    ] * 2
    assert proof.measurement.free_mib == winner["free_mib"]
    assert 0 < winner["free_mib"]["CUDA0"] < CARD_MIB - 1000
    assert winner["peak_mib"]["CUDA0"] + winner["free_mib"]["CUDA0"] == pytest.approx(CARD_MIB)


def test_the_winner_is_faster_than_the_runtimes_own_settings(tuned):
    """The gain is the baseline's time divided by the winner's, from interleaved launches."""
    result = tuned.done.json

    ratio = (
        result["baseline"]["estimates"]["request_s"]["median"]
        / result["winner"]["estimates"]["request_s"]["median"]
    )
    assert result["gain"]["median"] == pytest.approx(ratio, rel=0.02)
    assert result["gain"]["median"] > 1.1
    assert result["tie"] is False


def test_the_boundary_is_where_the_runtime_fails(tuned):
    """The first boundary has what fits, and what a launch or an estimate rules out."""
    (boundary, *_) = tuned.done.json["boundary"]

    assert boundary["layout"] == "single:CUDA0"
    assert boundary["n_cpu_moe"] == boundary["fits"] == boundary["params"]["n_cpu_moe"]
    assert boundary["ubatch"] == boundary["params"]["ubatch"]
    assert boundary["fails"] is None or boundary["fails"] < boundary["fits"]
    assert boundary["proven"] == (boundary["source"] == "launch")


def test_every_launch_is_counted_by_its_phase(tuned):
    """Launches by phase and by outcome add up to the processes that loaded the model."""
    result = tuned.done.json

    phases = result["launches_by_phase"]
    assert sum(phases.values()) == result["launches"] == sum(result["outcomes"].values())
    assert result["launches"] == tuned.machine.launches
    assert phases["baseline"] == 1
    assert phases["baseline"] + phases["boundary"] + phases["search"] <= 4
    assert phases["confirm"] >= 6
    assert phases["prove"] >= 1


def test_launches_and_seconds_are_counted_by_fidelity(tuned):
    """Launches, their seconds and the overhead add up to the whole tune."""
    result = tuned.done.json
    spent, trials = result["spent"], Study.open(tuned.study).trials()

    fidelities = ("load", "short", "full")
    by_fidelity = [spent["by_fidelity"][name] for name in fidelities]
    assert sum(row["launches"] for row in by_fidelity) == result["launches"] == len(trials)
    assert {(t.phase, t.fidelity) for t in trials} == {
        (row["phase"], row["fidelity"]) for row in spent["by_phase"]
    }
    assert spent["by_fidelity"]["estimate"]["questions"] >= 1
    whole = sum(row["seconds"] for row in spent["by_phase"]) + spent["own_seconds"]
    whole += spent["by_fidelity"]["estimate"]["seconds"]
    assert whole == pytest.approx(result["seconds"], abs=1.0)


def test_progress_is_plain_lines_on_stderr(tuned):
    """Without a terminal there is one numbered line per launch, without control codes."""
    lines = tuned.done.launches

    assert [int(line.split()[0][1:]) for line in lines] == [*range(1, len(lines) + 1)]
    assert len(lines) == tuned.done.json["launches"]
    assert "\x1b" not in tuned.done.err
    assert "proven at full context" in tuned.done.err


def test_no_process_and_no_memory_is_left(tuned):
    """Servers and guards have ended, and the card's memory is free."""
    assert tuned.program.stage.living() == []
    assert tuned.machine.owners == []


def test_the_presets_have_the_proven_settings(tuned):
    """All formats of the preset can be read and have the winner's settings."""
    result, presets = tuned.done.json, tuned.study / "presets"

    params = {str(value) for value in result["winner"]["params"].values()}
    ini = configparser.ConfigParser(interpolation=None)
    ini.read_string("[top]\n" + (presets / "model.ini").read_text())
    settings = {k: v for section in ini.sections() for k, v in ini[section].items()}
    assert settings["n-cpu-moe"] == str(result["winner"]["params"]["n_cpu_moe"])
    assert params <= set(settings.values())
    words = shlex.split((presets / "model.args").read_text(), comments=True)
    assert params <= set(words)
    document = json.loads((presets / "model.json").read_text())
    assert document["params"] == result["winner"]["params"]
    assert Path(result["preset"]) == presets / "model.ini"


def test_a_preset_has_no_flags_for_measuring(tuned):
    """The winner's argv has no flags that only measuring needs, and no port."""
    words = tuned.done.json["winner"]["argv"]

    assert "--fit" in words
    assert not {"--port", "--cache-ram", "--ctx-checkpoints", "--verbosity"} & set(words)


def test_the_args_preset_starts_a_server(tuned, tmp_path):
    """A server with the arguments of the preset serves the model."""
    words = shlex.split((tuned.study / "presets/model.args").read_text(), comments=True)

    program = words[0] if Path(words[0]).exists() else str(tuned.machine.server)
    rest = words[1:] if Path(words[0]).exists() else words
    with RunningServer(Path(program), tuned.machine.model, tmp_path / "log", rest) as server:
        answer = server.wait_ready(60).complete([1, 2, 3], 4)
        server.stop()
    assert answer["timings"]["predicted_n"] == 4


def test_the_reports_name_the_winner(tuned):
    """The study has a report with settings and gain."""
    text = (tuned.study / "report.md").read_text()

    assert f"n_cpu_moe={tuned.done.json['winner']['params']['n_cpu_moe']}" in text.replace(" ", "")
    assert "proven at full context" in text


def test_a_launch_can_be_repeated_in_a_shell(tuned):
    """`show --command N` prints a line for sh that starts the same server as launch N."""
    trial = Study.open(tuned.study).trials()[1]
    shown = tuned.program.run("show", tuned.study, "--command", 2, "--port", 1)

    words = shlex.split(shown.out)
    assert words[words.index(str(tuned.machine.server)) :] == [
        "1" if before == "--port" else word
        for before, word in zip(("", *trial.argv), trial.argv, strict=False)
    ]
    ended = subprocess.run(
        ["sh", "-c", f"{shown.out.strip()} --help"], capture_output=True, text=True,
        timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    assert "--n-cpu-moe" in ended.stdout


def test_a_finished_study_resumes_without_a_launch(tuned):
    """A resume of a finished study has the same winner and starts nothing."""
    before = tuned.machine.launches
    again = tuned.program.run(
        *tuned.machine.words("study", max_launches=4, dialect=tuned.machine.dialect),
        "--resume",
        "--json",
    )

    assert again.code == 0, again.err
    assert tuned.machine.launches == before
    for key in ("winner", "gain", "boundary", "launches", "launches_by_phase", "outcomes"):
        assert again.json[key] == tuned.done.json[key]
    assert "a larger --budget" in again.err


def test_the_study_header_has_model_build_and_machine(tuned):
    """The study's header has the model, build and machine of the result."""
    header = Study.open(tuned.study).header

    assert header.model_path == str(tuned.machine.model)
    assert header.environment.devices == ("CUDA0: Fake Card, 2600 MiB",)
    assert tuned.machine.model.stat().st_size >= MODEL.total_bytes
