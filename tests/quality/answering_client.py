"""A server's answers without a server: some KV types change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fakes.replies import Replies, detokenize, tokenize

from autofit.runtime.server.client import Answer, TokenChoice
from autofit.trial.candidate import Candidate

_VOCABULARY = 2048


@dataclass(frozen=True, slots=True)
class AnsweringClient:
    """Answers as a candidate's server would; `change` is how many tokens its KV type changes."""

    change: float = 0.0

    def tokenize(self, text: str, *, begins: bool = False) -> list[int]:
        """One token a byte, none of which opens a prompt."""
        return tokenize(text)

    def complete(self, prompt: Sequence[int], predicted_tokens: int, **more: object) -> Answer:
        """The greedy answer with the chances of its tokens."""
        replies = Replies(_VOCABULARY, change=self.change, logprob_error=self.change)
        tokens = replies.tokens(prompt, predicted_tokens, 1, greedy=True)
        choices = tuple(
            TokenChoice(token, top[0][1], dict(top))
            for place, token in enumerate(tokens)
            if (top := replies.top(prompt, place, token, 10))
        )
        return Answer(
            text=detokenize(tokens), token_ids=tuple(tokens), prompt_tokens=len(prompt),
            cached_tokens=0, prompt_s=0.1, predicted_tokens=len(tokens), predicted_s=0.1,
            ttft_s=0.1, choices=choices,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvChanges:
    """By KV type how many tokens change; those of keys and values add up."""

    changes: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, candidate: Candidate) -> AnsweringClient:
        """What answers for a candidate."""
        types = (candidate.get_str(f"cache_type_{one}", "f16") for one in "kv")
        return AnsweringClient(sum(self.changes.get(kind, 0.0) for kind in types))


# No KV type changes anything.
ALL_ALIKE = KvChanges()
