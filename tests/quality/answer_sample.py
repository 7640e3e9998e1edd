"""Recorded answers made by hand, for tests of equality and quality."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice


def choice(chances: Mapping[int, float]) -> TokenChoice:
    """A place with the chances of its likeliest tokens; the likeliest was chosen."""
    token = max(chances, key=chances.__getitem__)
    top = {one: math.log(chance) for one, chance in chances.items()}
    return TokenChoice(token, top[token], top)


def answer(places: Sequence[Mapping[int, float]]) -> RecordedAnswer:
    """An answer with these chances at its places; token n reads as the word `wn`."""
    choices = tuple(choice(chances) for chances in places)
    return RecordedAnswer(
        text="".join(f" w{one.token_id}" for one in choices),
        token_ids=tuple(one.token_id for one in choices),
        choices=choices,
    )


def answers(
    count: int = 4, length: int = 16, *, shake: float = 0.0, seed: int = 1, shake_seed: int = 1
) -> list[RecordedAnswer]:
    """Answers of a model whose logarithms are shaken by so much, as another order of sums does."""
    model, rounding = random.Random(seed), random.Random(shake_seed)
    found = []
    for _ in range(count):
        places = []
        for place in range(length):
            weights = [model.expovariate(1.0) ** 3 + 1e-3 for _ in range(8)]
            total = sum(weights) * 1.02
            shaken = [w / total * math.exp(shake * rounding.gauss(0, 1)) for w in weights]
            scale = min(1.0, 0.99 / sum(shaken))
            places.append({10 * place + n: s * scale for n, s in enumerate(shaken)})
        found.append(answer(places))
    return found
