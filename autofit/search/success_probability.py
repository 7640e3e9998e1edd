"""How likely points are to fail for another reason than memory, by those that did.

A runtime that refuses a value refuses it everywhere, so a failure is blamed on the values
that no launch has run with; where every value has, on the combination and what is like it.
"""

from __future__ import annotations

import numpy as np

from autofit.search.kernel import Kernel
from autofit.search.point_grid import Floats, Rows

# What blame leaves of the chance: even a value that seems bad may have met bad luck.
_FLOOR = 0.05
# How much a launch like the one that failed must be outweighed by launches that ran.
_DOUBT = 0.25


def works(rows: Rows, failed: Rows, ran: Rows, similarity: Kernel) -> Floats:
    """The chance of rows not to fail so, of shape (rows,).

    Args:
        rows: points to judge, of shape (points, axes).
        failed: those that failed for another reason than memory.
        ran: those that ran.
        similarity: of the grid.
    """
    found = np.ones(len(rows))
    blamed: dict[tuple[int, int], float] = {}
    unexplained = []
    for row in failed:
        suspects = [
            (place, int(value)) for place, value in enumerate(row) if value not in ran[:, place]
        ]
        for suspect in suspects:
            blamed[suspect] = max(blamed.get(suspect, 0.0), 1 / len(suspects))
        if not suspects:
            unexplained.append(row)
    for (place, value), blame in blamed.items():
        found[rows[:, place] == value] *= max(1 - blame, _FLOOR)
    if unexplained:
        against = similarity.between(rows, np.array(unexplained)).sum(axis=1)
        speaking = similarity.between(rows, ran).sum(axis=1)
        found *= (_DOUBT + speaking) / (_DOUBT + speaking + against)
    return found
