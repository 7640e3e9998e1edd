"""Answers as a baseline keeps them: one line a prompt, and only what comparing them needs.

A token is `ID=LOGPROB`, followed by its rivals with theirs: `1917=-0.105;78=-2.41;12=-4.2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice

# Where the greedy choice falls on another token, that one was nearly as likely, so the second
# at the place it was lost at; the third is for a tie of both with another.
_KEPT_TOKENS = 3
_DIGITS = 3


def shortened(answer: RecordedAnswer) -> RecordedAnswer:
    """The answer with the likeliest tokens only, and logarithms to three digits."""
    return RecordedAnswer(
        text=answer.text,
        token_ids=tuple(answer.token_ids),
        choices=tuple(_shortened(choice) for choice in answer.choices),
    )


def _shortened(choice: TokenChoice) -> TokenChoice:
    likeliest = sorted(choice.top, key=lambda token: -choice.top[token])[:_KEPT_TOKENS]
    return TokenChoice(
        choice.token_id,
        None if choice.logprob is None else round(choice.logprob, _DIGITS),
        {token: round(choice.top[token], _DIGITS) for token in likeliest},
    )


def answer_data(answer: RecordedAnswer) -> dict[str, Any]:
    """A shortened answer as JSON data of a few lines."""
    chosen = tuple(choice.token_id for choice in answer.choices)
    data: dict[str, Any] = {"text": answer.text}
    if answer.token_ids != chosen:
        data["token_ids"] = " ".join(map(str, answer.token_ids))
    if answer.choices:
        data["choices"] = " ".join(_word(choice) for choice in answer.choices)
    return data


def answer_of(data: Mapping[str, Any]) -> RecordedAnswer:
    """The inverse of `answer_data`.

    Raises:
        KeyError, ValueError: the data is no answer.
    """
    choices = tuple(_choice(word) for word in data.get("choices", "").split())
    token_ids = tuple(choice.token_id for choice in choices)
    if "token_ids" in data:
        token_ids = tuple(int(token) for token in data["token_ids"].split())
    return RecordedAnswer(data["text"], token_ids, choices)


def _word(choice: TokenChoice) -> str:
    own = "" if choice.logprob is None else f"={choice.logprob}"
    top = "".join(f";{token}={logprob}" for token, logprob in choice.top.items())
    return f"{choice.token_id}{own}{top}"


def _choice(word: str) -> TokenChoice:
    (token, own), *top = (part.partition("=")[::2] for part in word.split(";"))
    return TokenChoice(
        int(token),
        float(own) if own else None,
        {int(rival): float(logprob) for rival, logprob in top},
    )
