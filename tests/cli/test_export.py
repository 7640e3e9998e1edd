"""`autofit export`: a study's winner, one of its launches or a plan, in every format."""

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
from runtime.stand_in import write_program
from study.study_sample import header, trial

from autofit.cli.commands.export import command
from autofit.presets.formats.registry import FORMATS
from autofit.study.study_folder import Study
from autofit.trial.outcome import OutOfMemory

ARGUMENTS = ["-m", "/models/my model.gguf", "--n-cpu-moe", "20", "--host", "127.0.0.1"]


@pytest.fixture
def program(tmp_path) -> Path:
    """A runtime with a real help text."""
    return write_program(tmp_path / "bin")


@pytest.fixture
def study(tmp_path, program) -> Path:
    """A study whose winner ran on that runtime."""
    return _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])


def _study(path: Path, runtime: str, argv: list[str], dialect: str = "llama_server") -> Path:
    result = {**RESULT, "winner": {**RESULT["winner"], "argv": argv}}
    with Study.create(path, header(runtime_path=runtime, dialect=dialect)) as study:
        study.conclude(result)
    return path


def _with_trials(path: Path, program: Path) -> Path:
    """A study that is not finished, with launches of every kind."""
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
    """Each known format carries the winner's settings to stdout."""
    done = cli("export", study, "--format", name)

    assert done.code == 0
    assert "20" in done.out
    assert "model" in done.out
    noticed = {"ini": "start the router exactly so", "compose": "not to this image"}
    assert noticed[name] in done.err if name in noticed else done.err == ""


def test_shell_script_starts_the_runtime(cli, tmp_path, program, study):
    """The script may be executed, and becomes the runtime with the winner's arguments."""
    done = cli("export", study, "--format", "shell", "-o", tmp_path / "serve.sh")

    assert (done.code, done.out) == (0, "")
    assert str(tmp_path / "serve.sh") in done.err
    # The stand-in notes what it is asked and fails.
    assert subprocess.run([tmp_path / "serve.sh"], timeout=10, check=False).returncode == 1
    asked = (program.parent / "asked").read_text().splitlines()[-1]
    assert asked.startswith("-m /models/my model.gguf --n-cpu-moe 20 --host 127.0.0.1")


def test_a_file_that_is_replaced_is_kept(cli, tmp_path, study):
    """What its owner has changed in an exported file is not lost by exporting again."""
    target = tmp_path / "llama.sh"
    words = ("export", study, "--format", "shell", "-o", target, "--json")
    assert json.loads(cli(*words).out)["backup"] is None
    mine = target.read_text() + "# and a line of my own\n"
    target.write_text(mine)

    told = json.loads(cli(*words).out)

    assert told["backup"] == f"{target}.bak"
    assert (tmp_path / "llama.sh.bak").read_text() == mine
    assert "my own" not in target.read_text()


def test_file_is_replaced_and_a_device_is_not(cli, tmp_path, study):
    """An older file gives way, a link stays a link, a device stays a device."""
    (tmp_path / "real.args").write_text("old")
    (tmp_path / "link.args").symlink_to("real.args")

    assert cli("export", study, "--format", "args", "-o", tmp_path / "link.args").code == 0
    assert (tmp_path / "link.args").is_symlink()
    assert "--n-cpu-moe 20" in (tmp_path / "real.args").read_text()
    assert cli("export", study, "--format", "args", "-o", os.devnull).code == 0
    assert not Path(os.devnull).is_file()


def test_a_pipe_or_device_holds_nothing_to_merge_into(cli, tmp_path, study):
    """It is told, and not waited for a reader."""
    os.mkfifo(tmp_path / "pipe.ini")

    for target in (tmp_path / "pipe.ini", os.devnull):
        done = cli("export", study, "--format", "ini", "--merge", "-o", target)
        assert done.code == 2
        assert f"{target} is no file that can be merged into" in done.err


@pytest.mark.parametrize("words", [[], ["--format", "yaml"]])
def test_unknown_format_lists_the_known(cli, study, words):
    """Without a known format, those that there are are listed."""
    done = cli("export", study, *words)

    assert done.code == 2
    assert f"known: {', '.join(FORMATS)}" in done.err


def test_help_and_shells_know_every_format(cli):
    """The formats in the help, and what a shell completes, are those that there are."""
    option = next(one for one in command.params if one.name == "format_name")

    assert "|".join(FORMATS) in cli("export", "--help").out
    assert option.shell_complete(click.Context(command), "s")[0].value == "shell"


def test_runtime_that_is_gone_still_gives_what_needs_no_help(cli, tmp_path):
    """Without the runtime a script can be written, an ini file cannot."""
    study = _study(tmp_path / "study", "/gone/llama-server", ["/gone/llama-server", *ARGUMENTS])

    done = cli("export", study, "--format", "args")
    assert done.code == 0
    assert shlex.split(done.out)[2:] == ["/gone/llama-server", *ARGUMENTS, "--port", "8080"]
    assert "cannot be asked" in done.err
    refused = cli("export", study, "--format", "ini")
    assert refused.code == 2
    assert "`args`, `shell` or `json`" in refused.err


def test_a_dialect_given_as_a_file_is_found_again(cli, program, tmp_path):
    """A tune's --dialect FILE serves its export from any folder, as long as it is there."""
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


def test_runtime_that_has_moved_can_be_named(cli, tmp_path, program):
    """--runtime takes the place of the tune's own program; one that is none is refused."""
    study = _study(
        tmp_path / "study", "/gone/llama-server", ["nice", "/gone/llama-server", *ARGUMENTS]
    )

    told = json.loads(cli("export", study, "--format", "json", "--runtime", program).out)
    assert told["wrapper"] == ["nice"]
    assert told["program"] == [str(program)]
    assert told["arguments"][: len(ARGUMENTS)] == ARGUMENTS
    done = cli("export", study, "--format", "json", "--runtime", tmp_path / "none")
    assert (done.code, "no such runtime" in done.err) == (2, True)


def test_embedded_runtime_of_another_python_is_known(cli, tmp_path):
    """A study made by another Python's embedded runtime is served by this one's."""
    argv = ["/old/python", "-m", "autofit.runtime.embedded", *ARGUMENTS]
    study = _study(tmp_path / "study", "/old/xllamacpp.so", argv, dialect="embedded")

    done = cli("export", study, "--format", "args")
    assert shlex.split(done.out)[2:5] == [sys.executable, "-m", "autofit.runtime.embedded"]


def test_file_names_of_arguments_are_made_absolute(cli, tmp_path, program, monkeypatch):
    """A relative file name is taken from the working directory, and that is said."""
    argv = [str(program), *ARGUMENTS, "--chat-template-file", "mine.jinja"]
    study = _study(tmp_path / "study", str(program), argv)
    monkeypatch.chdir(tmp_path)

    done = cli("export", study, "--format", "args")
    assert str(tmp_path / "mine.jinja") in done.out
    assert f"taken from {tmp_path}" in done.err


@pytest.mark.parametrize(
    ("result", "told"),
    [(None, "is not finished"), ({**RESULT, "winner": None}, "has no winner")],
)
def test_study_without_a_winner_is_refused(cli, tmp_path, result, told):
    """There is nothing to export of a tune that is not finished or proved nothing."""
    study = make_study(tmp_path / "study", result=result)
    done = cli("export", study.path, "--format", "ini")

    assert done.code == 2
    assert told in done.err
    assert str(study.path) in done.err.splitlines()[1]


def test_settings_that_were_not_proven_are_marked(cli, tmp_path, program):
    """A winner without proof is exported with a warning, in the file and beside it."""
    winner = {**RESULT["winner"], "argv": [str(program), *ARGUMENTS], "proven": False}
    with Study.create(tmp_path / "study", header(runtime_path=str(program))) as study:
        study.conclude({**RESULT, "winner": winner})

    done = cli("export", tmp_path / "study", "--format", "ini")
    assert "NOT proven" in done.err
    assert "NOT proven" in done.out


def test_one_launch_is_exported_as_it_would_be_served(cli, tmp_path, program):
    """A trial of a tune that still runs: its settings and the user's own, nothing of measuring."""
    study = _with_trials(tmp_path / "study", program)

    done = cli("export", study, "--trial", 3, "--format", "json")
    told = json.loads(done.out)

    assert told["params"] == {"n_gpu_layers": 49, "n_cpu_moe": 20, "ubatch": 512}
    assert told["wrapper"] == ["nice"]
    assert told["env"]["GGML_X"] == "1"
    assert "--n-cpu-moe 20 --ubatch-size 512 --fit off --mmproj" in " ".join(told["argv"])
    assert "--no-warmup" not in told["argv"]
    assert "--cache-ram" not in told["argv"]
    assert (told["proven"], told["gain"]) == (False, None)
    assert told["estimates"]["tg_per_s"]["n"] == 1
    assert "NOT proven" in done.err
    headed = cli("export", study, "--trial", 3, "--format", "shell").out
    assert f"# taken from: trial 3 (search) of the study {study}" in headed


def test_baseline_and_proof_are_exported_as_what_they_are(cli, tmp_path, program):
    """The baseline keeps the user's own words and its automatic fit, a proof is proven."""
    study = _with_trials(tmp_path / "study", program)

    baseline = json.loads(cli("export", study, "--trial", 1, "--format", "json").out)
    proof = json.loads(cli("export", study, "--trial", 4, "--format", "json").out)

    assert "--no-warmup" in baseline["argv"]
    assert "--fit" not in baseline["argv"]
    assert (baseline["proven"], proof["proven"]) == (False, True)


@pytest.mark.parametrize(("number", "told"), [(2, "out of memory"), (9, "has no trial 9")])
def test_launch_that_serves_nobody_is_refused(cli, tmp_path, program, number, told):
    """What failed, or never was, cannot be exported."""
    study = _with_trials(tmp_path / "study", program)
    done = cli("export", study, "--trial", number, "--format", "args")

    assert (done.code, done.out) == (2, "")
    assert told in done.err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot read"),
        ("[]", "no plan"),
        ("{}", "no plan"),
        ('{"layouts": [], "launch": {}}', "damaged"),
        ('{"layouts": [], "launch": null}', "no layout fits"),
    ],
)
def test_file_that_is_no_plan_is_refused(cli, tmp_path, text, told):
    """A file that holds something else is named with what was expected."""
    (tmp_path / "plan.json").write_text(text)
    done = cli("export", tmp_path / "plan.json", "--format", "ini")

    assert (done.code, told in done.err) == (2, True), done.err


def test_plan_has_no_trials_and_may_come_from_nowhere(cli, tmp_path, monkeypatch):
    """--trial is for studies; a closed stdin is no plan."""
    (tmp_path / "plan.json").write_text("{}")
    done = cli("export", tmp_path / "plan.json", "--format", "ini", "--trial", 1)
    assert (done.code, "no trials" in done.err) == (2, True)

    monkeypatch.setattr(sys, "stdin", None)
    done = cli("export", "-", "--format", "ini")
    assert (done.code, "no stdin" in done.err) == (2, True)


def test_several_studies_go_into_one_file(cli, tmp_path, program):
    """Each has its section; a model that is there twice, or a format of one model, is refused."""
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
    for words, told in (
        ((studies[0], studies[0], "--format", "ini"), "two of the studies"),
        ((*studies, "--format", "shell"), "holds one model"),
        ((*studies, "--format", "ini", "--trial", 1), "one study"),
    ):
        done = cli("export", *words)
        assert (done.code, told in done.err) == (2, True), done.err


def test_name_port_and_image_can_be_chosen(cli, study):
    """The user's word for the model, the port and the container's image is taken."""
    words = ("--name", "my model", "--port", "9001", "--image", "mine:1")
    text = cli("export", study, "--format", "compose", *words).out

    assert 'image: "mine:1"' in text
    assert "  my-model:" in text
    assert '"--port", "9001"' in text


def test_merge_keeps_the_rest_a_backup_and_who_may_read(cli, tmp_path, study):
    """The file has one more section, the older is beside it; the same again changes nothing."""
    target, backup = tmp_path / "models.ini", tmp_path / "models.ini.bak"
    mine = "; mine\n[other]\nmodel = /o.gguf ; here\n"
    target.write_text(mine)
    target.chmod(0o600)
    words = ("export", study, "--format", "ini", "-o", target)

    refused = cli(*words)
    assert (refused.code, "holds other models: other" in refused.err) == (2, True)
    assert target.read_text() == mine
    done = cli(*words, "--merge", "--json")
    told = json.loads(done.out)
    assert target.read_text().startswith(mine)
    assert "n-cpu-moe = 20" in target.read_text()
    assert (told["backup"], backup.read_text()) == (str(backup), mine)
    assert {target.stat().st_mode & 0o777, backup.stat().st_mode & 0o777} == {0o600}
    again = cli(*words, "--merge")
    assert "says so already" in again.err
    assert backup.read_text() == mine


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        (("--format", "ini", "-o", "{}"), (2, "is a folder")),
        (("--format", "ini", "-o", "{}/none/x"), (2, "no folder")),
        (("--format", "ini", "-o", "/dev/full"), (1, "cannot write")),
        (("--format", "ini", "--merge"), (2, "-o FILE")),
        (("--format", "shell", "-o", "{}/x", "--merge"), (2, "holds one")),
        (("--format", "ini", "-o", "{}/x", "--merge"), (2, "x:1: neither")),
        (("--format", "llama-swap", "-o", "{}/x", "--merge"), (2, "cannot merge")),
    ],
)
def test_target_that_cannot_be_written_is_refused(cli, tmp_path, study, words, ending):
    """What is wrong with the file is said, and the file is as it was."""
    (tmp_path / "x").write_text("nonsense: [")
    done = cli("export", study, *(word.format(tmp_path) for word in words))

    assert (done.code, ending[1] in done.err) == (ending[0], True), done.err
    assert (tmp_path / "x").read_text() == "nonsense: ["
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".tmp", ".bak"))]


def test_json_tells_of_what_was_written(cli, study):
    """One document: the text where no file was named, the models, and what was not checked."""
    told = json.loads(cli("export", study, "--format", "args", "--json").out)

    assert told["text"] == cli("export", study, "--format", "args").out
    assert told["models"][0]["model"] == "Qwen3-30B-A3B-Q4_K_M"
    assert told["models"][0]["origin"] == "winner"
    assert (told["output"], told["verification"], told["backup"]) == (None, None, None)
    wrong = cli("export", study, "--format", "toml", "--json")
    assert json.loads(wrong.out)["error"]["kind"] == "usage"


@pytest.mark.runtime
def test_winner_on_the_real_runtime(cli, tmp_path, llama_cpp):
    """With the real llama-server's help the ini names its flags."""
    program = llama_cpp / "llama-server"
    study = _study(tmp_path / "study", str(program), [str(program), *ARGUMENTS])

    assert "n-cpu-moe = 20" in cli("export", study, "--format", "ini").out
    assert "LLAMA_ARG_N_CPU_MOE=20" in cli("export", study, "--format", "env").out
