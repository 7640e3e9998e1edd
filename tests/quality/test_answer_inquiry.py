"""Whether a winner's answers are checked against the baseline's, on processes that answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fakes.machine import Device, Machine, RuntimeTraits
from fakes.machine_fixtures import FakeMachine
from fakes.synthetic_model import ModelShape, build_model
from session.task_sample import runner, task

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.quality.answer_check import AnswerCheck, judge_answers
from autofit.quality.answer_inquiry import OutputEvaluator
from autofit.quality.interview import PromptSet, interviewed
from autofit.runtime.server.request_plan import plan_without_measurement
from autofit.session.finalist import RUNTIME_FIT, Finalist
from autofit.trial.candidate import Candidate
from autofit.trial.purpose import TrialPurpose
from autofit.trial.workload import Request, Workload

WORKLOAD = Workload("sample", context=2048, parallel=1, requests=(Request(300, 16),))
MODEL = build_model(ModelShape(layers=8, experts=8, used=2, embd=512, ff=256, vocab=512))
BASELINE = Finalist(Candidate({"context": 2048, "parallel": 1}), RUNTIME_FIT, is_verbatim=True)
WINNER = Finalist(
    BASELINE.candidate.with_params(n_gpu_layers=99, n_cpu_moe=4, ubatch=256), "balanced"
)
TRAITS = RuntimeTraits(
    kv_text_change={"q8_0": 0.0, "q4_0": 0.2}, kv_logprob_error={"q8_0": 0.01, "q4_0": 0.25}
)


@pytest.fixture
def fake(tmp_path):
    """A simulated machine on which q4_0 changes one token in five."""
    return FakeMachine(tmp_path, Machine("answers", (Device("CUDA0"),), runtime=TRAITS))


@pytest.fixture
def about(fake):
    """The task on the fake machine."""
    return task(fake.write_model(MODEL), fake.server, WORKLOAD)


def checked(trials, about, winner: Finalist, baseline: Finalist = BASELINE) -> AnswerCheck:
    """The check of a run that asks nothing else."""
    return OutputEvaluator(trials, about, baseline).check(winner)


def _with_kv(kind: str) -> Finalist:
    params = {"cache_type_k": kind, "cache_type_v": kind, "flash_attn": "on"}
    return replace(WINNER, candidate=WINNER.candidate.with_params(**params))


def test_a_winner_that_answers_the_same_holds(fake, about, tmp_path):
    """Other host layers and another ubatch leave the answers as they are: two launches show it."""
    trials = runner(about, tmp_path / "study")

    found = checked(trials, about, WINNER)

    assert (found.verdict, found.holds, found.quality) == ("equal", True, None)
    assert found.words == ("the same answers as the baseline to 8 prompts",)
    assert [trial.phase for trial in trials.trials] == ["prove", "prove"]
    assert fake.launches == 2


@pytest.mark.parametrize("fault", ["garbage", "wrong-text"])
def test_a_winner_with_corrupted_answers_does_not(fault, fake, about, tmp_path):
    """Nonsense from the winner's settings is found, and its first place shown."""
    fake.fail(fault, when={"n_cpu_moe": ["==", 4]})

    found = checked(runner(about, tmp_path / "study"), about, WINNER)

    assert (found.verdict, found.holds) == ("different", False)
    assert found.words[0].startswith("OTHER ANSWERS than the baseline")
    assert "first difference in prompt 1" in found.words[-1]
    assert json.loads(json.dumps(found.to_dict()))["equality"]["first"]["prompt"] == 0


def test_narrow_kv_types_are_scored_against_f16(about, tmp_path):
    """A type that moves chances a little is good, one that changes tokens is poor."""
    trials = runner(about, tmp_path / "study")

    wide = checked(trials, about, _with_kv("q8_0"))
    narrow = checked(trials, about, _with_kv("q4_0"))

    assert (wide.verdict, narrow.verdict) == ("good", "poor")
    assert wide.quality.agreement == 1.0
    assert wide.quality.asked == narrow.quality.asked > 0
    assert narrow.words[1].startswith("not good enough: ")


@pytest.fixture
def scoring(tmp_path):
    """The same machine with llama-perplexity beside the server."""
    machine = Machine("scores", (Device("CUDA0"),), runtime=TRAITS)
    return FakeMachine(tmp_path, machine, with_perplexity=True)


@pytest.fixture
def scored(scoring):
    """The task on it."""
    return task(scoring.write_model(MODEL), scoring.server, WORKLOAD)


def test_the_runtimes_own_program_scores_kv_types(scoring, scored, tmp_path):
    """Where llama-perplexity is there, its figures count, and it is named with them."""
    trials = runner(scored, tmp_path / "study")

    wide = checked(trials, scored, _with_kv("q8_0"))
    narrow = checked(trials, scored, _with_kv("q4_0"))

    assert (wide.verdict, narrow.verdict) == ("good", "poor")
    assert wide.to_dict()["quality"]["source"] == "llama-perplexity"
    # Eight pieces of 512 tokens, of whose later half all but the last have a next one.
    assert wide.quality.tokens == 8 * 255
    assert (narrow.quality.agreement, narrow.quality.mean_divergence) == (0.8, 0.0625)
    assert narrow.words[0].startswith(
        "against the baseline 80.0% of 2040 tokens are the same, their chances diverge by "
        "0.0625 nats (llama-perplexity)"
    )
    assert {trial.phase for trial in trials.trials} == {"prove"}
    # PromptSet and program for each type, and again for f16 beside each.
    assert scoring.launches == len(trials.study.started())
    assert not list(trials.study.path.glob("kept-chances*"))


def test_a_program_that_fails_leaves_the_servers_own_figures(scoring, scored, tmp_path):
    """Without an answer of llama-perplexity the score is by n_probs, and the reason is told."""
    scoring.fail("perplexity")

    found = checked(runner(scored, tmp_path / "study"), scored, _with_kv("q8_0"))

    assert (found.verdict, found.quality.source) == ("good", "n_probs")
    assert found.words[1].startswith("llama-perplexity told nothing: ")
    assert "you need at least 1024 tokens" in found.words[1]


def test_a_score_that_was_made_launches_nothing_again(scoring, scored, tmp_path):
    """A resumed run reads the score from the logs that the study has kept."""
    trials = runner(scored, tmp_path / "study")
    with trials.study:
        first = checked(trials, scored, _with_kv("q8_0"))
    launches = scoring.launches

    trials = runner(scored, tmp_path / "study")
    with trials.study:
        again = checked(trials, scored, _with_kv("q8_0"))

    assert again == first
    assert again.quality.source == "llama-perplexity"
    assert scoring.launches == launches


def test_without_time_the_program_is_not_started(scoring, scored, tmp_path):
    """A score that the budget has no room for is left out, and that is said."""
    trials = runner(scored, tmp_path / "study")
    trials.budget.total_s = 0.001

    found = checked(trials, scored, _with_kv("q8_0"))

    assert found.quality.source == "n_probs"
    assert found.words[1] == "no time was left to score the KV type over all tokens"
    assert scoring.launches == 2


def test_a_check_that_was_made_launches_nothing_again(fake, about, tmp_path):
    """A resumed run reads the answers that the study has kept."""
    trials = runner(about, tmp_path / "study")
    with trials.study:
        first = checked(trials, about, _with_kv("q8_0"))
    launches = fake.launches

    trials = runner(about, tmp_path / "study")
    with trials.study:
        again = checked(trials, about, _with_kv("q8_0"))

    assert again == first
    assert fake.launches == launches


def test_a_baseline_that_does_not_hold_is_replaced(fake, about, tmp_path):
    """Where the baseline fails, the winner's own placement with f16 KV is the reference."""
    fake.fail("oom-kv", launches=[1])
    trials = runner(about, tmp_path / "study")

    found = checked(trials, about, _with_kv("q8_0"))

    assert (found.verdict, found.reference) == ("good", "the winner with f16 KV")
    assert trials.trials[1].candidate == _with_kv("f16").candidate


def test_a_baseline_with_a_narrow_cache_is_given_a_wide_one(about, tmp_path):
    """The reference has f16 KV, though the user's own command has not."""
    own = replace(BASELINE, candidate=_with_kv("q4_0").candidate)

    found = checked(runner(about, tmp_path / "study"), about, _with_kv("q8_0"), own)

    assert (found.verdict, found.reference) == ("good", "the baseline with f16 KV")


def test_without_a_reference_nothing_is_claimed(fake, about, tmp_path):
    """Answers that cannot be compared are neither right nor wrong."""
    fake.fail("http-500")

    found = checked(runner(about, tmp_path / "study"), about, WINNER)

    assert (found.verdict, found.holds) == ("unknown", None)


@pytest.mark.runtime
@pytest.mark.timeout(120)
def test_the_real_runtime_gives_the_same_answers_and_another_model_does_not(llama_cpp, tmp_path):
    """Another ubatch answers the same, four bits of KV nearly so, other weights do not."""
    workload = replace(WORKLOAD, context=1024)
    told = {}
    for seed in (1, 2):
        model = tmp_path / f"seed-{seed}.gguf"
        spec = SynthSpec(layers=3, experts=8, used=2, embd=256, heads=4, vocab=600, seed=seed)
        write_model(spec, model)
        about = task(model, llama_cpp / "llama-server", workload)
        trials = runner(about, tmp_path / f"study-{seed}")
        interview = PromptSet(workload, 1024)
        base = Candidate({"context": 1024, "parallel": 1, "threads": 1})
        wanted = [{}, {"ubatch": 64}, {"cache_type_k": "q4_0"}] if seed == 1 else [{}]
        for params in wanted:
            trial, said = interviewed(
                *(trials, interview, TrialPurpose("prove", "answers")),
                *(base.with_params(**params), plan_without_measurement()),
                layout="balanced",
            )
            assert trial.is_completed, trial.outcome
            told[seed, *params] = said
    reference = told.pop((1,))

    found = {
        key: judge_answers(reference, said, reference_words="it", may_differ=False, is_sparse=True)
        for key, said in told.items()
    }

    assert found[1, "ubatch"].verdict in ("equal", "rounding")
    assert found[1, "cache_type_k"].equality.mean_divergence > 0
    assert found[2,].verdict == "different"
    assert found[2,].equality.mean_divergence > found[1, "cache_type_k"].equality.mean_divergence
