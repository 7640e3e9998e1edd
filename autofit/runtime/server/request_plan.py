"""How much a launch is asked: which requests, how long, how often.

A launch costs its load time whatever follows, so the cheaper efforts only save on requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from autofit.runtime.server.client import Client, RequestFailure
from autofit.trial.candidate import Limits
from autofit.trial.trial import Fidelity
from autofit.trial.workload import Workload

PlanName = Literal["fit", "ask", "short", "full", "prove"]

# Tokens the runtime needs beside prompt and generation at the end of the context.
CONTEXT_RESERVE_TOKENS = 64
# A device's run-time pools grow with the first full ubatch; two of them also show what the
# second one adds.
FIT_PROOF_UBATCHES = 2
_FIT_PREDICTED_TOKENS = 8
_SHORT_PREDICTED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request to send.

    `request` is its index in the workload, -1 for none of them; `repeat` counts how often
    the workload's requests have been sent before.
    """

    prompt_tokens: int
    predicted_tokens: int
    request: int = -1
    is_warmup: bool = False
    repeat: int = 0


class OutputRequests(Protocol):
    """What is asked for its answers, after everything that is measured."""

    def ask(self, client: Client, limits: Limits) -> RequestFailure | None:
        """Ask a ready server and keep what it says; the failure that ended it, if any."""
        ...


@dataclass(frozen=True, slots=True)
class FullContextCheck:
    """A request that fills the context, sent where little memory is left after all others.

    A launch that keeps next to nothing at the workload's prompts may die at full context. The
    server is up by then, so asking it costs a prompt, and not a launch that proves it later.

    Attributes:
        request: what fills a slot.
        below_mib: by device, what must be left for it not to be asked.
        expected_mib: by device, what is expected to be left, where no counter tells.
    """

    request: PlannedRequest
    below_mib: Mapping[str, float]
    expected_mib: Mapping[str, float] = field(default_factory=dict)

    def is_due(self, left_mib: Mapping[str, float | None]) -> bool:
        """Whether a device has too little left to be trusted with a full context."""
        for name, below_mib in self.below_mib.items():
            left = left_mib.get(name)
            if left is None:
                left = self.expected_mib.get(name, math.inf)
            if left < below_mib:
                return True
        return False


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What a launch is asked after it is ready, in order; `questions` come last.

    Once the requests have taken `enough_s` seconds, none is repeated any more: on a slow
    machine one good look costs what several do elsewhere. `fill` comes after all requests.
    """

    name: PlanName
    requests: tuple[PlannedRequest, ...]
    questions: OutputRequests | None = None
    enough_s: float = math.inf
    fill: FullContextCheck | None = None

    @property
    def fidelity(self) -> Fidelity:
        """How closely such a launch looks."""
        if self.name == "fit":
            return "load"
        return "short" if self.name in ("ask", "short") else "full"

    def within(self, slot_context: int) -> RequestPlan:
        """The same request_plan with prompts cut so that each request fits a slot's context."""
        return replace(self, requests=tuple(_cut(r, slot_context) for r in self.requests))


def _cut(request: PlannedRequest, slot_context: int) -> PlannedRequest:
    predicted = min(request.predicted_tokens, max(1, slot_context // 2))
    room = slot_context - predicted - CONTEXT_RESERVE_TOKENS
    prompt = max(1, min(request.prompt_tokens, room))
    return replace(request, prompt_tokens=prompt, predicted_tokens=predicted)


def _fit_proof(workload: Workload, ubatch: int) -> PlannedRequest:
    prompt = max(FIT_PROOF_UBATCHES * ubatch, workload.longest_prompt_tokens)
    return PlannedRequest(prompt, _FIT_PREDICTED_TOKENS, is_warmup=True)


def plan_without_measurement() -> RequestPlan:
    """Nothing is measured: there are questions, or a program asks by itself."""
    return RequestPlan("ask", ())


def plan_fit_test(workload: Workload, ubatch: int) -> RequestPlan:
    """Whether it holds a full ubatch and the workload's longest prompt; measures nothing."""
    return RequestPlan("fit", (_fit_proof(workload, ubatch),))


def plan_measurement(
    workload: Workload,
    ubatch: int,
    *,
    repeats: int,
    enough_s: float = math.inf,
    is_short: bool = False,
) -> RequestPlan:
    """The proof of fit as a discarded warm-up, then the workload's requests, repeated.

    A short request_plan generates only as many tokens as the rate takes to show; the time of the
    whole request follows from it.
    """
    most = (
        _SHORT_PREDICTED_TOKENS
        if is_short
        else max(request.predicted_tokens for request in workload.requests)
    )
    measured = tuple(
        PlannedRequest(
            request.prompt_tokens, min(request.predicted_tokens, most), index, repeat=repeat
        )
        for repeat in range(repeats)
        for index, request in enumerate(workload.requests)
    )
    name: PlanName = "short" if is_short else "full"
    return RequestPlan(name, (_fit_proof(workload, ubatch), *measured), enough_s=enough_s)


def plan_full_context_request(slot_context: int) -> PlannedRequest:
    """A prompt that fills a slot's context, and next to no generation."""
    prompt = max(1, slot_context - _FIT_PREDICTED_TOKENS - CONTEXT_RESERVE_TOKENS)
    return PlannedRequest(prompt, _FIT_PREDICTED_TOKENS, is_warmup=True)


def plan_proof(workload: Workload, slot_context: int) -> RequestPlan:
    """A prompt that fills the context and the longest generation, twice."""
    predicted = min(workload.longest_predicted_tokens, max(1, slot_context // 2))
    prompt = max(1, slot_context - predicted - CONTEXT_RESERVE_TOKENS)
    return RequestPlan("prove", (PlannedRequest(prompt, predicted),) * 2)
