"""Answers without a server: launches that end at once, and KV types that change tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fakes.replies import Replies, detokenize, tokenize

from autofit.runtime.server.client import Answer, TokenChoice
from autofit.runtime.server.launcher import LaunchResult
from autofit.runtime.server.request_plan import RequestPlan
from autofit.trial.candidate import Candidate, LaunchPlan
from autofit.trial.outcome import Rejected, Stage

_VOCABULARY = 2048


@dataclass(frozen=True, slots=True)
class AnsweringClient:
    """A candidate's server; `change` is the share of tokens that its KV types change."""

    change: float = 0.0

    def tokenize(self, text: str, *, begins: bool = False) -> list[int]:
        """Return one token a byte, none of which opens a prompt."""
        return tokenize(text)

    def complete(self, prompt: Sequence[int], predicted_tokens: int, **more: object) -> Answer:
        """Return the greedy answer with the probabilities of its tokens."""
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
    """The share of tokens that each KV type changes; those of keys and values add up."""

    changes: Mapping[str, float] = field(default_factory=dict)

    def __call__(self, candidate: Candidate) -> AnsweringClient:
        """Return the server of a candidate."""
        types = (candidate.get_str(f"cache_type_{one}", "f16") for one in "kv")
        return AnsweringClient(sum(self.changes.get(kind, 0.0) for kind in types))


NO_CHANGES = KvChanges()


class AnsweredLaunching(ABC):
    """Launches whose results `result` decides, through the stages of a real one."""

    __slots__ = ()

    client_of: Callable[[Candidate], AnsweringClient]

    @abstractmethod
    def result(self, plan: LaunchPlan, request_plan: RequestPlan) -> LaunchResult:
        """Return the result of a launch; its plan has VERBATIM=1 for the user's own command."""

    def plan(
        self, candidate: Candidate, *, is_verbatim: bool, as_served: bool
    ) -> LaunchPlan | Rejected:
        """Return a command that only shows whether it is the user's own."""
        return LaunchPlan(
            candidate, ("server", "--port", "{port}"), {"VERBATIM": str(int(is_verbatim))}
        )

    def launch(
        self,
        plan: LaunchPlan,
        request_plan: RequestPlan,
        *,
        log_path: Path,
        on_stage: Callable[[Stage], None],
    ) -> LaunchResult:
        """Return the result, after the questions of the plan and with an empty log."""
        log_path.write_text("a log\n")
        for stage in ("load", "prompt", "stop"):
            on_stage(stage)
        found = self.result(plan, request_plan)
        if request_plan.output_recorder is not None and found.outcome.kind == "completed":
            client = self.client_of(plan.candidate)
            request_plan.output_recorder.ask(client, plan.limits)
        return found
