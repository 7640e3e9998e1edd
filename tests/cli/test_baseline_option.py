"""A user's own file as the baseline of a tune: what it decides for all launches."""

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
    """One card."""
    return TuneMachine(tmp_path_factory.mktemp("machine"), 2600.0)


@pytest.fixture
def dry(cli, machine):
    """Begins a tune on paper; the commands, and what was told beside."""

    def run(baseline, *more, code=0, **changed):
        words = machine.words(None, **{"workload": None, **changed})
        ended = cli(*words, "--dry-run", "--baseline", baseline, *more)
        assert ended.code == code, ended.err
        lines = [line for line in ended.out.splitlines() if not line.startswith("#")]
        return [shlex.split(line) for line in lines], ended.err

    return run


@pytest.fixture
def unit(machine, tmp_path):
    """The user's systemd unit."""
    path = tmp_path / "llama.service"
    path.write_text(OWN.format(server=machine.server, model=machine.model))
    return path


def test_what_surrounds_the_baseline_is_every_launchs(dry, unit):
    """Variables and wrapper are the same, so that only settings differ, and it is said."""
    (baseline, first), told = dry(unit)

    for words in (baseline, first):
        assert "GGML_CUDA_NO_PINNED=1" in words
        assert words[words.index("nice") :][:3] == ["nice", "-n", "2"]
        assert (words[words.index("--ctx-size") + 1], words[words.index("--parallel") + 1]) == (
            "4096",
            "2",
        )
        assert not any("secret" in word for word in words)
    assert baseline[baseline.index("--n-cpu-moe") + 1] == "12"
    assert "set for every launch, as for the baseline: GGML_CUDA_NO_PINNED=1" in told
    assert "every launch runs under `nice -n 2`" in told
    assert "the task has the baseline's own context 4096, parallel 2" in told
    assert "KV type q4_0 is narrower than what is searched" in told
    assert "never written down: --api-key, LLAMA_API_KEY" in told


def test_the_options_of_the_tune_come_first(dry, unit, machine):
    """A context, or a workload, of the user's choice is the task."""
    (baseline, _), told = dry(unit, "--context", "2048", "--parallel", "1")
    assert baseline[baseline.index("--ctx-size") + 1] == "2048"
    assert "the baseline's own" not in told

    (baseline, _), _ = dry(unit, workload=machine.workload)
    assert baseline[baseline.index("--ctx-size") + 1] == "2048"


def test_of_several_servers_the_models_own_is_taken(dry, machine, tmp_path):
    """A router's preset needs no --section where only one section serves MODEL."""
    path = tmp_path / "models.ini"
    path.write_text(
        f"[*]\nngl = 7\n[other]\nmodel = /models/other.gguf\n[mine]\nmodel = {machine.model}\n"
    )

    (baseline, _), _ = dry(path)
    assert baseline[baseline.index("--n-gpu-layers") + 1] == "7"

    _, told = dry(path, "--section", "other", code=2)
    assert "serves /models/other.gguf" in told


def test_a_program_that_is_not_here_is_told(dry, machine, tmp_path):
    """Another build would be another baseline: it is not taken in silence."""
    path = tmp_path / "mine.sh"
    path.write_text(f"/gone/llama-server -m {machine.model} -ngl 3\n")

    _, told = dry(path, runtime=None, code=2)
    assert "no such runtime: /gone/llama-server" in told
    assert "--runtime" in told

    (baseline, _), told = dry(path)
    assert str(machine.server) in baseline
    assert f"{machine.server} is started, not /gone/llama-server" in told


def test_words_that_no_other_launch_has_are_told(dry, machine, tmp_path):
    """Sampling of the baseline alone does not reach the preset, unless every launch has it."""
    path = tmp_path / "own.sh"
    path.write_text(f"{machine.server} -m {machine.model} --temp -0.7 --no-warmup --fit off\n")

    _, told = dry(path, "--", "--no-warmup")

    assert "only the baseline has `--temp -0.7`; what" in told
    assert "does not list" not in told


def test_flags_that_the_help_does_not_list_are_told(dry, machine, tmp_path):
    """A misspelt flag is told before a launch fails of it; values and old spellings are not."""
    path = tmp_path / "own.sh"
    path.write_text(f"{machine.server} -m {machine.model} --ngl 9 --ctx_size 2048 --top_k 1\n")

    _, told = dry(path)

    assert "the help of llama-server does not list --ngl\n" in told
