"""Answers kept for comparison: what was said, and what else might have been."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autofit.runtime.server.client import Answer, Client, RequestFailure, TokenChoice

# The likeliest tokens asked for at each place: they hold nearly all of the chances.
_LISTED_TOKENS = 10


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """One greedy answer to a fixed prompt.

    `choices` has, for each token, the natural logarithms of the probabilities of the
    likeliest ones; it is empty where the runtime does not tell them, as `token_ids` is.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    choices: tuple[TokenChoice, ...] = field(default=())

    @classmethod
    def of(cls, answer: Answer) -> RecordedAnswer:
        """What of a server's answer is compared."""
        return cls(answer.text, answer.token_ids, answer.choices)

    def to_dict(self) -> dict[str, Any]:
        """The answer as JSON data, whose keys are text."""
        return {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "choices": [
                {
                    "token_id": choice.token_id,
                    "logprob": choice.logprob,
                    "top": {str(token): logprob for token, logprob in choice.top.items()},
                }
                for choice in self.choices
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedAnswer:
        """The inverse of `to_dict`.

        Raises:
            KeyError: the data is no recorded answer.
        """
        return cls(
            text=data["text"],
            token_ids=tuple(data["token_ids"]),
            choices=tuple(
                TokenChoice(
                    choice["token_id"],
                    choice["logprob"],
                    {int(token): logprob for token, logprob in choice["top"].items()},
                )
                for choice in data["choices"]
            ),
        )


def first_difference(one: Sequence[object], other: Sequence[object]) -> int | None:
    """The first place at which two sequences differ, their lengths included."""
    for place, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return place
    return None if len(one) == len(other) else min(len(one), len(other))


def tokens(answer: RecordedAnswer) -> tuple[int, ...]:
    """The answer's tokens; those with chances, where these are told, so that both align."""
    return tuple(choice.token_id for choice in answer.choices) or answer.token_ids


def same_prefix(
    reference: RecordedAnswer, other: RecordedAnswer
) -> Iterator[tuple[TokenChoice, TokenChoice]]:
    """The choices that both made after the same tokens: up to the first that differs.

    Beyond it the two continue different texts, and nothing can be compared.
    """
    for pair in zip(reference.choices, other.choices, strict=False):
        yield pair
        if pair[0].token_id != pair[1].token_id:
            return


def record(
    client: Client,
    prompts: Sequence[Sequence[int] | str],
    predicted_tokens: int,
    *,
    prompt_limit_s: float,
    generate_limit_s: float,
    cache_prompt: bool = False,
) -> list[RecordedAnswer] | RequestFailure:
    """The server's greedy answers to fixed prompts, in order; the first failure ends it.

    `cache_prompt` lets prompts that share a long beginning read it once.
    """
    recorded = []
    for prompt in prompts:
        answer = client.complete(
            prompt,
            predicted_tokens,
            prompt_limit_s=prompt_limit_s,
            generate_limit_s=generate_limit_s,
            cache_prompt=cache_prompt,
            n_probs=_LISTED_TOKENS,
        )
        if isinstance(answer, RequestFailure):
            return answer
        recorded.append(RecordedAnswer.of(answer))
    return recorded
