"""`autofit export`: a study's winner, one launch or a plan, in every format."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from output.tune_sample import RESULT, make_study
from runtime.sample_programs import read_calls, write_program
from study.study_sample import header, measurement, trial

from autofit.cli.commands.export import command
from autofit.presets.formats.registry import FORMATS
from autofit.study.study_folder import Study
from autofit.trial.outcome import OutOfMemory

ARGUMENTS = ["-m", "/models/my model.gguf", "--n-cpu-moe", "20", "--host", "127.0.0.1"]


@pytest.fixture
def program(tmp_path) -> Path:
    """Return a runtime with a real help text."""
    return write_program(tmp_path / "bin")


@pytest.fixture
def study(tmp_path, program) -> Path:
    """Return a study whose winner ran on that runtime."""
    return _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])


def _study(path: Path, runtime: str, argv: list[str], dialect: str = "llama_server") -> Path:
    result = {**RESULT, "winner": {**RESULT["winner"], "argv": argv}}
    with Study.create(path, header(runtime_path=runtime, dialect=dialect)) as study:
        study.conclude(result)
    return path


def _with_trials(path: Path, program: Path) -> Path:
    """Make an unfinished study with launches of every kind."""
    options = {
        "rpc": "",
        "extra_args": ["--mmproj", "/m/p.gguf"],
        "env": {"GGML_X": "1"},
        "wrapper": ["nice"],
        "baseline": {"params": {}, "args": ["--no-warmup"]},
    }
    with Study.create(path, header(runtime_path=str(program), options=options)) as study:
        study.write_trial(
            replace(trial(1, phase="baseline"), layout="runtime_fit", is_verbatim=True)
        )
        study.write_trial(trial(2, OutOfMemory("load", "cudaMalloc failed"), phase="boundary"))
        study.write_trial(trial(3, phase="search"))
        study.write_trial(trial(4, phase="prove"))
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_written(cli, study, name):
    """Each format has the winner's settings; ini and compose come with notices."""
    done = cli("export", study, "--format", name)

    assert done.code == 0
    assert "20" in done.out
    assert "model" in done.out
    assert ("notice: " in done.err) == (name in ("ini", "compose"))


def test_shell_script_starts_the_runtime(cli, tmp_path, program, study):
    """The script is executable, and starts the runtime with the winner's arguments."""
    done = cli("export", study, "--format", "shell", "-o", tmp_path / "serve.sh")

    assert (done.code, done.out) == (0, "")
    assert str(tmp_path / "serve.sh") in done.err
    # The stand-in records its arguments and fails.
    assert subprocess.run([tmp_path / "serve.sh"], timeout=10, check=False).returncode == 1
    assert read_calls(program)[-1].startswith(
        "-m /models/my model.gguf --n-cpu-moe 20 --host 127.0.0.1"
    )


def test_a_replaced_file_is_kept(cli, tmp_path, study):
    """An exported file that its owner has changed becomes a backup."""
    target = tmp_path / "llama.sh"
    words = ("export", study, "--format", "shell", "-o", target, "--json")
    assert json.loads(cli(*words).out)["backup"] is None
    mine = target.read_text() + "# and a line of my own\n"
    target.write_text(mine)

    document = json.loads(cli(*words).out)

    assert document["backup"] == f"{target}.bak"
    assert (tmp_path / "llama.sh.bak").read_text() == mine
    assert "my own" not in target.read_text()


def test_links_and_devices_stay(cli, tmp_path, study):
    """A link still points to the file that is replaced, and a device is not replaced."""
    (tmp_path / "real.args").write_text("old")
    (tmp_path / "link.args").symlink_to("real.args")

    assert cli("export", study, "--format", "args", "-o", tmp_path / "link.args").code == 0
    assert (tmp_path / "link.args").is_symlink()
    assert "--n-cpu-moe 20" in (tmp_path / "real.args").read_text()
    assert cli("export", study, "--format", "args", "-o", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


def test_a_pipe_or_device_cannot_be_merged_into(cli, tmp_path, study):
    """Neither is opened, which might wait for a writer."""
    os.mkfifo(tmp_path / "pipe.ini")

    for target in (tmp_path / "pipe.ini", os.devnull):
        done = cli("export", study, "--format", "ini", "--merge", "-o", target)
        assert done.code == 2
        assert f"{target} is not a regular file" in done.err


@pytest.mark.parametrize("words", [[], ["--format", "yaml"]])
def test_an_unknown_format_lists_the_known(cli, study, words):
    """The error for a missing or unknown format lists all formats."""
    done = cli("export", study, *words)

    assert done.code == 2
    assert ", ".join(FORMATS) in done.err


def test_help_and_shells_know_every_format(cli):
    """The help and the shell completion list the registered formats."""
    option = next(one for one in command.params if one.name == "format_name")

    assert "|".join(FORMATS) in cli("export", "--help").out
    assert option.shell_complete(click.Context(command), "s")[0].value == "shell"


def test_a_missing_runtime_allows_formats_without_flags(cli, tmp_path):
    """Without the runtime a command line can be written, an ini file cannot."""
    study = _study(tmp_path / "study", "/gone/llama-server", ["/gone/llama-server", *ARGUMENTS])

    done = cli("export", study, "--format", "args")
    assert done.code == 0
    assert shlex.split(done.out)[2:] == ["/gone/llama-server", *ARGUMENTS, "--port", "8080"]
    assert "notice: " in done.err
    refused = cli("export", study, "--format", "ini")
    assert refused.code == 2


def test_a_dialect_given_as_a_file_is_found_again(cli, program, tmp_path):
    """A tune's --dialect FILE is used by its export from any folder, while it exists."""
    own = tmp_path / "mine.yaml"
    own.write_text("extends: llama_server\n")
    path = tmp_path / "study"
    known = header(runtime_path=str(program), dialect="mine", options={"dialect_file": str(own)})
    argv = [str(program), *ARGUMENTS]
    with Study.create(path, known) as study:
        study.conclude({**RESULT, "winner": {**RESULT["winner"], "argv": argv}})

    assert cli("export", path, "--format", "args").code == 0
    own.unlink()
    assert "unknown dialect 'mine'" in cli("export", path, "--format", "args").err


def test_a_moved_runtime_can_be_named(cli, tmp_path, program):
    """--runtime replaces the tune's own program; a missing one is refused."""
    study = _study(
        tmp_path / "study", "/gone/llama-server", ["nice", "/gone/llama-server", *ARGUMENTS]
    )

    document = json.loads(cli("export", study, "--format", "json", "--runtime", program).out)
    assert document["wrapper"] == ["nice"]
    assert document["program"] == [str(program)]
    assert document["arguments"][: len(ARGUMENTS)] == ARGUMENTS
    done = cli("export", study, "--format", "json", "--runtime", tmp_path / "none")
    assert (done.code, "no such runtime" in done.err) == (2, True)


def test_the_embedded_runtime_of_another_python_is_known(cli, tmp_path):
    """A study made with another Python's embedded runtime is served with this Python."""
    argv = ["/old/python", "-m", "autofit.runtime.embedded", *ARGUMENTS]
    study = _study(tmp_path / "study", "/old/xllamacpp.so", argv, dialect="embedded")

    done = cli("export", study, "--format", "args")
    assert shlex.split(done.out)[2:5] == [sys.executable, "-m", "autofit.runtime.embedded"]


def test_file_names_in_arguments_become_absolute(cli, tmp_path, program, monkeypatch):
    """A relative file name starts in the working directory, and a notice says so."""
    argv = [str(program), *ARGUMENTS, "--chat-template-file", "mine.jinja"]
    study = _study(tmp_path / "study", str(program), argv)
    monkeypatch.chdir(tmp_path)

    done = cli("export", study, "--format", "args")
    assert str(tmp_path / "mine.jinja") in done.out
    assert f"start in {tmp_path}" in done.err


@pytest.mark.parametrize(
    ("result", "fault"),
    [(None, "is not finished"), ({**RESULT, "winner": None}, "has no winner")],
)
def test_a_study_without_a_winner_is_refused(cli, tmp_path, result, fault):
    """An unfinished study and a study without a winner cannot be exported."""
    study = make_study(tmp_path / "study", result=result)
    done = cli("export", study.path, "--format", "ini")

    assert done.code == 2
    assert fault in done.err
    assert str(study.path) in done.err.splitlines()[1]


def test_unproven_settings_are_marked(cli, tmp_path, program):
    """A winner without proof is marked in the file and in a notice."""
    winner = {**RESULT["winner"], "argv": [str(program), *ARGUMENTS], "proven": False}
    with Study.create(tmp_path / "study", header(runtime_path=str(program))) as study:
        study.conclude({**RESULT, "winner": winner})

    done = cli("export", tmp_path / "study", "--format", "ini")
    assert "NOT proven" in done.err
    assert "NOT proven" in done.out


def test_the_best_so_far_needs_unproven(cli, tmp_path, program):
    """Without the option it is refused; with it, the file and the document are marked."""
    best = trial(2, n_cpu_moe=18)
    with Study.create(tmp_path / "study", header(runtime_path=str(program))) as study:
        study.write_trial(replace(trial(1, phase="baseline"), is_verbatim=True))
        study.write_trial(replace(best, measurement=measurement(60.0)))

    refused = cli("export", tmp_path / "study", "--format", "ini")
    assert refused.code == 2
    assert "--unproven" in refused.err
    script = cli("export", tmp_path / "study", "--unproven", "--format", "shell")
    assert "--n-cpu-moe 18" in script.out.replace("\\\n  ", "")
    comments = [line for line in script.out.splitlines() if line.startswith("# ")]
    assert any("NOT proven" in line for line in comments)
    assert any("NOT CONFIRMED" in line for line in comments)
    assert "NOT proven" in script.err
    document = json.loads(cli("export", tmp_path / "study", "--unproven", "--format", "json").out)
    assert document["proven"] is False
    assert document["gain"]["n"] == 0
    assert "launch 2" in document["origin"]
    shown = json.loads(cli("show", tmp_path / "study", "--json").out)["best_so_far"]
    assert (shown["trial"], shown["proven"], shown["confirmed"]) == (2, False, False)


def test_an_unfinished_study_is_listed_with_its_best_so_far(cli, tmp_path, monkeypatch):
    """`studies` has the speed of the best launch, and says that the study is not finished."""
    monkeypatch.chdir(tmp_path)
    with Study.create(tmp_path / "results" / "cut", header()) as study:
        study.write_trial(replace(trial(1, phase="baseline"), measurement=measurement(30.0)))
        study.write_trial(replace(trial(2, n_cpu_moe=18), measurement=measurement(60.0)))

    (row,) = json.loads(cli("studies", "--json").out)["studies"]

    assert row["finished"] is False
    assert "1.60x as fast" in row["result"]


def test_unproven_changes_nothing_for_a_winner(cli, study):
    """A proven winner is exported as without the option."""
    plain = cli("export", study, "--format", "ini")

    assert cli("export", study, "--unproven", "--format", "ini").out == plain.out


def test_one_launch_is_exported_as_it_is_served(cli, tmp_path, program):
    """A launch of an unfinished tune is exported without the options for measuring."""
    study = _with_trials(tmp_path / "study", program)

    done = cli("export", study, "--trial", 3, "--format", "json")
    document = json.loads(done.out)

    assert document["params"] == {"n_gpu_layers": 49, "n_cpu_moe": 20, "ubatch": 512}
    assert document["wrapper"] == ["nice"]
    assert document["env"]["GGML_X"] == "1"
    assert "--n-cpu-moe 20 --ubatch-size 512 --fit off --mmproj" in " ".join(document["argv"])
    assert "--no-warmup" not in document["argv"]
    assert "--cache-ram" not in document["argv"]
    assert (document["proven"], document["gain"]) == (False, None)
    assert document["estimates"]["tg_per_s"]["n"] == 1
    assert "NOT proven" in done.err
    script = cli("export", study, "--trial", 3, "--format", "shell").out
    assert f"trial 3 (search) of the study {study}" in script


def test_baseline_and_proof_can_be_exported(cli, tmp_path, program):
    """The baseline keeps the user's arguments and the automatic fit; a proof is proven."""
    study = _with_trials(tmp_path / "study", program)

    baseline = json.loads(cli("export", study, "--trial", 1, "--format", "json").out)
    proof = json.loads(cli("export", study, "--trial", 4, "--format", "json").out)

    assert "--no-warmup" in baseline["argv"]
    assert "--fit" not in baseline["argv"]
    assert (baseline["proven"], proof["proven"]) == (False, True)


@pytest.mark.parametrize(("number", "fault"), [(2, "out of memory"), (9, "has no trial 9")])
def test_a_failed_or_missing_launch_is_refused(cli, tmp_path, program, number, fault):
    """A launch that failed, or that the study does not have, cannot be exported."""
    study = _with_trials(tmp_path / "study", program)
    done = cli("export", study, "--trial", number, "--format", "args")

    assert (done.code, done.out) == (2, "")
    assert fault in done.err


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "cannot read"),
        ("[]", "not a plan"),
        ("{}", "not a plan"),
        ('{"layouts": [], "launch": {}}', "damaged"),
        ('{"layouts": [], "launch": null}', "no layout fits"),
    ],
)
def test_a_file_without_a_plan_is_refused(cli, tmp_path, text, fault):
    """The error names the fault of a file that is not a plan, or has no fitting layout."""
    (tmp_path / "plan.json").write_text(text)
    done = cli("export", tmp_path / "plan.json", "--format", "ini")

    assert (done.code, fault in done.err) == (2, True), done.err


def test_a_plan_has_no_trials(cli, tmp_path):
    """--trial is for studies only."""
    (tmp_path / "plan.json").write_text("{}")
    done = cli("export", tmp_path / "plan.json", "--format", "ini", "--trial", 1)
    assert (done.code, "trial" in done.err) == (2, True)


def test_several_studies_go_into_one_file(cli, tmp_path, program):
    """Each has a section; the same model twice, or a format for one model, is refused."""
    studies = []
    for name in ("a", "b"):
        study = Study.create(tmp_path / name, header(runtime_path=str(program), model_name=name))
        with study:
            winner = {**RESULT["winner"], "argv": [str(program), *ARGUMENTS, "-t", "1"]}
            study.conclude({**RESULT, "winner": winner})
        studies.append(study.path)

    both = cli("export", *studies, "--format", "ini").out
    sections = [line for line in both.splitlines() if line.startswith("[")]
    assert sections == ["[*]", "[a]", "[b]"]
    assert both.count("threads = 1") == 1
    for words, fault in (
        ((studies[0], studies[0], "--format", "ini"), "two of the studies"),
        ((*studies, "--format", "shell"), "holds one model"),
        ((*studies, "--format", "ini", "--trial", 1), "one study"),
    ):
        done = cli("export", *words)
        assert (done.code, fault in done.err) == (2, True), done.err


def test_name_port_and_image_can_be_chosen(cli, study):
    """--name, --port and --image are in the file."""
    words = ("--name", "my model", "--port", "9001", "--image", "mine:1")
    text = cli("export", study, "--format", "compose", *words).out

    assert 'image: "mine:1"' in text
    assert "  my-model:" in text
    assert '"--port", "9001"' in text


def test_a_merge_keeps_the_rest_a_backup_and_permissions(cli, tmp_path, study):
    """The file gets one section, the older file is kept, and a second merge changes nothing."""
    target, backup = tmp_path / "models.ini", tmp_path / "models.ini.bak"
    mine = "; mine\n[other]\nmodel = /o.gguf ; here\n"
    target.write_text(mine)
    target.chmod(0o600)
    words = ("export", study, "--format", "ini", "-o", target)

    refused = cli(*words)
    assert (refused.code, "other models" in refused.err) == (2, True)
    assert target.read_text() == mine
    done = cli(*words, "--merge", "--json")
    document = json.loads(done.out)
    assert target.read_text().startswith(mine)
    assert "n-cpu-moe = 20" in target.read_text()
    assert (document["backup"], backup.read_text()) == (str(backup), mine)
    assert {target.stat().st_mode & 0o777, backup.stat().st_mode & 0o777} == {0o600}
    again = cli(*words, "--merge")
    assert "unchanged" in again.err
    assert backup.read_text() == mine


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (("--format", "ini", "-o", "{}"), (2, "is a folder")),
        (("--format", "ini", "-o", "{}/none/x"), (2, "no folder")),
        (("--format", "ini", "-o", "/dev/full"), (1, "cannot write")),
        (("--format", "ini", "--merge"), (2, "-o FILE")),
        (("--format", "shell", "-o", "{}/x", "--merge"), (2, "holds one")),
        (("--format", "ini", "-o", "{}/x", "--merge"), (2, "x:1: ")),
        (("--format", "llama-swap", "-o", "{}/x", "--merge"), (2, "cannot merge")),
    ],
)
def test_a_target_that_cannot_be_written_is_refused(cli, tmp_path, study, words, ending):
    """The error names the fault, and the file stays as it was."""
    (tmp_path / "x").write_text("nonsense: [")
    done = cli("export", study, *(word.format(tmp_path) for word in words))

    assert (done.code, ending[1] in done.err) == (ending[0], True), done.err
    assert (tmp_path / "x").read_text() == "nonsense: ["
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".tmp", ".bak"))]


def test_json_describes_the_export(cli, study):
    """The document has the text without a file name, the models, and null for missing parts."""
    document = json.loads(cli("export", study, "--format", "args", "--json").out)

    assert document["text"] == cli("export", study, "--format", "args").out
    assert document["models"][0]["model"] == "Qwen3-30B-A3B-Q4_K_M"
    assert document["models"][0]["origin"] == "winner"
    assert (document["output"], document["verification"], document["backup"]) == (None, None, None)
    wrong = cli("export", study, "--format", "toml", "--json")
    assert json.loads(wrong.out)["error"]["kind"] == "usage"


@pytest.mark.runtime
def test_a_winner_on_the_real_runtime(cli, tmp_path, llama_cpp):
    """With the real llama-server's help, ini and env have its keys and variables."""
    program = llama_cpp / "llama-server"
    study = _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])

    assert "n-cpu-moe = 20" in cli("export", study, "--format", "ini").out
    assert "LLAMA_ARG_N_CPU_MOE=20" in cli("export", study, "--format", "env").out
