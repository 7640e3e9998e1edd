"""The plans of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.runtime.server.request_plan import (
    CONTEXT_RESERVE_TOKENS,
    FullContextCheck,
    make_full_context_request,
    plan_fit_test,
    plan_measurement,
    plan_proof,
    plan_without_measurement,
)
from autofit.trial.workload import Request, Workload

REQUESTS = st.lists(
    st.builds(Request, st.integers(1, 40_000), st.integers(1, 2_000), st.floats(0.1, 9)),
    min_size=1, max_size=4,
)  # fmt: skip
WORKLOADS = st.builds(
    lambda requests: Workload("any", context=65536, parallel=1, requests=tuple(requests)), REQUESTS
)
UBATCHES = st.sampled_from([1, 128, 512, 2048, 4096])


def test_plan_without_measurement_has_no_requests():
    """A plan without measurement ends when the server is ready."""
    assert plan_without_measurement().requests == ()


def test_every_plan_has_a_fidelity():
    """The fit test has fidelity `load`, the full workload `full`, and others `short`."""
    workload = Workload("any", context=8192, parallel=1, requests=(Request(100, 90),))

    assert plan_fit_test(workload, 512).fidelity == "load"
    assert plan_without_measurement().fidelity == "short"
    assert plan_measurement(workload, 512, repeats=1, is_short=True).fidelity == "short"
    assert plan_measurement(workload, 512, repeats=1).fidelity == "full"
    assert plan_proof(workload, 8192).fidelity == "full"


@given(WORKLOADS, UBATCHES)
def test_fit_test_has_two_ubatches_and_the_longest_prompt(workload, ubatch):
    """The fit test is a warm-up as long as two ubatches and as the longest prompt."""
    (proof,) = plan_fit_test(workload, ubatch).requests

    assert proof.prompt_tokens == max(2 * ubatch, *(r.prompt_tokens for r in workload.requests))
    assert proof.is_warmup
    assert proof.predicted_tokens >= 1


@given(WORKLOADS, UBATCHES, st.integers(1, 5))
def test_measurement_repeats_all_requests_after_a_fit_test(workload, ubatch, repeats):
    """After a warm-up, all requests come in order, as often as planned."""
    first, *rest = plan_measurement(workload, ubatch, repeats=repeats).requests

    assert (first,) == plan_fit_test(workload, ubatch).requests
    assert [(r.prompt_tokens, r.predicted_tokens) for r in rest] == [
        (r.prompt_tokens, r.predicted_tokens) for r in workload.requests
    ] * repeats
    assert [r.request for r in rest] == [*range(len(workload.requests))] * repeats
    assert not any(r.is_warmup for r in rest)


@given(WORKLOADS, UBATCHES)
def test_short_plan_only_generates_less(workload, ubatch):
    """A short plan has the same prompts and no longer generation."""
    full = plan_measurement(workload, ubatch, repeats=2).requests
    short = plan_measurement(workload, ubatch, repeats=2, is_short=True).requests

    assert [r.prompt_tokens for r in short] == [r.prompt_tokens for r in full]
    for small, large in zip(short[1:], full[1:], strict=True):
        assert 1 <= small.predicted_tokens <= min(64, large.predicted_tokens)


@given(WORKLOADS, st.integers(80, 200_000))
def test_proof_fills_the_context_twice(workload, slot_context):
    """Prompt, longest generation and reserve are the whole context."""
    first, second = plan_proof(workload, slot_context).requests

    assert first == second
    assert first.predicted_tokens == min(
        max(r.predicted_tokens for r in workload.requests), slot_context // 2
    )
    used = first.prompt_tokens + first.predicted_tokens + CONTEXT_RESERVE_TOKENS
    assert used == slot_context or first.prompt_tokens == 1


@pytest.mark.parametrize(
    ("free_mib", "is_due"),
    [
        ({"CUDA0": 99.0}, True),
        ({"CUDA0": 100.0}, False),
        ({"CUDA0": None}, True),
        ({}, True),
        ({"CUDA0": 500.0, "CUDA1": None}, False),
        ({"CUDA0": 500.0, "CUDA1": 0.0}, False),
    ],
)
def test_full_context_check_depends_on_free_memory(free_mib, is_due):
    """The check is due below a limit; without a counter the expected memory decides."""
    check = FullContextCheck(make_full_context_request(4096), {"CUDA0": 100.0}, {"CUDA0": 50.0})

    assert check.is_due(free_mib) == is_due


@given(st.integers(80, 200_000))
def test_full_context_request_fills_a_slot(slot_context):
    """Prompt, a short generation and the reserve are the context of a slot."""
    request = make_full_context_request(slot_context)

    used = request.prompt_tokens + request.predicted_tokens + CONTEXT_RESERVE_TOKENS
    assert used == slot_context


@given(WORKLOADS, UBATCHES, st.integers(1, 50_000))
def test_requests_are_cut_to_a_slot(workload, ubatch, slot_context):
    """Requests are cut to a small context, to at least one token."""
    cut = plan_measurement(workload, ubatch, repeats=1).within(slot_context)

    whole = plan_measurement(workload, ubatch, repeats=1)
    for small, large in zip(cut.requests, whole.requests, strict=True):
        assert 1 <= small.prompt_tokens <= large.prompt_tokens
        assert 1 <= small.predicted_tokens <= large.predicted_tokens
        if slot_context >= 2 * CONTEXT_RESERVE_TOKENS + 4:
            assert small.prompt_tokens + small.predicted_tokens <= slot_context
