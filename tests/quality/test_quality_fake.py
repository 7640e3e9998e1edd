"""Comparison of answers of fake servers: right, corrupted or changed by the KV type."""

from __future__ import annotations

import pytest
from fakes.machine import Device, Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model

from autofit.process.managed_process import Readiness
from autofit.quality.answer_check import score_answers
from autofit.quality.equality import compare_answers
from autofit.quality.recorded_answer import record_answers
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.server.client import RequestFailure
from autofit.runtime.server.launcher import Launcher
from autofit.runtime.server.send_requests import PromptSource
from autofit.runtime.server.server_process import start_server
from autofit.trial.candidate import Candidate
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=2048, parallel=1, requests=(Request(256, 32),))
MODEL = build_model(ModelShape(layers=8, experts=8, used=2, embd=512, ff=256, vocab=512))
BASE = Candidate({"n_gpu_layers": 99, "n_cpu_moe": 4, "context": 2048})
PROMPTS = [f"The {word} kept two ledgers, and" for word in ("master", "niece", "captain", "cook")]
TRAITS = RuntimeTraits(
    kv_text_change={"q8_0": 0.0, "q4_0": 0.2}, kv_logprob_error={"q8_0": 0.01, "q4_0": 0.25}
)


@pytest.fixture
def fake(tmp_path):
    """Return a simulated machine on which q4_0 changes one token in five."""
    return FakeMachine(tmp_path, Machine("answers", (Device("CUDA0"),), runtime=TRAITS))


@pytest.fixture
def ask(fake, tmp_path):
    """Return a function that starts a server with some params and returns its answers."""
    runtime = find_runtime(fake.server)
    launcher = Launcher(runtime, fake.write_model(MODEL), WORKLOAD, PromptSource(" "))

    def run(**params):
        plan = launcher.plan(BASE.with_params(**params), as_served=False)
        with start_server(plan, runtime.dialect, tmp_path / "server.log") as server:
            assert server.wait_ready() is Readiness.READY
            return record_answers(
                server.client, PROMPTS, 24, prompt_limit_s=20.0, generate_limit_s=20.0
            )

    return run


def test_host_layers_and_ubatch_change_no_answers(ask):
    """With other host layers and another ubatch all tokens are the same."""
    reference = ask()

    result = compare_answers(reference, ask(n_cpu_moe=2, ubatch=256))

    assert (result.verdict, result.identical, result.tokens) == ("equal", 4, 96)


@pytest.mark.parametrize("fault", ["garbage", "wrong-text", "empty-text"])
def test_corrupted_answers_are_different(ask, fake, fault):
    """Corrupted output is detected, and its first position is shown."""
    reference = ask()
    fake.fail(fault)

    result = compare_answers(reference, ask())

    assert result.verdict == "different"
    assert result.first.prompt == 0
    assert result.first.reference != result.first.other


def test_kv_types_are_scored(ask):
    """A type that changes tokens scores below one that only moves their probabilities."""
    reference = ask(cache_type_k="f16", cache_type_v="f16", flash_attn="on")

    wide, narrow = (
        score_answers(reference, ask(cache_type_k=kind, cache_type_v=kind, flash_attn="on"))
        for kind in ("q8_0", "q4_0")
    )

    assert wide.agreement == 1.0
    assert wide.shortfalls() == []
    assert narrow.agreement < wide.agreement
    assert narrow.mean_divergence > wide.mean_divergence
    assert narrow.shortfalls() != []


def test_failed_request_is_returned(ask, fake):
    """A server that does not answer gives a failure, not half of the answers."""
    fake.fail("http-500")

    assert isinstance(ask(), RequestFailure)
