"""Records planted far apart in a long text, with decoys, and questions about them.

A project names its tag in one place and the tag its secret in another, half the text away;
other projects and tags look alike. Who is asked for a tag's secret must read one place
exactly, which small models can; who is asked for a project's, both.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tokenize = Callable[[str], Sequence[int]]

_NAMES = ("Alder", "Birch", "Cedar", "Hazel", "Linden", "Maple", "Rowan", "Willow")


@dataclass(frozen=True, slots=True)
class RetrievalTask:
    """A prompt, the secret that answers it, and the secrets that would be wrong.

    `hops` is how many records must be read for it.
    """

    project: str
    prompt: tuple[int, ...]
    secret: str
    decoys: tuple[str, ...]
    hops: int = 2


@dataclass(frozen=True, slots=True)
class _Chain:
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
        """The end of a prompt, in the records' own form: models continue what they know."""
        if hops == 1:
            return f"\n\n[record] TAG {self.tag} -> SECRET"
        return (
            "\n\nWhich secret belongs to a project? Look up its tag, then the tag's secret.\n"
            f"ANSWER: PROJECT {self.project} -> TAG"
        )


def retrieval_tasks(
    filler: Sequence[int],
    length: int,
    tokenize: Tokenize,
    rng: random.Random,
    *,
    questions: int = 3,
) -> list[RetrievalTask]:
    """Prompts of `length` tokens that share one text and end in different questions.

    Args:
        filler: tokens of ordinary text; repeated where they do not suffice.
        length: tokens of each prompt; leave room for an answer of some 40 in the context.
        tokenize: the tokens of a text, without special ones.
        rng: the same seed plants the same records at the same places.
        questions: how many of the projects are asked for, each with one hop and with two;
            there are twice as many.

    Raises:
        ValueError: the records alone are longer than the prompt, or there is no filler.
    """
    chains = _chains(2 * questions, rng)
    asked = [(chain, hops) for chain in rng.sample(chains, questions) for hops in (1, 2)]
    endings = [list(tokenize(chain.question(hops))) for chain, hops in asked]
    records = _placed(chains, tokenize, rng)
    # The text before the questions is the same in all prompts, so that a cache can keep it;
    # a shorter question has more ordinary text at its end.
    planted = sum(len(tokens) for _, tokens in records)
    free = length - max(len(ending) for ending in endings) - planted
    if free < 0 or not filler:
        raise ValueError(f"{length} tokens are too few for {len(chains)} planted projects")
    document = _document(filler, free, records)
    secrets = [chain.secret for chain in chains]
    return [
        RetrievalTask(
            project=chain.project,
            prompt=(
                *document,
                *_repeated(filler, length - len(document) - len(ending)),
                *ending,
            ),
            secret=chain.secret,
            decoys=tuple(secret for secret in secrets if secret != chain.secret),
            hops=hops,
        )
        for (chain, hops), ending in zip(asked, endings, strict=True)
    ]


def is_found(task: RetrievalTask, text: str) -> bool:
    """Whether an answer names the secret, and no decoy before it."""
    places = {secret: text.find(secret) for secret in (task.secret, *task.decoys)}
    named = [secret for secret, place in places.items() if place >= 0]
    return bool(named) and min(named, key=places.__getitem__) == task.secret


def _chains(count: int, rng: random.Random) -> list[_Chain]:
    """Projects in pairs that differ in a digit; so do the tags."""
    letters = "".join(rng.sample(string.ascii_uppercase, 3))
    numbers = rng.sample(range(10, 100), count)
    secrets = rng.sample(range(10_000, 100_000), count)
    names = rng.sample(_NAMES, len(_NAMES))
    return [
        _Chain(
            project=f"{names[place // 2 % len(names)]}-{place + 1}",
            tag=f"{letters}{numbers[place]}",
            secret=str(secrets[place]),
        )
        for place in range(count)
    ]


def _placed(
    chains: Sequence[_Chain], tokenize: Tokenize, rng: random.Random
) -> list[tuple[float, list[int]]]:
    """The records by their place in the text, from 0 to 1; the two of a chain half apart.

    Which of the two comes first changes from chain to chain.
    """
    order = rng.sample(range(len(chains)), len(chains))
    placed = []
    for chain, slot in zip(chains, order, strict=True):
        early = (slot + rng.random()) / len(chains) / 2
        first, second = chain.records if slot % 2 else chain.records[::-1]
        placed += [(early, list(tokenize(first))), (early + 0.5, list(tokenize(second)))]
    return sorted(placed)


def _document(
    filler: Sequence[int], free: int, records: Sequence[tuple[float, list[int]]]
) -> list[int]:
    ordinary = _repeated(filler, free)
    text: list[int] = []
    done = 0
    for place, tokens in records:
        until = round(place * free)
        text += ordinary[done:until] + tokens
        done = until
    return text + ordinary[done:]


def _repeated(filler: Sequence[int], length: int) -> list[int]:
    return (list(filler) * (length // len(filler) + 1))[:length]
