"""Recorded greedy answers, and the divergence between two of them token by token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from autofit.runtime.server.client import Answer, Client, RequestFailure, TokenChoice

# The likeliest tokens requested for each position: they have nearly all of the probability.
_LISTED_TOKENS = 10
# The least probability of all unlisted tokens together: 0 would make any divergence infinite.
_MIN_REST = 1e-6


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A recorded greedy answer to a fixed prompt.

    `choices` has for each token the natural log probabilities of the likeliest tokens at its
    position. It and `token_ids` are empty if the runtime does not report them.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    choices: tuple[TokenChoice, ...] = ()

    @classmethod
    def of(cls, answer: Answer) -> RecordedAnswer:
        """Return the parts of a server's answer that are compared, without its times."""
        return cls(answer.text, answer.token_ids, answer.choices)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The token ids: of the tokens with probabilities if there are any, else of all."""
        return tuple(choice.token_id for choice in self.choices) or self.token_ids

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedAnswer:
        """Read the data of `to_dict`.

        Raises:
            pydantic.ValidationError: the data is no recorded answer.
        """
        return _answer_type().validate_python(data)


@cache
def _answer_type() -> TypeAdapter[RecordedAnswer]:
    return TypeAdapter(RecordedAnswer)


def record_answers(
    client: Client,
    prompts: Sequence[Sequence[int] | str],
    predicted_tokens: int,
    *,
    prompt_limit_s: float,
    generate_limit_s: float,
) -> list[RecordedAnswer] | RequestFailure:
    """Return a server's greedy answers to fixed prompts in order, or its first failure."""
    recorded = []
    for prompt in prompts:
        answer = client.complete(
            prompt,
            predicted_tokens,
            prompt_limit_s=prompt_limit_s,
            generate_limit_s=generate_limit_s,
            n_probs=_LISTED_TOKENS,
        )
        if isinstance(answer, RequestFailure):
            return answer
        recorded.append(RecordedAnswer.of(answer))
    return recorded


def comparable_choices(
    reference: RecordedAnswer, other: RecordedAnswer
) -> Iterator[tuple[TokenChoice, TokenChoice]]:
    """Yield the choices that both answers made after the same tokens.

    The first pair with different tokens is the last one: after it the two answers continue
    different texts.
    """
    for pair in zip(reference.choices, other.choices, strict=False):
        yield pair
        if pair[0].token_id != pair[1].token_id:
            return


def token_divergence(reference: TokenChoice, other: TokenChoice) -> float | None:
    """Return the Kullback-Leibler divergence of a next-token distribution, in nats.

    Tokens that both sides list count by themselves, all others count together as one token.
    So the result is never more than the divergence over the whole vocabulary. It is infinite
    if a probability is not a number, and None if a side lists no tokens.
    """
    if not reference.top or not other.top:
        return None
    shared = [token for token in reference.top if token in other.top]
    ours = [math.exp(reference.top[token]) for token in shared]
    theirs = [math.exp(other.top[token]) for token in shared]
    ours.append(max(1.0 - sum(ours), _MIN_REST))
    theirs.append(max(1.0 - sum(theirs), _MIN_REST))
    if any(math.isnan(probability) for probability in ours + theirs):
        return math.inf
    return max(0.0, sum(_divergence_term(p, q) for p, q in zip(ours, theirs, strict=True)))


def token_divergences(
    reference: Sequence[RecordedAnswer], other: Sequence[RecordedAnswer]
) -> list[float]:
    """Return the divergence of every token that both answers chose after the same text.

    Raises:
        ValueError: the two sides have different numbers of answers.
    """
    found = (
        token_divergence(*pair)
        for one, two in zip(reference, other, strict=True)
        for pair in comparable_choices(one, two)
    )
    return [value for value in found if value is not None]


def _divergence_term(p: float, q: float) -> float:
    if p == 0:
        return 0.0
    return p * math.log(p / q) if q > 0 else math.inf
