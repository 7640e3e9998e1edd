"""Fixed prompts for every server of a comparison, and their answers in the study folder.

Every server gets the same prompts token for token. They are cut from real text in several
lengths, the longest as long as the workload's. To score a KV type there are retrieval tasks as
well: one text that fills the context, with planted records to find again.

One record gives the tag of a project. Another one, half the text away, gives the secret of the
tag. Other projects and tags look similar. A question about a tag needs one record, which small
models can answer. A question about a project needs both records.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autofit.input_files import read_json
from autofit.quality.recorded_answer import RecordedAnswer, record_answers
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

# There is also one as long as the workload's longest. Answers are compared up to the first
# different token: many short ones show more than a few long ones.
_SHORT_PROMPTS = (64, 96, 128, 160, 192, 224, 256)
_ANSWER_TOKENS = 24
# Tag, arrow and secret; a model that does not copy them at once does not find them.
_RETRIEVAL_ANSWER_TOKENS = 40
_PROJECT_NAMES = ("Alder", "Birch", "Cedar", "Hazel", "Linden", "Maple", "Rowan", "Willow")


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """A question about planted records.

    Attributes:
        prompt: the whole prompt's tokens; empty when read back from a study.
        decoys: secrets that would be wrong.
        hops: the records that must be read to answer.
    """

    project: str
    prompt: tuple[int, ...]
    secret: str
    decoys: tuple[str, ...]
    hops: int = 2


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one server: one to each prompt, and a text for each retrieval task."""

    recorded: tuple[RecordedAnswer, ...]
    tasks: tuple[RetrievalTask, ...] = ()
    texts: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as JSON data, without the retrieval tasks' prompts."""
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
        """Read the data of `to_dict`.

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


class _TokenizeError(Exception):
    """A failed request for the tokens of a text."""

    def __init__(self, failure: RequestFailure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


@dataclass(slots=True)
class PromptSet:
    """The same prompts for servers of one model, as tokens of the first server.

    Attributes:
        slot_context: the fewest tokens of context that any of the servers has for a request.
        has_retrieval: whether to add retrieval tasks that fill this context.
    """

    workload: Workload
    slot_context: int
    has_retrieval: bool = False
    _answers: Answers | None = None
    _prompts: list[list[int]] = field(default_factory=list)
    _tasks: list[RetrievalTask] = field(default_factory=list)

    def ask(self, client: Client, limits: Limits) -> RequestFailure | None:
        """Send all prompts to a ready server; `take_answers` returns its answers."""
        self._answers = None
        if not self._prompts:
            try:
                self._prepare(client)
            except _TokenizeError as error:
                return error.failure
        recorded = record_answers(
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
                prompt_limit_s=limits.prompt_limit_for_s(len(task.prompt)),
                generate_limit_s=limits.generate_s,
                # All tasks share one long text, which the first puts into the cache.
                cache_prompt=True,
            )
            if isinstance(answer, RequestFailure):
                return answer
            texts.append(answer.text)
        self._answers = Answers(tuple(recorded), tuple(self._tasks), tuple(texts))
        return None

    def take_answers(self) -> Answers | None:
        """Return the last server's answers and forget them; None if any of them is missing."""
        answers, self._answers = self._answers, None
        return answers

    @property
    def _answer_tokens(self) -> int:
        return min(_ANSWER_TOKENS, max(1, self.slot_context // 4))

    def _prepare(self, client: Client) -> None:
        source = PromptSource(read_prompt_text(self.workload))
        failure = source.prepare(client)
        if failure is not None:
            raise _TokenizeError(failure)
        # Some models answer nonsense to a prompt that does not begin as in their training.
        opening = _tokenize(client, "", begins=True)[:1]
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
            self._tasks = self._make_tasks(client, source, opening, room)
        self._prompts = prompts

    def _make_tasks(
        self, client: Client, source: PromptSource, opening: list[int], room: int
    ) -> list[RetrievalTask]:
        length = room - _RETRIEVAL_ANSWER_TOKENS
        try:
            tasks = make_retrieval_tasks(
                source.fixed(max(1, length)),
                length,
                lambda text: _tokenize(client, text),
                random.Random(0),
            )
        except ValueError:  # the context is too short for them
            return []
        return [replace(task, prompt=(*opening, *task.prompt)) for task in tasks]


def collect_answers(
    runner: TrialRunner,
    prompts: PromptSet | None,
    purpose: TrialPurpose,
    candidate: Candidate,
    request_plan: RequestPlan,
    *,
    layout: str = "",
    is_verbatim: bool = False,
) -> tuple[Trial, Answers | None]:
    """Run a trial that ends with the prompts, if any, and return it with its answers.

    A trial that the study already has comes with its saved answers. The answers are None without
    prompts, if the launch did not reach them, or if the file is lost.

    Raises:
        Interrupted: the user stopped the run.
    """
    trial = runner.run(
        purpose,
        candidate,
        replace(request_plan, output_recorder=prompts),
        layout=layout,
        is_verbatim=is_verbatim,
    )
    if prompts is None:
        return trial, None
    answers = prompts.take_answers()
    if answers is None:
        return trial, read_answers(runner.study, trial.number)
    runner.study.write_output(_answers_file(trial.number), json.dumps(answers.to_dict()) + "\n")
    return trial, answers


def read_answers(study: Study, number: int) -> Answers | None:
    """Return the saved answers of a trial of the study, or None if there are none."""
    path = study.path / _answers_file(number)
    try:
        return Answers.from_dict(read_json(path))
    except (OSError, *DAMAGED):
        return None


def _answers_file(number: int) -> str:
    return f"trials/{number:04d}.answers.json"


def _tokenize(client: Client, text: str, *, begins: bool = False) -> list[int]:
    tokens = client.tokenize(text, begins=begins)
    if isinstance(tokens, RequestFailure):
        raise _TokenizeError(tokens)
    return tokens


@dataclass(frozen=True, slots=True)
class _Chain:
    """The two records of a project."""

    project: str
    tag: str
    secret: str

    @property
    def records(self) -> tuple[str, str]:
        return (
            f"\n[record] PROJECT {self.project} -> TAG {self.tag}\n",
            f"\n[record] TAG {self.tag} -> SECRET {self.secret}\n",
        )

    def question(self, hops: int) -> str:
        """Return the end of a prompt, in the records' form, which models continue."""
        if hops == 1:
            return f"\n\n[record] TAG {self.tag} -> SECRET"
        return (
            "\n\nWhich secret belongs to a project? Look up its tag, then the tag's secret.\n"
            f"ANSWER: PROJECT {self.project} -> TAG"
        )


def make_retrieval_tasks(
    filler: Sequence[int],
    length: int,
    tokenize: Callable[[str], Sequence[int]],
    rng: random.Random,
    *,
    questions: int = 3,
) -> list[RetrievalTask]:
    """Return prompts of `length` tokens that share one text and end in different questions.

    `filler` are tokens of ordinary text, which is repeated if it is too short. `tokenize` returns
    the tokens of a text without special ones. An answer of about 40 tokens must fit into the
    context after `length`. There are `questions` projects to ask about, each with one hop and
    with two, and as many others.

    Raises:
        ValueError: the records alone are longer than the prompt, or there is no filler.
    """
    chains = _make_chains(2 * questions, rng)
    asked = [(chain, hops) for chain in rng.sample(chains, questions) for hops in (1, 2)]
    endings = [list(tokenize(chain.question(hops))) for chain, hops in asked]
    records = _position_records(chains, tokenize, rng)
    # The text before the questions is the same in all prompts, so that a cache can keep it;
    # a shorter question has more ordinary text at its end.
    planted = sum(len(tokens) for _, tokens in records)
    free = length - max(len(ending) for ending in endings) - planted
    if free < 0 or not filler:
        raise ValueError(f"{length} tokens are too few for {len(chains)} planted projects")
    document = _plant_records(_repeat(filler, free), records)
    secrets = [chain.secret for chain in chains]
    return [
        RetrievalTask(
            project=chain.project,
            prompt=(*document, *_repeat(filler, length - len(document) - len(ending)), *ending),
            secret=chain.secret,
            decoys=tuple(secret for secret in secrets if secret != chain.secret),
            hops=hops,
        )
        for (chain, hops), ending in zip(asked, endings, strict=True)
    ]


def is_found(task: RetrievalTask, text: str) -> bool:
    """Return whether an answer names the secret, and no decoy before it."""
    positions = {secret: text.find(secret) for secret in (task.secret, *task.decoys)}
    named = [secret for secret, position in positions.items() if position >= 0]
    return bool(named) and min(named, key=positions.__getitem__) == task.secret


def _make_chains(count: int, rng: random.Random) -> list[_Chain]:
    """Return projects in pairs that differ in a digit, as their tags do."""
    letters = "".join(rng.sample(string.ascii_uppercase, 3))
    numbers = rng.sample(range(10, 100), count)
    secrets = rng.sample(range(10_000, 100_000), count)
    names = rng.sample(_PROJECT_NAMES, len(_PROJECT_NAMES))
    return [
        _Chain(
            project=f"{names[index // 2 % len(names)]}-{index + 1}",
            tag=f"{letters}{numbers[index]}",
            secret=str(secrets[index]),
        )
        for index in range(count)
    ]


def _position_records(
    chains: Sequence[_Chain], tokenize: Callable[[str], Sequence[int]], rng: random.Random
) -> list[tuple[float, list[int]]]:
    """Return the records sorted by their position in the text, from 0 to 1.

    The two records of a project are half the text apart. In half of the projects the second is
    first.
    """
    order = rng.sample(range(len(chains)), len(chains))
    placed = []
    for chain, slot in zip(chains, order, strict=True):
        early = (slot + rng.random()) / len(chains) / 2
        first, second = chain.records if slot % 2 else chain.records[::-1]
        placed += [(early, list(tokenize(first))), (early + 0.5, list(tokenize(second)))]
    return sorted(placed)


def _plant_records(
    ordinary: Sequence[int], records: Sequence[tuple[float, list[int]]]
) -> list[int]:
    text: list[int] = []
    done = 0
    for position, tokens in records:
        until = round(position * len(ordinary))
        text += [*ordinary[done:until], *tokens]
        done = until
    return [*text, *ordinary[done:]]


def _repeat(tokens: Sequence[int], length: int) -> list[int]:
    return (list(tokens) * (length // len(tokens) + 1))[:length]
