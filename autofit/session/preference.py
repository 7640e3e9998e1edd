"""Which of several equally fast candidates to recommend."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.model.sizes.kv_cache import kv_element_bytes, kv_types
from autofit.session.rounds_result import Standing
from autofit.trial.trial import Trial

# Differences of free memory below this come and go between launches of one candidate.
SAME_HEADROOM_MIB = 64.0


def prefer(tied: Sequence[Standing]) -> Standing:
    """The one with more headroom, then with the wider KV type, then the first.

    Headroom that is not known for all of them does not count.

    Raises:
        ValueError: there is none to choose from.
    """
    headrooms = [headroom_mib(standing.trials) for standing in tied]
    known = [headroom for headroom in headrooms if headroom is not None]
    most = max(known) if len(known) == len(tied) and known else None
    roomy = [
        standing
        for standing, headroom in zip(tied, headrooms, strict=True)
        if most is None or headroom is None or headroom >= most - SAME_HEADROOM_MIB
    ]
    return max(roomy, key=lambda standing: _kv_bytes(standing.trials))


def headroom_mib(trials: Sequence[Trial]) -> float | None:
    """The least free memory of any device at the peak of any launch, None if not counted."""
    free = [
        mib
        for trial in trials
        if trial.measurement is not None
        for name, mib in trial.measurement.free_mib.items()
        if mib is not None and name != "host"
    ]
    return min(free, default=None)


def _kv_bytes(trials: Sequence[Trial]) -> float:
    """Return the bytes of one key and one value; a type that ggml lacks counts as 0."""
    return sum(map(kv_element_bytes, kv_types(trials[0].candidate))) if trials else 0.0
