"""Dominance: a memory failure rules out every candidate that needs at least as much memory.

There are two ways to find such candidates, each with its use:

- By settings (`needing_at_least`): no setting of the candidate has a smaller demand (`demand`),
  and settings without a known direction are equal. This needs no prediction, so the search can
  compare thousands of points. With several devices `search.point_grid` adds what lies on each.
- By predicted bytes (`find_ruling_failure`): the candidate needs at least as much of the failed
  device for each kind of buffer. This is exact to the layer, also over several devices and
  between layouts, so `probe` uses it to prove a boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autofit.memory.demand import Demands
from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.memory_estimate import DeviceEstimate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import OutOfMemory, Rejected, Spilled
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS, PLACEMENT_PARAMS
from autofit.trial.trial import Trial

# Rejections that do not depend on the devices of layers.
_REJECTIONS = frozenset({"unknown_flag", "bad_value", "combination"})
# Weights and caches are known to the byte. Compute buffers are not, nor are pools before a
# launch has shown them. If these are smaller than in the failed launch, the difference is
# multiplied by this factor.
_DOUBT = 1.25
_ROUNDING_MIB = 0.5


# ---- by settings


def needing_at_least(
    demands: Demands, points: NDArray[np.int64], other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which points need at least as much memory as another, usually one that failed.

    Args:
        demands: the demands of the values of each setting.
        points: the index of each value, of shape (points, settings).
        other: the index of each value of the other point, of shape (settings,).
    """
    return _compared(demands, points, other, sign=1.0)


def needing_at_most(
    demands: Demands, points: NDArray[np.int64], other: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which points need at most as much memory as another, usually one that ran."""
    return _compared(demands, points, other, sign=-1.0)


def _compared(
    demands: Demands, points: NDArray[np.int64], other: NDArray[np.int64], *, sign: float
) -> NDArray[np.bool_]:
    found = np.ones(len(points), dtype=np.bool_)
    for column, values in enumerate(demands):
        if values is None:
            continue
        here, there = points[:, column], other[column]
        with np.errstate(invalid="ignore"):
            found &= (here == there) | (sign * (values[here] - values[there]) >= 0)
    return found


# ---- by predicted bytes


def find_ruling_failure(
    candidate: Candidate, layout: str, memory: MemoryModel
) -> tuple[Trial, str] | None:
    """Find the launch that rules out a candidate; return it with the reason, or return None.

    A launch that ran out of memory on a device rules out a candidate that needs at least as
    much memory on that device. This holds only if launch and candidate have the same layout, or
    layers on the same devices. A rejected launch rules out the same settings in any layout.
    """
    for trial in memory.launches:
        reason = _reason(trial, candidate, layout, memory)
        if reason:
            return trial, reason
    return None


def shows_full_host(trial: Trial, memory: MemoryModel) -> bool:
    """Return whether a launch shows that the host has too little memory for its candidate.

    It does not if another launch that needs as much did run: then the cause was temporary.
    """
    if not _failed_on_host(trial):
        return False
    failed = memory.predict(trial.candidate)
    ran = [memory.predict(one.candidate) for one in memory.launches if one.is_completed]
    return failed is None or not any(
        other is not None and other.host.resident_mib >= failed.host.resident_mib for other in ran
    )


def _failed_on_host(trial: Trial) -> bool:
    return isinstance(trial.outcome, OutOfMemory) and trial.outcome.where != "device"


def _reason(trial: Trial, candidate: Candidate, layout: str, memory: MemoryModel) -> str:
    """Return the reason why a launch rules out a candidate, or an empty text if it does not."""
    outcome = trial.outcome
    if isinstance(outcome, Rejected) and outcome.reason in _REJECTIONS:
        is_same = _without_layout(candidate) == _without_layout(trial.candidate)
        return f"the runtime refuses these settings: {outcome.evidence}" if is_same else ""
    if not isinstance(outcome, OutOfMemory | Spilled):
        return ""
    if trial.layout != layout and not _has_same_devices(candidate, trial.candidate):
        return ""
    here, failed = memory.predict(candidate), memory.predict(trial.candidate)
    if here is None or failed is None:
        return ""
    if _failed_on_host(trial):
        is_more = here.host.resident_mib >= failed.host.resident_mib
        is_more = is_more and shows_full_host(trial, memory)
        return "takes at least the host memory of one that failed for it" if is_more else ""
    rows = {row.name: row for row in here.devices}
    failed_rows = [row for row in failed.devices if outcome.device in (None, row.name)]
    unreported = [memory.usual_unreported_mib(one) for one in (candidate, trial.candidate)]
    is_more = all(
        row.name in rows and _needs_at_least(rows[row.name], row, unreported)
        for row in failed_rows
    )
    device = outcome.device or "each device"
    return f"takes at least as much of {device} as one that failed there" if is_more else ""


def _needs_at_least(
    row: DeviceEstimate, failed: DeviceEstimate, unreported_mib: Sequence[Mapping[str, float]]
) -> bool:
    """Return whether a candidate needs at least as much memory of a device as a failed one.

    `unreported_mib` has the usual memory beyond buffers on each device, for the candidate and
    for the failed one.
    """
    weights = row.weights_mib - failed.weights_mib
    cache = row.kv_mib - failed.kv_mib
    if min(weights, cache) < -_ROUNDING_MIB:
        return False
    unsure = [row.compute_mib - failed.compute_mib]
    if all(row.name in seen for seen in unreported_mib):
        cache += unreported_mib[0][row.name] - unreported_mib[1][row.name]
    else:
        unsure.append(row.other_mib - failed.other_mib)
    rest = sum(mib * _DOUBT if mib < 0 else 0.0 for mib in unsure)
    return weights + cache + rest >= -_ROUNDING_MIB


def _has_same_devices(one: Candidate, other: Candidate) -> bool:
    """Return whether layers are on the same devices, apart from experts in system RAM."""
    names = set(PLACEMENT_PARAMS) - set(HOST_LAYER_PARAMS)
    return all(one.params.get(name) == other.params.get(name) for name in names)


def _without_layout(candidate: Candidate) -> Candidate:
    return candidate.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
