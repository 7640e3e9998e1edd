"""A user's own file as the baseline of a tune, and the settings that all launches take over."""

from __future__ import annotations

import shlex

import pytest
from tune_machine import TuneMachine

OWN = """\
[Service]
Environment=GGML_CUDA_NO_PINNED=1 LLAMA_API_KEY=sk-very-secret
ExecStart=nice -n 2 {server} -m {model} -c 4096 -np 2 -ngl 99 -ncmoe 12 -ctk q4_0 -fa on \\
  --api-key sk-very-secret --port 80
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A machine with one card."""
    return TuneMachine(tmp_path_factory.mktemp("machine"), 2600.0)


@pytest.fixture
def dry(cli, machine):
    """Return a function that starts a dry run; it returns the commands and stderr."""

    def run(baseline, *more, code=0, **changed):
        words = machine.words(None, **{"workload": None, **changed})
        ended = cli(*words, "--dry-run", "--baseline", baseline, *more)
        assert ended.code == code, ended.err
        lines = [line for line in ended.out.splitlines() if not line.startswith("#")]
        return [shlex.split(line) for line in lines], ended.err

    return run


@pytest.fixture
def unit(machine, tmp_path):
    """Write a systemd unit of the user."""
    path = tmp_path / "llama.service"
    path.write_text(OWN.format(server=machine.server, model=machine.model))
    return path


def test_all_launches_take_over_variables_wrapper_and_task(dry, unit):
    """Variables, wrapper, context and slots are the same, so that only settings differ."""
    (baseline, first), printed = dry(unit)

    for words in (baseline, first):
        assert "GGML_CUDA_NO_PINNED=1" in words
        assert words[words.index("nice") :][:3] == ["nice", "-n", "2"]
        assert (words[words.index("--ctx-size") + 1], words[words.index("--parallel") + 1]) == (
            "4096",
            "2",
        )
        assert not any("secret" in word for word in words)
    assert baseline[baseline.index("--n-cpu-moe") + 1] == "12"
    for value in (
        "GGML_CUDA_NO_PINNED=1",
        "`nice -n 2`",
        "context 4096, parallel 2",
        "--kv-floor q4_0",
        "--api-key, LLAMA_API_KEY",
    ):
        assert value in printed


def test_options_of_the_tune_have_priority(dry, unit, machine):
    """A context or workload in the options replaces that of the baseline."""
    (baseline, _), printed = dry(unit, "--context", "2048", "--parallel", "1")
    assert baseline[baseline.index("--ctx-size") + 1] == "2048"
    assert "context 4096" not in printed

    (baseline, _), _ = dry(unit, workload=machine.workload)
    assert baseline[baseline.index("--ctx-size") + 1] == "2048"


def test_the_section_of_the_model_is_chosen(dry, machine, tmp_path):
    """A router's preset needs no --section if only one section serves MODEL."""
    path = tmp_path / "models.ini"
    path.write_text(
        f"[*]\nngl = 7\n[other]\nmodel = /models/other.gguf\n[mine]\nmodel = {machine.model}\n"
    )

    (baseline, _), _ = dry(path)
    assert baseline[baseline.index("--n-gpu-layers") + 1] == "7"

    _, printed = dry(path, "--section", "other", code=2)
    assert "serves /models/other.gguf" in printed


def test_a_missing_program_is_an_error(dry, machine, tmp_path):
    """Another build would be another baseline, so it is used only with --runtime."""
    path = tmp_path / "mine.sh"
    path.write_text(f"/gone/llama-server -m {machine.model} -ngl 3\n")

    _, printed = dry(path, runtime=None, code=2)
    assert "no such runtime: /gone/llama-server" in printed
    assert "--runtime" in printed

    (baseline, _), printed = dry(path)
    assert str(machine.server) in baseline
    assert f"{machine.server} is started, not /gone/llama-server" in printed


def test_arguments_of_the_baseline_alone_are_listed(dry, machine, tmp_path):
    """A notice lists arguments that do not reach the preset; flags after `--` do."""
    path = tmp_path / "own.sh"
    path.write_text(f"{machine.server} -m {machine.model} --temp -0.7 --no-warmup --fit off\n")

    _, printed = dry(path, "--", "--no-warmup")

    assert "only the baseline has `--temp -0.7`;" in printed
    assert "does not list" not in printed


def test_flags_that_the_help_does_not_list_are_reported(dry, machine, tmp_path):
    """A misspelt flag is reported before a launch fails; values and old spellings are not."""
    path = tmp_path / "own.sh"
    path.write_text(f"{machine.server} -m {machine.model} --ngl 9 --ctx_size 2048 --top_k 1\n")

    _, printed = dry(path)

    assert "the help of llama-server does not list --ngl\n" in printed
