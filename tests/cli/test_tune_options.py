"""Options of a tune reach every launch, the preset and the result."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import psutil
import pytest
from autofit_program import AutofitProgram, Done
from fakes.running import RunningServer
from tune_machine import TuneMachine

from autofit.study.study_folder import Study

pytestmark = pytest.mark.timeout(180)

TEXT = "".join(
    f"Entry {number}: {number * 7919 % 1000} crates of salt.\n" for number in range(900)
)


class Tuned:
    """A finished tune of two cards with most options."""

    def __init__(self, folder: Path) -> None:
        self.program = AutofitProgram(folder)
        self.machine = TuneMachine(folder, 2600.0, 2300.0)
        (self.machine.folder / "salt.txt").write_text(TEXT)
        self.machine.write_workload(parallel=2, more="text: salt.txt\n")
        self.study = folder / "my study"
        self.done: Done = self.program.run(
            *self.machine.words(
                self.study,
                context=4096,
                max_launches=3,
                set="threads=3",
                env="GGML_CUDA_NO_PINNED=1",
                wrapper="nice -n 1",
                kv_floor="f16",
                objective="tg",
                require="tg>=1",
                seed=7,
                baseline=f"{self.machine.server} -m {self.machine.model} -ngl 3 --top-k 5",
            ),
            *("--device", "CUDA1=2100", "--device", "CUDA0=2300"),
            *("--json", "--", "--alias", "it's mine", "--json-schema", "{}"),
        )
        assert self.done.code == 0, self.done.err
        self.trials = Study.open(self.study).trials()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Tuned:
    """One tune for all tests of this module."""
    return Tuned(tmp_path_factory.mktemp("options"))


def test_options_reach_every_launch(tuned):
    """Arguments after `--`, wrapper, variables and pinned settings are in each command."""
    assert tuned.done.code == 0, tuned.done.err
    for trial in tuned.trials:
        argv = list(trial.argv)
        assert argv[:4] == ["nice", "-n", "1", str(tuned.machine.server)]
        assert argv[-4:] == ["--alias", "it's mine", "--json-schema", "{}"]
        assert trial.env["GGML_CUDA_NO_PINNED"] == "1"
        assert (argv[argv.index("--ctx-size") + 1], argv[argv.index("--parallel") + 1]) == (
            "4096",
            "2",
        )
    tuned_trials = [trial for trial in tuned.trials if trial.phase != "baseline"]
    assert all(
        trial.candidate.params["threads"] == 3
        for trial in tuned_trials
        if trial.layout != "runtime_fit"
    )


def test_options_reach_the_preset(tuned):
    """The winner's command has the wrapper and the user's arguments and variables."""
    winner = tuned.done.json["winner"]

    assert winner["argv"][:4] == ["nice", "-n", "1", str(tuned.machine.server)]
    assert winner["argv"][-4:] == ["--alias", "it's mine", "--json-schema", "{}"]
    assert winner["env"]["GGML_CUDA_NO_PINNED"] == "1"
    words = shlex.split((tuned.study / "presets/model.args").read_text(), comments=True)
    assert "GGML_CUDA_NO_PINNED=1" in words
    assert words[words.index("--alias") :][:4] == winner["argv"][-4:]
    document = json.loads((tuned.study / "presets/model.json").read_text())
    assert document["env"]["GGML_CUDA_NO_PINNED"] == "1"


def test_devices_are_used_in_the_order_given(tuned):
    """Only the named devices are used, in that order, and within their limits."""
    params = tuned.done.json["winner"]["params"]

    assert params["devices"].split(",")[0] == "CUDA1"
    proof = next(t for t in tuned.trials if t.number == tuned.done.json["winner"]["trial"])
    for name, lent_mib in (("CUDA1", 2100), ("CUDA0", 2300)):
        row = proof.measurement.reported[name]
        assert row.model_mib + row.context_mib + row.compute_mib <= lent_mib


def test_the_kv_floor_is_kept(tuned):
    """No candidate has a KV type narrower than the floor."""
    types = {trial.candidate.params.get("cache_type_k", "f16") for trial in tuned.trials}

    assert types == {"f16"}


def test_the_users_own_command_is_the_baseline(tuned):
    """The baseline runs with the user's settings and arguments, at the task's context."""
    baseline = tuned.done.json["baseline"]

    assert baseline["params"] == {"n_gpu_layers": 3, "context": 4096, "parallel": 2}
    assert "--top-k" in baseline["argv"]
    assert "--fit" not in baseline["argv"]
    others = [trial for trial in tuned.trials if trial.layout != "runtime_fit"]
    assert not any("--top-k" in trial.argv for trial in others)
    assert "--top-k" not in tuned.done.json["winner"]["argv"]


def test_requests_are_sent_in_parallel(tuned):
    """With two slots each kind of request is sent twice at the same time, from the user's text."""
    measured = tuned.trials[0].measurement.samples

    assert len(measured) % 2 == 0
    assert {sample.prompt_tokens for sample in measured if not sample.is_warmup} == {384}


def test_the_objective_decides(tuned):
    """The gain is of the requested metric; a higher rate is a gain."""
    result = tuned.done.json

    assert result["objective"] == "tg"
    ratio = (
        result["winner"]["estimates"]["tg_per_s"]["median"]
        / result["baseline"]["estimates"]["tg_per_s"]["median"]
    )
    assert ratio > 1.2
    assert result["gain"]["median"] == pytest.approx(ratio, rel=0.4)


def test_another_model_or_task_is_no_resume(tuned):
    """A study resumes only under its own conditions; each difference is named."""
    words = tuned.machine.words(tuned.study, context=4096)
    other = tuned.program.run(*words, "--resume", "--json")

    assert other.code == 2
    message = other.json["error"]["message"]
    assert "other conditions" in message
    for what in ("wrapper", "extra", "devices"):
        assert what in message.lower(), message


def test_a_dry_run_prints_shell_commands(tuned, tmp_path):
    """Each line that is no comment starts a server in sh; nothing is launched."""
    before = tuned.machine.launches
    words = tuned.machine.words(None, env="GGML_X=a b", wrapper="nice -n 1")
    done = tuned.program.run(*words, "--dry-run", "--", "--alias", "it's mine")

    assert done.code == 0, done.err
    assert tuned.machine.launches == before
    lines = [line for line in done.out.splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    assert "--fit" not in lines[0]
    assert "--tensor-split" in lines[1]
    assert all("'GGML_X=a b'" in line for line in lines)
    script = tmp_path / "server.sh"
    script.write_text(f'#!/bin/sh\nexec {lines[1].replace("--port 8080", "")} "$@"\n')
    script.chmod(0o755)
    with RunningServer(script, tuned.machine.model, tmp_path / "log") as server:
        server.wait_ready(60)
        process = psutil.Process(server.process.pid)
        words, environ = process.cmdline(), process.environ()
        server.stop()
    assert words[words.index("--alias") + 1] == "it's mine"
    assert environ["GGML_X"] == "a b"


def test_a_dry_run_is_one_document_with_json(tuned):
    """The document has the same commands as the text, each with its purpose."""
    words = [*tuned.machine.words(None), "--dry-run"]
    lines = tuned.program.run(*words).out.splitlines()

    commands = tuned.program.run(*words, "--json").json["commands"]

    assert [line for each in commands for line in (f"# {each['about']}", each["command"])] == lines
    assert len(commands) == 2


@pytest.mark.parametrize("number", [1, -1])
def test_a_launch_of_this_study_can_be_repeated(tuned, tmp_path, number):
    """`show --command` quotes the user's arguments and variables for sh."""
    trial = tuned.trials[number]
    shown = tuned.program.run("show", tuned.study, "--command", trial.number)

    line = shown.out.strip()
    assert "GGML_CUDA_NO_PINNED=1" in line
    printed = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True,
        timeout=20,
    ).stdout.splitlines()  # fmt: skip
    start = printed.index("nice")
    assert [word.replace("8080", "{port}") for word in printed[start:]] == list(trial.argv)
