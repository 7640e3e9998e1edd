"""Candidates: equality, order, changes, values read back."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial.trial_strategy import candidates, params

from autofit.trial.candidate import PARAM_ORDER, Candidate, LaunchPlan, Limits


@given(params, st.randoms())
def test_the_order_of_params_does_not_matter(values, random):
    """The same params in any order are the same candidate, with the same key."""
    items = list(values.items())
    random.shuffle(items)

    one, other = Candidate(values), Candidate(dict(items))

    assert one == other
    assert hash(one) == hash(other)
    assert list(one.params) == list(other.params)


@given(params, params)
def test_different_params_are_different_candidates(one, other):
    """Candidates are equal exactly where their params are, types included."""
    same = {k: repr(v) for k, v in one.items()} == {k: repr(v) for k, v in other.items()}

    assert (Candidate(one) == Candidate(other)) == same


def test_params_come_in_the_order_people_read():
    """Known params keep their order, others follow by name."""
    names = ["zeta", "ubatch", "alpha", "n_cpu_moe", "devices"]

    ordered = list(Candidate(dict.fromkeys(names, 1)).params)

    assert ordered == ["devices", "n_cpu_moe", "ubatch", "alpha", "zeta"]


def test_the_key_is_the_same_in_every_process():
    """A key written by one process is found by the next."""
    code = (
        "from autofit.trial.candidate import Candidate;"
        "print(Candidate({'ubatch': 512, 'cache_type_k': 'q8_0', 'flash_attn': 'on'}).key)"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }

    candidate = Candidate({"flash_attn": "on", "cache_type_k": "q8_0", "ubatch": 512})
    assert keys == {candidate.key + "\n"}


@given(candidates)
def test_a_candidate_cannot_be_changed(candidate):
    """Params cannot be set in place."""
    with pytest.raises(TypeError):
        candidate.params["ubatch"] = 1


def test_later_changes_of_the_given_dict_do_not_reach_it():
    """A candidate keeps the params it was made of."""
    given_params = {"ubatch": 512}
    candidate = Candidate(given_params)

    given_params["ubatch"] = 1

    assert candidate.params["ubatch"] == 512


def test_changes_make_another_candidate():
    """A change adds or replaces a param, None removes it, the first stays as it was."""
    first = Candidate({"ubatch": 512, "batch": 2048})

    second = first.with_params(ubatch=1024, batch=None, threads=8)

    assert second == Candidate({"ubatch": 1024, "threads": 8})
    assert first == Candidate({"ubatch": 512, "batch": 2048})


@pytest.mark.parametrize(
    ("value", "expected"), [(8, 8), ("8", 8), ("auto", -1), ("", -1), (8.0, 8), (True, 1)]
)
def test_whole_numbers_are_read_from_what_people_write(value, expected):
    """A number written as text counts, a word such as auto is the default."""
    assert Candidate({"n_gpu_layers": value}).get_int("n_gpu_layers", -1) == expected


def test_absent_params_are_the_default():
    """What is not set is left to the caller's default."""
    assert Candidate({}).get_int("ubatch", 512) == 512
    assert Candidate({}).get_str("cache_type_k", "f16") == "f16"
    assert Candidate({"devices": 3}).get_str("devices", "") == "3"


def test_known_params_are_named_once():
    """No parameter has two places in the order."""
    assert len(set(PARAM_ORDER)) == len(PARAM_ORDER)


def test_a_plan_has_default_limits():
    """Every stage of a launch is bounded by default."""
    plan = LaunchPlan(Candidate({}), ("llama-server", "--port", "{port}"))

    assert plan.limits == Limits()
    assert min(plan.limits.load_s, plan.limits.prompt_s, plan.limits.generate_s) > 0


@given(st.integers(0, 10**7), st.integers(1, 10**7), st.floats(1.0, 1000.0))
def test_the_time_of_a_request_grows_with_its_length_alone(tokens, more, seconds):
    """Never less than the default, and proportionally more for longer requests."""
    limits = Limits(prompt_s=seconds, generate_s=seconds)
    for of in (limits.prompt_limit_for_s, limits.generate_limit_for_s):
        assert seconds <= of(tokens) <= of(tokens + more)
        assert of(tokens * 2) <= 2 * of(tokens)


@pytest.mark.parametrize(
    ("prompt_tokens", "pp_per_s", "predicted_tokens", "tg_per_s"),
    [(131072, 100, 32768, 2), (1_000_000, 100, 8192, 2), (16384, 50, 600, 2)],
)
def test_a_slow_machine_has_time_for_the_longest_requests(
    prompt_tokens, pp_per_s, predicted_tokens, tg_per_s
):
    """At rates at which people still use a model no request is cut off."""
    limits = Limits()

    assert prompt_tokens / pp_per_s < limits.prompt_limit_for_s(prompt_tokens)
    assert predicted_tokens / tg_per_s < limits.generate_limit_for_s(predicted_tokens)


@pytest.mark.parametrize(
    ("tokens", "pp_per_s", "seconds"),
    [
        (131072, 8000, 600.0),  # fast: what takes ten minutes hangs or crawls
        (131072, 400, 4 * 131072 / 400),
        (131072, 50, 600.0 * 131072 / 30000),  # no more than any machine has
        (16384, 20, 600.0),
    ],
)
def test_a_prompt_may_take_four_times_as_long_as_shorter_ones(tokens, pp_per_s, seconds):
    """By their time per token, and within the limit for any prompt."""
    limits = Limits().with_usual_token_time(tokens, 1 / pp_per_s)

    assert limits.prompt_limit_for_s(tokens) == pytest.approx(seconds)
    assert limits.prompt_limit_for_s(100) == limits.prompt_limit_for_s(tokens)


@given(st.integers(1, 10**7), st.floats(0.0, 10.0), st.floats(1.0, 1000.0))
def test_no_rate_makes_a_limit_shorter_than_the_default(tokens, token_s, seconds):
    """Nor longer than that of any prompt of that length."""
    limits = Limits(prompt_s=seconds)

    assert (
        seconds
        <= limits.with_usual_token_time(tokens, token_s).prompt_limit_for_s(tokens)
        <= (limits.prompt_limit_for_s(tokens) * (1 + 1e-9))
    )
