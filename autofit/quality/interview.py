"""Fixed questions to one server after another, and their answers kept in the study.

What is asked is token for token the same for every server: prompts of different lengths cut
from real text, the longest as long as the workload's; and, where a KV cache is to be judged,
one text that fills the context, with records planted in it to be found again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autofit.quality.recorded_answer import RecordedAnswer, record
from autofit.quality.retrieval import RetrievalTask, retrieval_tasks
from autofit.runtime.server.client import Client, RequestFailure
from autofit.runtime.server.request_plan import CONTEXT_RESERVE_TOKENS, RequestPlan
from autofit.runtime.server.send_requests import PromptSource, read_prompt_text
from autofit.session.runner import TrialRunner
from autofit.study.study_document import DAMAGED
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate, Limits
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# Beside one as long as the workload's longest. Answers are compared up to the first token
# that differs, so many short ones tell more than few long ones.
_SHORT_PROMPTS = (64, 96, 128, 160, 192, 224, 256)
_ANSWER_TOKENS = 24
# Tag, arrow and secret; a model that does not copy them at once does not find them.
_RETRIEVAL_ANSWER_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Answers:
    """What one server answered; a retrieval task has a text each, its prompt is not kept."""

    recorded: tuple[RecordedAnswer, ...]
    tasks: tuple[RetrievalTask, ...] = ()
    texts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The answers as JSON data."""
        return {
            "recorded": [answer.to_dict() for answer in self.recorded],
            "retrieval": [
                {
                    "project": task.project,
                    "secret": task.secret,
                    "decoys": list(task.decoys),
                    "text": text,
                }
                for task, text in zip(self.tasks, self.texts, strict=True)
            ],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Answers:
        """The inverse of `to_dict`.

        Raises:
            KeyError: the data are no answers.
        """
        return cls(
            recorded=tuple(RecordedAnswer.from_dict(answer) for answer in data["recorded"]),
            tasks=tuple(
                RetrievalTask(one["project"], (), one["secret"], tuple(one["decoys"]))
                for one in data["retrieval"]
            ),
            texts=tuple(one["text"] for one in data["retrieval"]),
        )


class _NotTokenizedError(Exception):
    """The server did not say what the tokens of a text are."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(slots=True)
class PromptSet:
    """Asks servers of one model the same questions; the first one's tokens are used for all.

    `slot_context` is the fewest tokens of context that any of them has for a request. With
    `has_retrieval` records are planted in a text that fills it.
    """

    workload: Workload
    slot_context: int
    has_retrieval: bool = False
    _answers: Answers | None = None
    _prompts: list[list[int]] = field(default_factory=list)
    _tasks: list[RetrievalTask] = field(default_factory=list)

    def ask(self, client: Client, limits: Limits) -> RequestFailure | None:
        """Ask a ready server everything; `take` hands out what it said."""
        self._answers = None
        if not self._prompts:
            try:
                self._prepare(client)
            except _NotTokenizedError as error:
                return error.failure
        recorded = record(
            client,
            self._prompts,
            self._answer_tokens,
            prompt_limit_s=limits.prompt_s,
            generate_limit_s=limits.generate_s,
        )
        if isinstance(recorded, RequestFailure):
            return recorded
        texts = []
        for task in self._tasks:
            answer = client.complete(
                task.prompt,
                _RETRIEVAL_ANSWER_TOKENS,
                prompt_limit_s=limits.of_prompt_s(len(task.prompt)),
                generate_limit_s=limits.generate_s,
                # All tasks share one long text: what the first has put into the cache is
                # what the others are to find their records in.
                cache_prompt=True,
            )
            if isinstance(answer, RequestFailure):
                return answer
            texts.append(answer.text)
        self._answers = Answers(tuple(recorded), tuple(self._tasks), tuple(texts))
        return None

    def take(self) -> Answers | None:
        """The answers of the last server asked, once; None where it did not give them all."""
        answers, self._answers = self._answers, None
        return answers

    @property
    def _answer_tokens(self) -> int:
        return min(_ANSWER_TOKENS, max(1, self.slot_context // 4))

    def _prepare(self, client: Client) -> None:
        source = PromptSource(read_prompt_text(self.workload))
        failure = source.prepare(client)
        if failure is not None:
            raise _NotTokenizedError(failure)
        # Some models answer nonsense to a prompt that does not begin as they were trained.
        opening = _tokens(client, "", begins=True)[:1]
        room = self.slot_context - CONTEXT_RESERVE_TOKENS - len(opening)
        longest = max(1, room - self._answer_tokens)
        lengths = [
            min(length, longest)
            for length in (*_SHORT_PROMPTS, self.workload.longest_prompt_tokens)
        ]
        text = source.fixed(sum(lengths))
        prompts = []
        for length in lengths:
            prompts.append(opening + text[:length])
            text = text[length:]
        if self.has_retrieval:
            self._tasks = self._planted(client, source, opening, room)
        self._prompts = prompts

    def _planted(
        self, client: Client, source: PromptSource, opening: list[int], room: int
    ) -> list[RetrievalTask]:
        length = room - _RETRIEVAL_ANSWER_TOKENS
        try:
            tasks = retrieval_tasks(
                source.fixed(max(1, length)),
                length,
                lambda text: _tokens(client, text),
                random.Random(0),
            )
        except ValueError:  # the context is too short for it
            return []
        return [replace(task, prompt=(*opening, *task.prompt)) for task in tasks]


def interviewed(
    runner: TrialRunner,
    interview: PromptSet,
    purpose: TrialPurpose,
    candidate: Candidate,
    request_plan: RequestPlan,
    *,
    layout: str = "",
    is_verbatim: bool = False,
) -> tuple[Trial, Answers | None]:
    """Run a trial that ends in an interview; a trial that is known has its answers kept.

    None where the launch did not come that far, or the answers were lost.

    Raises:
        Interrupted: the user stopped the run.
    """
    trial = runner.run(
        purpose,
        candidate,
        replace(request_plan, questions=interview),
        layout=layout,
        is_verbatim=is_verbatim,
    )
    answers = interview.take()
    if answers is None:
        return trial, kept_answers(runner.study, trial.number)
    runner.study.write_output(_name(trial.number), json.dumps(answers.to_dict()) + "\n")
    return trial, answers


def kept_answers(study: Study, number: int) -> Answers | None:
    """The answers that a trial of the study gave, None where there are none."""
    path: Path = study.path / _name(number)
    try:
        return Answers.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, *DAMAGED):
        return None


def _name(number: int) -> str:
    return f"trials/{number:04d}.answers.json"


def _tokens(client: Client, text: str, *, begins: bool = False) -> list[int]:
    tokens = client.tokenize(text, begins=begins)
    if isinstance(tokens, RequestFailure):
        raise _NotTokenizedError(tokens)
    return tokens
