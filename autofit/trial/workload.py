"""The workload: the requests that the served model will get."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """One kind of request; `weight` is its share of all requests."""

    prompt_tokens: int
    predicted_tokens: int
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests with their shares, the context they must fit and how many run in parallel.

    `text` is a path to the text prompts are cut from; empty means the shipped text.
    """

    name: str
    context: int
    parallel: int
    requests: tuple[Request, ...]
    text: str = ""

    @property
    def slot_context(self) -> int:
        """The number of context tokens for one request."""
        return self.context // self.parallel

    @property
    def longest_prompt_tokens(self) -> int:
        """The longest prompt of any request."""
        return max(request.prompt_tokens for request in self.requests)

    @property
    def longest_predicted_tokens(self) -> int:
        """The longest generation of any request."""
        return max(request.predicted_tokens for request in self.requests)
