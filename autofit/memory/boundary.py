"""The fit boundary: the fewest host layers that fit beside the most that do not.

More host layers take less of the devices, so the boundary is found by bisection. The
estimate says where to look first; a launch says what is true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class BoundarySearch:
    """What is known of one walk over host layers 0..`most`; immutable, `told` adds to it.

    `guess` is where the estimate expects the fewest that fit.
    """

    most: int
    guess: int
    known: Mapping[int, bool] = field(default_factory=dict)

    @property
    def fits(self) -> int | None:
        """The fewest host layers seen to fit, None before any did."""
        return min((n for n, fitted in self.known.items() if fitted), default=None)

    @property
    def fails(self) -> int | None:
        """The most host layers seen to fail under those that fit, None before any did."""
        limit = self.fits if self.fits is not None else self.most + 1
        return max(
            (n for n, fitted in self.known.items() if not fitted and n < limit), default=None
        )

    @property
    def lowest(self) -> int:
        """The fewest host layers that may still fit."""
        failed = [n for n, fitted in self.known.items() if not fitted]
        return max(failed, default=-1) + 1

    @property
    def is_closed(self) -> bool:
        """Whether both sides are known, or one end of the range is."""
        if self.fits is None:
            return self.lowest > self.most
        return self.fits <= self.lowest and (self.fits == 0 or self.fails is not None)

    def told(self, host_layers: int, *, fitted: bool) -> BoundarySearch:
        """The search with one more launch known."""
        return replace(self, known={**self.known, host_layers: fitted})

    def next_value(self) -> int | None:
        """The number of host layers to launch next, None when the boundary is closed.

        Around the guess it steps by one, one, two, four...; once both sides are known it
        halves what lies between, so a guess that is right by one costs two launches.
        """
        if self.is_closed:
            return None
        low, high = self.lowest, self.fits
        failed_count = sum(not fitted for fitted in self.known.values())
        if not self.known:
            return min(max(self.guess, 0), self.most)
        failed_below = self.fails if high is not None else None
        if high is None:
            return min(low - 1 + _step(failed_count), self.most)
        if failed_below is None:
            return max(high - _step(len(self.known) - failed_count), 0)
        return (low + high - 1) // 2 if high - low > 1 else low


def _step(same_answers: int) -> int:
    """How far to go on after that many launches with the same answer."""
    return 1 << max(0, same_answers - 2)
