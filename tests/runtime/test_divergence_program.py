"""The runtime's program for divergence: its command and its output."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from fakes.machine import Device, Machine
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.planner.divergence_program import (
    Divergence,
    DivergenceLauncher,
    base_file_bytes,
    read_divergence,
)
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.send_requests import PromptSource
from autofit.trial.candidate import Candidate
from autofit.trial.workload import Request, Workload

DATA = Path(__file__).parents[1] / "data" / "divergence"
RULES = load_dialect("llama_server").divergence
# For a model of 270 million weights with q8_0 KV.
OUTPUT = (DATA / "llama-perplexity-b11434.txt").read_text()
WORKLOAD = Workload("sample", context=4096, parallel=2, requests=(Request(256, 32),))
MODEL = build_model(ModelShape(layers=8, experts=8, used=2, embd=512, ff=256, vocab=512))


@pytest.fixture
def program(tmp_path) -> DivergenceLauncher:
    """Return a launcher of reference runs on a simulated machine."""
    machine = Machine("scores", (Device("CUDA0"),))
    fake = FakeMachine(tmp_path, machine, with_perplexity=True)
    runtime = find_runtime(fake.server, cache=tmp_path / "cache")
    launcher = Launcher(
        runtime, fake.write_model(MODEL), WORKLOAD, PromptSource(" "), extra_args=["--metrics"]
    )
    return DivergenceLauncher(
        launcher=launcher,
        base=tmp_path / "base",
        text=tmp_path / "text",
        chunks=3,
        is_reference=True,
    )


def test_output_is_read():
    """The tokens of the later halves of the pieces are counted."""
    agreement = pytest.approx(0.92941)
    assert read_divergence(OUTPUT, RULES) == Divergence(510, agreement, 0.009037, 0.106681)


@pytest.mark.parametrize("lost", ["computing over", "Mean    KLD", "Maximum KLD", "Same top p"])
def test_incomplete_output_is_ignored(lost):
    """An incomplete output has no divergence."""
    kept = "\n".join(line for line in OUTPUT.splitlines() if lost not in line)

    assert read_divergence(kept, RULES) is None


def test_size_of_the_base_file():
    """The size is two bytes per token and position: 267,395,076 bytes for two pieces."""
    assert 2 * base_file_bytes(RULES, 262144) == pytest.approx(267_395_076, rel=0.01)


def test_command_has_the_settings_of_the_candidate(program):
    """Placement and KV types are the candidate's; context, batches and slots are fixed."""
    candidate = Candidate(
        {
            "context": 4096,
            "parallel": 2,
            "n_gpu_layers": 99,
            "n_cpu_moe": 4,
            "ubatch": 2048,
            "cache_type_k": "q8_0",
            "cache_type_v": "q8_0",
        }
    )
    plan = program.plan(candidate, as_served=False)
    words = plan.argv

    assert Path(words[0]).name == program.program == "llama-perplexity"
    pairs = dict(pairwise(words))
    flags = ("--ctx-size", "--batch-size", "--ubatch-size", "--parallel", "--n-cpu-moe")
    assert [pairs[flag] for flag in flags] == ["512", "512", "128", "1", "4"]
    assert (pairs["--cache-type-k"], pairs["--fit"]) == ("q8_0", "off")
    assert (pairs["--chunks"], pairs["-f"]) == ("3", str(program.text))
    assert pairs["--kl-divergence-base"] == str(program.base)
    assert not {"--port", "--host", "--metrics", "--kl-divergence"} & set(words)

    scoring = replace(program, is_reference=False).plan(candidate, as_served=False)
    assert scoring.argv[-1] == "--kl-divergence"
    assert "-f" not in scoring.argv


def test_verbatim_command_keeps_its_words_and_automatic_fit(program):
    """A verbatim command keeps the user's words and the runtime's automatic fit."""
    own = replace(program.launcher, baseline_args=["--swa-full"])
    given = replace(program, launcher=own)

    words = given.plan(Candidate({}), is_verbatim=True, as_served=True).argv

    assert "--swa-full" in words
    assert "--fit" not in words
    assert "--swa-full" not in given.plan(Candidate({}), as_served=True).argv
