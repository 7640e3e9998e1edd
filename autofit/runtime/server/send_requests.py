"""The sending of a plan's requests: prompts from real text, samples, plausibility.

The workload sets how many requests are sent at the same time. Each has its own prompt. Prompts are
real text, because the routing of experts depends on the text, and the speed of caches and of
expert uploads depends on the routing. Random tokens are unrealistically uniform.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import UsageError
from autofit.input_files import read_input
from autofit.runtime.server.client import Answer, Client, RequestFailure
from autofit.runtime.server.request_plan import PlannedRequest, RequestPlan
from autofit.trial.candidate import Limits
from autofit.trial.measurement import Sample
from autofit.trial.outcome import Incorrect, Stage
from autofit.trial.workload import Workload
from autofit.yaml_files import bundled_root

SHIPPED_TEXT = Path("search_spaces") / "workloads" / "prompt.txt"
# Prompts begin this share of the text apart, so that none repeats the beginning of another: an
# irrational step never returns to the same place.
_STEP = 0.6180339887498949
# No known machine is faster; a counter above these is broken. One public tuner chose a winner
# with 1,000,000 tokens per second.
MAX_PP_PER_S = 500_000.0
MAX_TG_PER_S = 20_000.0


def read_prompt_text(workload: Workload) -> str:
    """Return the text that prompts are cut from.

    Raises:
        UsageError: the workload's own text cannot be read or is empty.
    """
    path = Path(workload.text).expanduser() if workload.text else bundled_root() / SHIPPED_TEXT
    try:
        text = read_input(path).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"cannot read the prompt text {path}: {error.strerror}",
            "give the path of a plain text file as `text` in the workload file",
        ) from error
    if not text.strip():
        raise UsageError(f"the prompt text {path} is empty", "give a text of some pages")
    return text


class PromptSource:
    """Prompts of an exact number of tokens, cut from a text that is tokenized once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[int] = []
        self._cut = 0

    def prepare(self, client: Client) -> RequestFailure | None:
        """Tokenize the text, once for all launches of a model."""
        if self._tokens:
            return None
        tokens = client.tokenize(self._text)
        if isinstance(tokens, RequestFailure):
            return tokens
        if not tokens:
            return RequestFailure("malformed", "prompt", "the server returned no tokens of a text")
        self._tokens = tokens
        return None

    def cut(self, length: int) -> list[int]:
        """Return the next prompt of `length` tokens; the text is repeated if it is too short."""
        size = len(self._tokens)
        start = int(size * ((self._cut * _STEP) % 1.0))
        self._cut += 1
        rotated = self._tokens[start:] + self._tokens[:start]
        return (rotated * (length // size + 1))[:length]

    def fixed(self, length: int) -> list[int]:
        """Return the first tokens of the text, for the comparison of outputs."""
        return (self._tokens * (length // len(self._tokens) + 1))[:length]


@dataclass(frozen=True, slots=True)
class RequestResults:
    """The samples of the answered requests, and the failure that ended them early, if any."""

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
) -> RequestResults:
    """Send all requests of a plan in order, `parallel` of each together; stop at a failure.

    `on_stage` is called with the stage of each request.
    """
    failure: RequestFailure | Incorrect | None = prompts.prepare(client)
    if failure is not None:
        return RequestResults(failure=failure)
    samples: list[Sample] = []
    began_s = time.monotonic()
    for request in request_plan.requests:
        begins_repeat = request.repeat > 0 and request.request == 0
        if begins_repeat and time.monotonic() - began_s > request_plan.enough_s:
            break
        is_warmup = request.is_warmup and request_plan.name != "prove"
        on_stage("warmup" if is_warmup else "prompt")
        for answer in _send(client, request, prompts, limits, parallel):
            if isinstance(answer, RequestFailure):
                return RequestResults(tuple(samples), answer)
            failure = find_implausible(answer, request)
            if failure is not None:
                return RequestResults(tuple(samples), failure)
            samples.append(_make_sample(answer, request, len(samples)))
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
            prompt_limit_s=limits.prompt_limit_for_s(request.prompt_tokens * parallel),
            generate_limit_s=limits.generate_limit_for_s(request.predicted_tokens * parallel),
        )

    cuts = [prompts.cut(request.prompt_tokens) for _ in range(parallel)]
    if parallel == 1:
        return [complete(cuts[0])]
    pool = ThreadPoolExecutor(parallel)
    try:
        return list(pool.map(complete, cuts))
    finally:
        # An interrupt does not wait for the requests: the end of the server ends them.
        pool.shutdown(wait=False, cancel_futures=True)


def find_implausible(answer: Answer, request: PlannedRequest) -> Incorrect | None:
    """Return the outcome of an answer whose counters cannot be true, or None."""
    prompt, predicted = answer.prompt_tokens, answer.predicted_tokens
    if answer.cached_tokens or prompt < request.prompt_tokens:
        text = (
            f"processed {prompt} of {request.prompt_tokens} prompt tokens; "
            f"{answer.cached_tokens} came from a cache that should be off"
        )
        return Incorrect("prompt", text)
    if predicted < request.predicted_tokens:
        text = f"generated {predicted} of {request.predicted_tokens} tokens"
        return Incorrect("generate", text)
    if answer.prompt_s <= 0 or prompt / answer.prompt_s > MAX_PP_PER_S:
        text = f"{prompt} prompt tokens in {answer.prompt_s:.6f} s are impossible"
        return Incorrect("prompt", text)
    steps = predicted - 1
    if steps > 0 and (answer.predicted_s <= 0 or steps / answer.predicted_s > MAX_TG_PER_S):
        text = f"{steps} generated tokens in {answer.predicted_s:.6f} s are impossible"
        return Incorrect("generate", text)
    return None


def _make_sample(answer: Answer, request: PlannedRequest, order: int) -> Sample:
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
