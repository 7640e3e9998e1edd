"""A walk to one fit boundary: the fewest host layers that fit, beside one less, which does not.

More host layers take less of the devices, but not always: layouts are cut anew for each
number, and without any host layer several devices may work as a pipeline, which takes more.
So the walk follows what is predicted to stay free, and believes only launches.

Failures are rationed. While there are some left, the walk goes where the prediction points,
or, where that has been found wrong, down in strides; with the last one it goes down layer by
layer, so that a failure always closes the boundary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

# Free MiB predicted for so many host layers; None where no such candidate can be made.
FreeMib = Callable[[int], float | None]

MAX_FAILURES = 3
# The last failure is risked only where it closes the boundary, or on a candidate that is
# predicted to leave this much free.
_SAFE_MIB = 192.0
# Nor before anything fits: what was predicted has been wrong twice then, and the first that
# fits corrects it.
_SAFE_FIRST_MIB = 768.0
# How far below what fails the prediction is asked whether something fits all the same.
_LOOK_BEYOND = 4


@dataclass(slots=True)
class BoundaryWalk:
    """What is known of one layout and KV type, for numbers of host layers from 0 to `most`.

    `guess` is where the fewest that fit are expected. Where `zero_is_apart`, no host layer is
    a case of its own, which says nothing about one. `failures` counts launches that failed;
    what others' failures rule out is known without any.
    """

    most: int
    guess: int
    zero_is_apart: bool = False
    known: dict[int, bool] = field(default_factory=dict)
    failures: int = 0
    _impossible: set[int] = field(default_factory=set)

    def tell(self, host_layers: int, *, fits: bool, is_launched: bool = True) -> None:
        """Add what came of a candidate."""
        self.known[host_layers] = fits
        self.failures += is_launched and not fits

    @property
    def fits(self) -> int | None:
        """The fewest host layers known to fit, None before any are."""
        return min((n for n in self._walked() if self.known.get(n)), default=None)

    @property
    def fails(self) -> int | None:
        """The most host layers known to fail, below those that fit."""
        fits = self.fits
        failed = (n for n in self._walked() if self.known.get(n) is False)
        return max((n for n in failed if fits is None or n < fits), default=None)

    @property
    def is_closed(self) -> bool:
        """Whether both sides are known, or the end of the range is the other side."""
        if self.fits is None:
            possible = self._possible(self._walked())
            if not self.zero_is_apart and possible and self.known.get(possible[-1]) is False:
                return True  # not even with as many as there can be
            return all(self.known.get(n) is False for n in possible)
        below = self._below(self.fits)
        return below is None or self.known.get(below) is False

    @property
    def exceptions(self) -> dict[int, bool]:
        """What is known against the rule: less that fits, or more that does not."""
        fits = self.fits
        if fits is None:
            return {}
        return {n: told for n, told in sorted(self.known.items()) if told != (n >= fits)}

    def next_value(
        self, free_of: FreeMib, *, margin_mib: float, is_doubtful: bool = False
    ) -> int | None:
        """The number of host layers to try next; None when the walk has ended.

        `margin_mib` is what a first candidate should leave free. What is predicted
        `is_doubtful` when a launch has failed for which much was to stay free.
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
                return max(lowest, self._stride(below)) if is_doubtful else lowest
            self._impossible.add(below)
        return self._exception(free_of)

    def _walked(self) -> range:
        return range(int(self.zero_is_apart and not self._reaches_zero), self.most + 1)

    @property
    def _reaches_zero(self) -> bool:
        """Whether no host layer at all is the walk's end: nothing between is known to fail."""
        failed = any(not fits for n, fits in self.known.items() if n > 0)
        return self.known.get(1, False) or (self.known.get(0, False) and not failed)

    def _possible(self, numbers: Iterable[int]) -> list[int]:
        return [n for n in numbers if n not in self._impossible]

    def _below(self, host_layers: int) -> int | None:
        below = self._possible(n for n in self._walked() if n < host_layers)
        return max(below, default=None)

    @property
    def _risk_mib(self) -> float:
        """What a candidate must be predicted to leave free where its failure closes nothing."""
        return _SAFE_MIB if self.failures >= MAX_FAILURES - 1 else 0.0

    def _lowest_predicted(self, highest: int, free_of: FreeMib) -> int:
        """The lowest of those from here down that are all predicted to fit; here if none are."""
        found = highest
        for n in range(highest, self._walked().start - 1, -1):
            if n in self._impossible:
                continue
            free = free_of(n)
            if n in self.known or free is None or free < self._risk_mib:
                break
            found = n
        is_last = found == 1 and self.zero_is_apart and 0 not in self.known
        return 0 if is_last and self._is_predicted(0, free_of) else found

    def _stride(self, highest: int) -> int:
        """As far down as costs fewest launches in all: the last failure then goes by ones."""
        fails = self.fails
        gap = highest - (self._walked().start - 1 if fails is None else fails)
        return highest + 1 - max(1, round(math.sqrt(gap)))

    def _first(self, free_of: FreeMib, margin_mib: float) -> int | None:
        """The fewest, near the guess, that leave the margin; else what leaves most."""
        is_last = self.failures == MAX_FAILURES - 1
        margin_mib = max(margin_mib, _SAFE_FIRST_MIB if is_last else self._risk_mib)
        seen: dict[int, float] = {}

        def is_good(n: int) -> bool:
            free = free_of(n)
            if free is None:
                self._impossible.add(n)
                return False
            if n in self.known:
                return False
            seen[n] = free
            return free >= margin_mib

        walked = self._walked()
        guess = min(max(self.guess, walked.start), self.most)
        found = next((n for n in range(guess, self.most + 1) if is_good(n)), None)
        if found is None or found == guess:
            down = range(guess - 1, walked.start - 1, -1)
            if found is None:
                found = next((n for n in down if is_good(n)), None)
            while found is not None and found > walked.start and is_good(found - 1):
                found -= 1
        if found is not None:
            return found
        if not seen:
            return None
        best = max(seen, key=lambda n: (seen[n], n))
        is_hopeless = self.failures > 0 and seen[best] < 0
        return None if is_hopeless else best

    def _exception(self, free_of: FreeMib) -> int | None:
        """What is predicted to fit though more host layers do not, None where nothing is."""
        fails = self.fails
        if fails is None:
            return None
        for n in self._just_below(fails, free_of):
            if n not in self.known and self._is_predicted(n, free_of):
                return n
        is_open = self.zero_is_apart and 0 not in self.known
        return 0 if is_open and self._is_predicted(0, free_of) else None

    def _just_below(self, host_layers: int, free_of: FreeMib) -> list[int]:
        """The next few numbers below for which there is a candidate."""
        found: list[int] = []
        while len(found) < _LOOK_BEYOND:
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
