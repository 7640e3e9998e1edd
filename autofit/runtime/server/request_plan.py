"""The requests of a launch: their order, lengths and repeats.

A plan with fewer requests saves only the time of the requests. Every launch also takes the time to
load the model.
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

# Tokens of the context that the runtime needs in addition to prompt and generation.
CONTEXT_RESERVE_TOKENS = 64
# A device's run-time pools grow with the first full ubatch, and may grow with the second.
_FIT_TEST_UBATCHES = 2
_FIT_PREDICTED_TOKENS = 8
_SHORT_PREDICTED_TOKENS = 64


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request to send.

    `request` is its index in the workload, or -1. `repeat` counts how often the workload's
    requests were sent before.
    """

    prompt_tokens: int
    predicted_tokens: int
    request: int = -1
    is_warmup: bool = False
    repeat: int = 0

    def cut_to(self, slot_context: int) -> PlannedRequest:
        """Return the request with as many tokens as fit into the context of a slot."""
        predicted = min(self.predicted_tokens, max(1, slot_context // 2))
        prompt = min(self.prompt_tokens, slot_context - predicted - CONTEXT_RESERVE_TOKENS)
        return replace(self, prompt_tokens=max(1, prompt), predicted_tokens=predicted)


class OutputRecorder(Protocol):
    """Requests that are sent for their outputs, after all measured requests."""

    def ask(self, client: Client, limits: Limits) -> RequestFailure | None:
        """Send the requests to a ready server; return the failure that ended them, if any."""
        ...


@dataclass(frozen=True, slots=True)
class FullContextCheck:
    """A request that fills the context, sent last if a device has little memory left.

    A launch with little memory left may be out of memory at full context. While the server runs,
    the check takes one prompt; later it would take a launch.

    Attributes:
        request: the request that fills a slot.
        below_mib: the free memory of each device below which the check is needed.
        expected_mib: the predicted free memory of each device, for devices without a counter.
    """

    request: PlannedRequest
    below_mib: Mapping[str, float]
    expected_mib: Mapping[str, float] = field(default_factory=dict)

    def is_due(self, free_mib: Mapping[str, float | None]) -> bool:
        """Return whether a device has too little free memory to skip the check."""
        for name, below_mib in self.below_mib.items():
            free = free_mib.get(name)
            if free is None:
                free = self.expected_mib.get(name, math.inf)
            if free < below_mib:
                return True
        return False


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """The requests of a launch after the server is ready, in order.

    The check of the full context follows the measured `requests`, and then the requests of
    `output_recorder`, which are not measured. After `enough_s` seconds no request is repeated: a
    long request varies less than a short one.
    """

    name: PlanName
    requests: tuple[PlannedRequest, ...]
    output_recorder: OutputRecorder | None = None
    enough_s: float = math.inf
    full_context_check: FullContextCheck | None = None

    @property
    def fidelity(self) -> Fidelity:
        """The fidelity of a trial with these requests."""
        if self.name == "fit":
            return "load"
        return "short" if self.name in ("ask", "short") else "full"

    def within(self, slot_context: int) -> RequestPlan:
        """Return the plan with every request cut to the context of a slot."""
        return replace(self, requests=tuple(r.cut_to(slot_context) for r in self.requests))


def plan_without_measurement() -> RequestPlan:
    """Plan a launch that measures nothing: it only records outputs, or runs another program."""
    return RequestPlan("ask", ())


def plan_fit_test(workload: Workload, ubatch: int) -> RequestPlan:
    """Plan a test whether full ubatches and the workload's longest prompt fit."""
    return RequestPlan("fit", (_make_fit_request(workload, ubatch),))


def plan_measurement(
    workload: Workload,
    ubatch: int,
    *,
    repeats: int,
    enough_s: float = math.inf,
    is_short: bool = False,
) -> RequestPlan:
    """Plan the fit test as a warm-up, then the workload's requests, repeated.

    A short plan generates only as many tokens as are needed to measure the rate; the time of
    the whole request is computed from it.
    """
    most = _SHORT_PREDICTED_TOKENS if is_short else workload.longest_predicted_tokens
    measured = tuple(
        PlannedRequest(
            request.prompt_tokens, min(request.predicted_tokens, most), index, repeat=repeat
        )
        for repeat in range(repeats)
        for index, request in enumerate(workload.requests)
    )
    requests = (_make_fit_request(workload, ubatch), *measured)
    return RequestPlan("short" if is_short else "full", requests, enough_s=enough_s)


def plan_proof(workload: Workload, slot_context: int) -> RequestPlan:
    """Plan the proof: twice, a prompt that fills the context and the longest generation."""
    longest = PlannedRequest(slot_context, workload.longest_predicted_tokens)
    return RequestPlan("prove", (longest.cut_to(slot_context),) * 2)


def make_full_context_request(slot_context: int) -> PlannedRequest:
    """Return a request whose prompt fills the context of a slot, with a short generation."""
    prompt = max(1, slot_context - _FIT_PREDICTED_TOKENS - CONTEXT_RESERVE_TOKENS)
    return PlannedRequest(prompt, _FIT_PREDICTED_TOKENS, is_warmup=True)


def _make_fit_request(workload: Workload, ubatch: int) -> PlannedRequest:
    prompt = max(_FIT_TEST_UBATCHES * ubatch, workload.longest_prompt_tokens)
    return PlannedRequest(prompt, _FIT_PREDICTED_TOKENS, is_warmup=True)
