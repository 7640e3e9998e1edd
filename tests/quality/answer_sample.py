"""Recorded answers made by hand, for tests of equality and scores."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice


def choice(probabilities: Mapping[int, float]) -> TokenChoice:
    """Return the choice of the likeliest of some tokens with their probabilities."""
    token = max(probabilities, key=probabilities.__getitem__)
    top = {one: math.log(probability) for one, probability in probabilities.items()}
    return TokenChoice(token, top[token], top)


def answer(positions: Sequence[Mapping[int, float]]) -> RecordedAnswer:
    """Return an answer with these probabilities by position; the text of token n is ` wn`."""
    choices = tuple(choice(probabilities) for probabilities in positions)
    return RecordedAnswer(
        text="".join(f" w{one.token_id}" for one in choices),
        token_ids=tuple(one.token_id for one in choices),
        choices=choices,
    )


def answers(
    count: int = 4, length: int = 16, *, noise: float = 0.0, seed: int = 1, noise_seed: int = 1
) -> list[RecordedAnswer]:
    """Return answers of a model with noise in the log probabilities, as rounding adds it."""
    model, rounding = random.Random(seed), random.Random(noise_seed)
    found = []
    for _ in range(count):
        positions = []
        for position in range(length):
            weights = [model.expovariate(1.0) ** 3 + 1e-3 for _ in range(8)]
            total = sum(weights) * 1.02
            noisy = [w / total * math.exp(noise * rounding.gauss(0, 1)) for w in weights]
            scale = min(1.0, 0.99 / sum(noisy))
            positions.append({10 * position + n: s * scale for n, s in enumerate(noisy)})
        found.append(answer(positions))
    return found
