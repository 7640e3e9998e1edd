"""Sends an request_plan's requests to a ready server and judges the answers.

Requests go out as many side by side as the workload says, each with a prompt of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import UsageError
from autofit.runtime.server.client import Answer, Client, RequestFailure
from autofit.runtime.server.request_plan import PlannedRequest, RequestPlan
from autofit.trial.candidate import Limits
from autofit.trial.measurement import Sample
from autofit.trial.outcome import Incorrect, Stage
from autofit.trial.workload import Workload
from autofit.yaml_files import bundled_root

# No machine known answers faster; a counter that says so is broken. One public tuner
# crowned a winner of 1,000,000 tokens per second.
MAX_PP_PER_S = 500_000.0
MAX_TG_PER_S = 20_000.0


@dataclass(frozen=True, slots=True)
class RequestResults:
    """The samples that came back, and the failure that ended it early, if any."""

    samples: tuple[Sample, ...] = ()
    failure: RequestFailure | Incorrect | None = None


def send_requests(
    client: Client,
    request_plan: RequestPlan,
    prompts: PromptSource,
    limits: Limits,
    *,
    parallel: int,
    on_stage: Callable[[Stage], None],
    check_stop: Callable[[], None],
) -> RequestResults:
    """Send all requests of an request_plan in order; stop at the first failure.

    Args:
        client: speaks to the ready server.
        request_plan: what to send.
        prompts: where prompts are cut from.
        limits: seconds per stage of each request.
        parallel: how many requests are in flight at once.
        on_stage: told the stage of each request.
        check_stop: called between requests; raises to end the launch.
    """
    failure = prompts.prepare(client)
    if failure is not None:
        return RequestResults(failure=failure)
    samples: list[Sample] = []
    began_s = time.monotonic()
    for request in request_plan.requests:
        check_stop()
        begins_repeat = request.repeat > 0 and request.request == 0
        if begins_repeat and time.monotonic() - began_s > request_plan.enough_s:
            break
        is_first = request.is_warmup and request_plan.name != "prove"
        on_stage("warmup" if is_first else "prompt")
        for answer in _send(client, request, prompts, limits, parallel):
            if isinstance(answer, RequestFailure):
                return RequestResults(tuple(samples), answer)
            fault = find_implausibility(answer, request)
            if fault:
                stage: Stage = "generate" if fault.startswith("generated") else "prompt"
                return RequestResults(tuple(samples), Incorrect(stage, fault))
            samples.append(_sample(answer, request, len(samples)))
    return RequestResults(tuple(samples))


def _send(
    client: Client,
    request: PlannedRequest,
    prompts: PromptSource,
    limits: Limits,
    parallel: int,
) -> list[Answer | RequestFailure]:
    def complete(tokens: list[int]) -> Answer | RequestFailure:
        return client.complete(
            tokens,
            request.predicted_tokens,
            prompt_limit_s=limits.of_prompt_s(request.prompt_tokens * parallel),
            generate_limit_s=limits.of_generation_s(request.predicted_tokens * parallel),
        )

    cuts = [prompts.cut(request.prompt_tokens) for _ in range(parallel)]
    if parallel == 1:
        return [complete(cuts[0])]
    with ThreadPoolExecutor(parallel) as pool:
        return list(pool.map(complete, cuts))


def find_implausibility(answer: Answer, request: PlannedRequest) -> str:
    """Why an answer cannot be what it says; empty when it can."""
    if answer.cached_tokens or answer.prompt_tokens < request.prompt_tokens:
        return (
            f"processed {answer.prompt_tokens} of {request.prompt_tokens} prompt tokens, "
            f"{answer.cached_tokens} came from a cache that was to be off"
        )
    if answer.predicted_tokens < request.predicted_tokens:
        return f"generated {answer.predicted_tokens} of {request.predicted_tokens} tokens"
    if answer.prompt_s <= 0 or answer.prompt_tokens / answer.prompt_s > MAX_PP_PER_S:
        return f"{answer.prompt_tokens} prompt tokens in {answer.prompt_s:.6f} s is impossible"
    steps = answer.predicted_tokens - 1
    if steps > 0 and (answer.predicted_s <= 0 or steps / answer.predicted_s > MAX_TG_PER_S):
        return f"generated {steps} tokens in {answer.predicted_s:.6f} s, which is impossible"
    return ""


def _sample(answer: Answer, request: PlannedRequest, order: int) -> Sample:
    return Sample(
        prompt_tokens=answer.prompt_tokens,
        prompt_s=answer.prompt_s,
        ttft_s=answer.ttft_s,
        predicted_tokens=answer.predicted_tokens,
        predicted_s=answer.predicted_s,
        cached_tokens=answer.cached_tokens,
        depth=answer.prompt_tokens + answer.cached_tokens,
        request=request.request,
        order=order,
        is_warmup=request.is_warmup,
    )


SHIPPED_TEXT = Path("search_spaces") / "workloads" / "prompt.txt"

# Consecutive prompts begin this share of the text apart, so that none repeats another's
# beginning; an irrational step never comes back to where it was.
_STEP = 0.6180339887498949


def read_prompt_text(workload: Workload) -> str:
    """The text that prompts are cut from.

    Raises:
        UsageError: the workload's own text cannot be read or is empty.
    """
    path = Path(workload.text).expanduser() if workload.text else bundled_root() / SHIPPED_TEXT
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot read the prompt text {path}: {error.strerror}",
            "`text` in the workload file is the path of a plain text file",
        ) from error
    if not text.strip():
        raise UsageError(f"the prompt text {path} is empty", "give a text of some pages")
    return text


class PromptSource:
    """Cuts prompts out of a text that the model's own tokenizer has read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._cut = 0

    def prepare(self, client: Client) -> RequestFailure | None:
        """Have the text tokenized, once for all launches of a model."""
        if self._tokens:
            return None
        tokens = client.tokenize(self._text)
        if isinstance(tokens, RequestFailure):
            return tokens
        if not tokens:
            return RequestFailure("malformed", "prompt", "the server made no tokens of a text")
        self._tokens = tokens
        return None

    def cut(self, length: int) -> list[int]:
        """The next prompt, `length` tokens; a text that is too short goes round."""
        size = len(self._tokens)
        start = int(size * ((self._cut * _STEP) % 1.0))
        self._cut += 1
        rounds = self._tokens[start:] + self._tokens[:start]
        return (rounds * (length // size + 1))[:length]

    def fixed(self, length: int) -> list[int]:
        """The text's beginning, the same at every call: for comparing answers."""
        size = len(self._tokens)
        return (self._tokens * (length // size + 1))[:length]
