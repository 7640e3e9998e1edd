"""Checks of candidates' answers against the baseline's, on fake and real servers."""

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
from autofit.quality.output_evaluator import OutputEvaluator
from autofit.quality.prompt_set import PromptSet, collect_answers
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
    """Return a simulated machine on which q4_0 changes one token in five."""
    return FakeMachine(tmp_path, Machine("answers", (Device("CUDA0"),), runtime=TRAITS))


@pytest.fixture
def about(fake):
    """Return the task on the fake machine."""
    return task(fake.write_model(MODEL), fake.server, WORKLOAD)


def checked(trials, about, winner: Finalist, baseline: Finalist = BASELINE) -> AnswerCheck:
    """Return the check of a run that checks nothing else."""
    return OutputEvaluator(trials, about, baseline).check(winner)


def _with_kv(kind: str) -> Finalist:
    params = {"cache_type_k": kind, "cache_type_v": kind, "flash_attn": "on"}
    return replace(WINNER, candidate=WINNER.candidate.with_params(**params))


def test_winner_with_the_same_answers_is_acceptable(fake, about, tmp_path):
    """Other host layers and another ubatch change no answer, which two launches show."""
    trials = runner(about, tmp_path / "study")

    found = checked(trials, about, WINNER)

    assert (found.verdict, found.is_acceptable, found.quality) == ("equal", True, None)
    assert (found.reference, found.equality.prompts) == ("the baseline", 8)
    assert [trial.phase for trial in trials.trials] == ["prove", "prove"]
    assert fake.launches == 2


@pytest.mark.parametrize("fault", ["garbage", "wrong-text"])
def test_winner_with_corrupted_answers_is_not(fault, fake, about, tmp_path):
    """Corrupted output of the winner's settings is found, with its first position."""
    fake.fail(fault, when={"n_cpu_moe": ["==", 4]})

    found = checked(runner(about, tmp_path / "study"), about, WINNER)

    assert (found.verdict, found.is_acceptable) == ("different", False)
    assert json.loads(json.dumps(found.to_dict()))["equality"]["first"]["prompt"] == 0


def test_narrow_kv_types_are_scored_against_f16(about, tmp_path):
    """A type that moves probabilities a little is good, one that changes tokens is poor."""
    trials = runner(about, tmp_path / "study")

    wide = checked(trials, about, _with_kv("q8_0"))
    narrow = checked(trials, about, _with_kv("q4_0"))

    assert (wide.verdict, narrow.verdict) == ("good", "poor")
    assert wide.quality.agreement == 1.0
    assert wide.quality.asked == narrow.quality.asked > 0


@pytest.fixture
def scoring(tmp_path):
    """Return the same machine with llama-perplexity in the server's folder."""
    machine = Machine("scores", (Device("CUDA0"),), runtime=TRAITS)
    return FakeMachine(tmp_path, machine, with_perplexity=True)


@pytest.fixture
def scored(scoring):
    """Return the task on it."""
    return task(scoring.write_model(MODEL), scoring.server, WORKLOAD)


def test_program_of_the_runtime_scores_kv_types(scoring, scored, tmp_path):
    """If there is llama-perplexity, its figures count and it is their source."""
    trials = runner(scored, tmp_path / "study")

    wide = checked(trials, scored, _with_kv("q8_0"))
    narrow = checked(trials, scored, _with_kv("q4_0"))

    assert (wide.verdict, narrow.verdict) == ("good", "poor")
    assert wide.to_dict()["quality"]["source"] == "llama-perplexity"
    # Eight pieces of 512 tokens, of whose later half all but the last have a next one.
    assert wide.quality.tokens == 8 * 255
    assert (narrow.quality.agreement, narrow.quality.mean_divergence) == (0.8, 0.0625)
    assert {trial.phase for trial in trials.trials} == {"prove"}
    # Prompts for the baseline and each type; the program for each type and f16 with it.
    assert scoring.launches == len(trials.study.started())
    assert not list(trials.study.path.glob("kept-chances*"))


def test_failed_program_leaves_the_figures_of_the_server(scoring, scored, tmp_path):
    """If llama-perplexity fails, the score is by n_probs and the reason is shown."""
    scoring.fail("perplexity")

    found = checked(runner(scored, tmp_path / "study"), scored, _with_kv("q8_0"))

    assert (found.verdict, found.quality.source) == ("good", "n_probs")
    assert "you need at least 1024 tokens" in found.messages[1]


def test_resume_repeats_no_launch_of_a_score(scoring, scored, tmp_path):
    """A resumed run reads the score from the logs of the study."""
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


def test_program_is_not_started_without_budget(scoring, scored, tmp_path):
    """A score that the budget has no room for is left out, and a message says so."""
    trials = runner(scored, tmp_path / "study")
    trials.budget.total_s = 0.001

    found = checked(trials, scored, _with_kv("q8_0"))

    assert found.quality.source == "n_probs"
    assert "budget used up" in found.messages[1]
    assert scoring.launches == 2


def test_resume_repeats_no_launch_of_a_check(fake, about, tmp_path):
    """A resumed run reads the answers from the study."""
    trials = runner(about, tmp_path / "study")
    with trials.study:
        first = checked(trials, about, _with_kv("q8_0"))
    launches = fake.launches

    trials = runner(about, tmp_path / "study")
    with trials.study:
        again = checked(trials, about, _with_kv("q8_0"))

    assert again == first
    assert fake.launches == launches


def test_a_winner_needs_no_reference_that_a_finalist_had(fake, about, tmp_path):
    """A resume that asks about the winner finds the f16 reference of an earlier finalist."""
    fake.fail("oom-kv", launches=[1])
    found = []
    for subject in ("finalist", "winner"):
        trials = runner(about, tmp_path / "study")
        with trials.study:
            evaluator = OutputEvaluator(trials, about, BASELINE)
            found.append((evaluator.check(_with_kv("q8_0"), subject), fake.launches))
    (first, launches), (again, launches_then) = found

    assert (first.reference, again.reference) == (
        "a finalist with f16 KV",
        "the winner with f16 KV",
    )
    assert (first.verdict, first.quality) == (again.verdict, again.quality)
    assert first.verdict == "good"
    assert launches_then == launches == 3


def test_failed_baseline_is_replaced_as_the_reference(fake, about, tmp_path):
    """If the baseline fails, the winner's own placement with f16 KV is the reference."""
    fake.fail("oom-kv", launches=[1])
    trials = runner(about, tmp_path / "study")

    found = checked(trials, about, _with_kv("q8_0"))

    assert (found.verdict, found.reference) == ("good", "the winner with f16 KV")
    assert trials.trials[1].candidate == _with_kv("f16").candidate


def test_reference_has_a_wide_cache(about, tmp_path):
    """The reference has f16 KV where the user's own command has a narrower type."""
    own = replace(BASELINE, candidate=_with_kv("q4_0").candidate)

    found = checked(runner(about, tmp_path / "study"), about, _with_kv("q8_0"), own)

    assert (found.verdict, found.reference) == ("good", "the baseline with f16 KV")


def test_verdict_without_a_reference_is_unknown(fake, about, tmp_path):
    """Answers that cannot be compared are neither right nor wrong."""
    fake.fail("http-500")

    found = checked(runner(about, tmp_path / "study"), about, WINNER)

    assert (found.verdict, found.is_acceptable) == ("unknown", None)


@pytest.mark.runtime
@pytest.mark.timeout(120)
def test_real_runtime_answers_equally_and_another_model_does_not(llama_cpp, tmp_path):
    """Another ubatch changes no answer, four bits of KV few, other weights all."""
    workload = replace(WORKLOAD, context=1024)
    found_answers = {}
    for seed in (1, 2):
        model = tmp_path / f"seed-{seed}.gguf"
        spec = SynthSpec(layers=3, experts=8, used=2, embd=256, heads=4, vocab=600, seed=seed)
        write_model(spec, model)
        about = task(model, llama_cpp / "llama-server", workload)
        trials = runner(about, tmp_path / f"study-{seed}")
        prompts = PromptSet(workload, 1024)
        base = Candidate({"context": 1024, "parallel": 1, "threads": 1})
        changes = [{}, {"ubatch": 64}, {"cache_type_k": "q4_0"}] if seed == 1 else [{}]
        for params in changes:
            trial, answers = collect_answers(
                *(trials, prompts, TrialPurpose("prove", "answers")),
                *(base.with_params(**params), plan_without_measurement()),
                layout="balanced",
            )
            assert trial.is_completed, trial.outcome
            found_answers[seed, *params] = answers
    reference = found_answers.pop((1,))

    found = {
        key: judge_answers(
            reference, answers, reference_name="it", may_differ=False, is_sparse=True
        )
        for key, answers in found_answers.items()
    }

    assert found[1, "ubatch"].verdict in ("equal", "rounding")
    assert found[1, "cache_type_k"].equality.mean_divergence > 0
    assert found[2,].verdict == "different"
    assert found[2,].equality.mean_divergence > found[1, "cache_type_k"].equality.mean_divergence
