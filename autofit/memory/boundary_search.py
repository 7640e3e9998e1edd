"""The search for a fit boundary: the fewest host layers that fit, next to the most that do not.

The candidates of a boundary differ only in the number of host layers. More host layers usually
leave more device memory free, so the boundary lies between two neighbours. There are
exceptions: several devices get new slices for each number, and without host layers the devices
may work as a pipeline, which needs more memory. Only launches are believed.

`BoundarySearch` keeps what launches have shown and says which number to launch next:

- `next_by_halving` needs no prediction and does not avoid failures. A tune uses it at the end of
  its search.
- `next_by_prediction` follows the predicted free memory and limits the failures, because each
  may take as long as a timeout. `probe` uses it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Returns the predicted free MiB with a number of host layers, or None without such a candidate.
FreeMib = Callable[[int], float | None]

MAX_FAILURES = 3
# The last failure is risked only where it proves the boundary, or on a candidate with this much
# predicted free memory.
_SAFE_MIB = 192.0
# The same limit before any launch fits. By then the prediction was wrong twice, and only a
# launch that fits corrects it.
_SAFE_FIRST_MIB = 768.0
# Predictions are computed for this many numbers below the largest failing one.
_LOOK_BELOW = 4


@dataclass(slots=True)
class BoundarySearch:
    """A search for one boundary among 0 to `most` host layers, with the results so far.

    Attributes:
        most: the most host layers that there can be.
        expected: the fewest that are expected to fit.
        is_zero_separate: whether a launch with 0 host layers shows nothing about 1, nor the
            reverse.
        known: whether each number fits, in the order of the launches.
    """

    most: int
    expected: int
    is_zero_separate: bool = False
    known: dict[int, bool] = field(default_factory=dict)
    _failed_launches: set[int] = field(default_factory=set)
    _impossible: set[int] = field(default_factory=set)

    def record(self, host_layers: int, *, fits: bool, is_launched: bool = True) -> None:
        """Add the result for a number, from a launch or implied by another candidate's failure."""
        self.known[host_layers] = fits
        if is_launched and not fits:
            self._failed_launches.add(host_layers)

    @property
    def fits(self) -> int | None:
        """The fewest host layers that are known to fit, or None before any are."""
        return min((n for n in self._range if self.known.get(n)), default=None)

    @property
    def fails(self) -> int | None:
        """The most host layers below `fits` that are known to fail, or None before any are."""
        fits = self.fits
        failed = (n for n in self._range if self.known.get(n) is False)
        return max((n for n in failed if fits is None or n < fits), default=None)

    @property
    def fewest_possible(self) -> int:
        """The fewest host layers that may still fit."""
        fails = self.fails
        return self._range.start if fails is None else fails + 1

    @property
    def failures(self) -> int:
        """The number of launches that failed."""
        return len(self._failed_launches)

    @property
    def is_closed(self) -> bool:
        """True if both sides are known, or one side is known and the range ends there."""
        fits = self.fits
        if fits is None:
            possible = self._possible(self._range)
            if not self.is_zero_separate and possible and self.known.get(possible[-1]) is False:
                return True
            return all(self.known.get(n) is False for n in possible)
        below = self._below(fits)
        return below is None or self.known.get(below) is False

    @property
    def exceptions(self) -> dict[int, bool]:
        """The numbers that break the rule: they fit with fewer host layers, or fail with more."""
        fits = self.fits
        if fits is None:
            return {}
        return {n: result for n, result in sorted(self.known.items()) if result != (n >= fits)}

    # ---- the next launch

    def next_by_halving(self) -> int | None:
        """Return the next number without a prediction, or None if the boundary is closed.

        The steps away from the expected number are 1, 1, 2, 4 and so on. Once both sides are
        known, the middle is launched. If the expected number is right, two launches are enough.
        """
        if self.is_closed:
            return None
        if not self.known:
            return min(max(self.expected, 0), self.most)
        fits, fails = self.fits, self.fails
        failed = sum(not result for result in self.known.values())
        if fits is None:
            return min(self.fewest_possible - 1 + _step(failed), self.most)
        if fails is None:
            return max(fits - _step(len(self.known) - failed), 0)
        return (fails + fits) // 2

    def next_by_prediction(
        self, free_of: FreeMib, *, margin_mib: float, is_unreliable: bool = False
    ) -> int | None:
        """Return the number of host layers to try next, or None if the search has ended.

        Args:
            free_of: returns the predicted free memory with a number of host layers.
            margin_mib: the free memory that the first candidate should have.
            is_unreliable: whether a launch failed although much free memory was predicted.
        """
        fits = self.fits
        if self.failures >= MAX_FAILURES:
            found = None if fits is not None else self._first(free_of, margin_mib)
            return found if found is not None and self._is_predicted(found, free_of) else None
        if fits is None:
            return self._first(free_of, margin_mib)
        while (below := self._below(fits)) is not None and below not in self.known:
            if free_of(below) is not None:
                lowest = self._lowest_predicted(below, free_of)
                return max(lowest, self._stride(below)) if is_unreliable else lowest
            self._impossible.add(below)
        return self._predicted_exception(free_of)

    @property
    def _range(self) -> range:
        """The numbers among which the boundary is searched."""
        return range(int(self.is_zero_separate and not self._reaches_zero), self.most + 1)

    @property
    def _reaches_zero(self) -> bool:
        """True if the range ends at 0 host layers, because no larger number is known to fail."""
        failed = any(not fits for n, fits in self.known.items() if n > 0)
        return self.known.get(1, False) or (self.known.get(0, False) and not failed)

    def _possible(self, numbers: Iterable[int]) -> list[int]:
        return [n for n in numbers if n not in self._impossible]

    def _below(self, host_layers: int) -> int | None:
        below = self._possible(n for n in self._range if n < host_layers)
        return max(below, default=None)

    @property
    def _risk_mib(self) -> float:
        """The predicted free memory of a candidate whose failure would prove nothing."""
        return _SAFE_MIB if self.failures >= MAX_FAILURES - 1 else 0.0

    def _lowest_predicted(self, highest: int, free_of: FreeMib) -> int:
        """Return the lowest number down to which all, from `highest` on, are predicted to fit.

        Return `highest` if it is itself not predicted to fit.
        """
        found = highest
        for n in range(highest, self._range.start - 1, -1):
            if n in self._impossible:
                continue
            free = free_of(n)
            if n in self.known or free is None or free < self._risk_mib:
                break
            found = n
        is_last = found == 1 and self.is_zero_separate and 0 not in self.known
        return 0 if is_last and self._is_predicted(0, free_of) else found

    def _stride(self, highest: int) -> int:
        """Return the next lower number, chosen so that the whole search takes the fewest launches.

        Once only one more failure is allowed, the rest is launched one by one.
        """
        fails = self.fails
        gap = highest - (self._range.start - 1 if fails is None else fails)
        return highest + 1 - max(1, round(math.sqrt(gap)))

    def _first(self, free_of: FreeMib, margin_mib: float) -> int | None:
        """Return the fewest near the expected number with the margin, or the one with the most."""
        is_last = self.failures == MAX_FAILURES - 1
        margin_mib = max(margin_mib, _SAFE_FIRST_MIB if is_last else self._risk_mib)
        seen: dict[int, float] = {}

        def has_margin(n: int) -> bool:
            free = free_of(n)
            if free is None:
                self._impossible.add(n)
                return False
            if n in self.known:
                return False
            seen[n] = free
            return free >= margin_mib

        start = self._range.start
        expected = min(max(self.expected, start), self.most)
        found = next((n for n in range(expected, self.most + 1) if has_margin(n)), None)
        if found is None or found == expected:
            down = range(expected - 1, start - 1, -1)
            if found is None:
                found = next((n for n in down if has_margin(n)), None)
            while found is not None and found > start and has_margin(found - 1):
                found -= 1
        if found is not None:
            return found
        if not seen:
            return None
        best = max(seen, key=lambda n: (seen[n], n))
        is_hopeless = self.failures > 0 and seen[best] < 0
        return None if is_hopeless else best

    def _predicted_exception(self, free_of: FreeMib) -> int | None:
        """Return a number that is predicted to fit although more host layers do not."""
        fails = self.fails
        if fails is None:
            return None
        for n in self._just_below(fails, free_of):
            if n not in self.known and self._is_predicted(n, free_of):
                return n
        is_open = self.is_zero_separate and 0 not in self.known
        return 0 if is_open and self._is_predicted(0, free_of) else None

    def _just_below(self, host_layers: int, free_of: FreeMib) -> list[int]:
        """Return the next few lower numbers that have a candidate."""
        found: list[int] = []
        while len(found) < _LOOK_BELOW:
            below = self._below(host_layers)
            if below is None:
                break
            if free_of(below) is None:
                self._impossible.add(below)
            else:
                found.append(below)
            host_layers = below
        return found

    def _is_predicted(self, host_layers: int, free_of: FreeMib) -> bool:
        free = free_of(host_layers)
        return free is not None and free >= self._risk_mib


def _step(same_results: int) -> int:
    """Return the size of the next step after some launches with the same result."""
    return 1 << max(0, same_results - 2)
