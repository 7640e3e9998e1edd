"""What a search minimises: seconds of the workload's requests, within limits."""

from __future__ import annotations

from dataclasses import dataclass

from autofit.trial.metric import Metric
from autofit.trial.workload import Request

# What is assumed where nobody says what the model will be asked.
TYPICAL_REQUESTS = (Request(2048, 256),)


@dataclass(frozen=True, slots=True)
class Limit:
    """A metric that a winner must keep, as a quantity that is at most `most`.

    `tg>=20` is `Limit("tg", 0.05)`: no more than 0.05 seconds for a token.
    """

    metric: Metric
    most: float


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective, the requests it is about, and the limits on other metrics."""

    objective: Metric = "request_s"
    requests: tuple[Request, ...] = TYPICAL_REQUESTS
    limits: tuple[Limit, ...] = ()

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens of a mean request."""
        return self._mean([request.prompt_tokens for request in self.requests])

    @property
    def predicted_tokens(self) -> float:
        """Generated tokens of a mean request that take time of their own.

        The first comes with the prompt.
        """
        return self._mean([max(request.predicted_tokens - 1, 1) for request in self.requests])

    @property
    def depth(self) -> float:
        """Tokens in the cache, in the mean over generated tokens."""
        tokens = [r.prompt_tokens + r.predicted_tokens / 2 for r in self.requests]
        return self._mean(tokens)

    @property
    def is_about_prompts(self) -> bool:
        """Whether the time of prompts counts."""
        return bool({"request_s", "pp", "ttft"} & self._metrics)

    @property
    def is_about_generation(self) -> bool:
        """Whether the time of generation counts."""
        return bool({"request_s", "tg"} & self._metrics)

    @property
    def _metrics(self) -> set[Metric]:
        return {self.objective, *(limit.metric for limit in self.limits)}

    def _mean(self, values: list[float]) -> float:
        weights = [request.weight for request in self.requests]
        total = sum(weight * value for weight, value in zip(weights, values, strict=True))
        return total / sum(weights)
