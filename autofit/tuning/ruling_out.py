"""What a failed launch rules out, so that it is never launched again in another dress."""

from __future__ import annotations

from collections.abc import Sequence

from autofit.model.memory import DeviceMemory
from autofit.model.slice_cost import LAYOUT_PARAMS
from autofit.results.skipped import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import OutOfMemory, Rejected, Skipped, Spilled
from autofit.trial.trial import Trial
from autofit.tuning.candidates import CandidateMaker

# Refusals that have nothing to do with where layers lie.
_REFUSALS = frozenset({"unknown_flag", "bad_value", "combination"})
# Weights and caches are known to the byte. Compute buffers and pools are not: where they are
# smaller than those of the launch that failed, this much of the difference is reckoned with.
_DOUBT = 1.25
_ROUNDING_MIB = 0.5


def ruled_out(
    candidate: Candidate, layout: str, trials: Sequence[Trial], maker: CandidateMaker
) -> SkippedCandidate | None:
    """The candidate as one that need not be launched, None where no failure rules it out.

    A launch that lacked memory rules out what needs at least as much of it on the same device
    in the same layout; one that was refused, the same settings however they are laid out.
    """
    for trial in trials:
        why = _reason(trial, candidate, layout, maker)
        if why:
            outcome = Skipped(f"{why} (launch {trial.number})", because=trial.candidate.key)
            return SkippedCandidate(candidate, outcome, "boundary", layout)
    return None


def _reason(trial: Trial, candidate: Candidate, layout: str, maker: CandidateMaker) -> str:
    outcome = trial.outcome
    if isinstance(outcome, Rejected) and outcome.reason in _REFUSALS:
        is_same = _without_layout(candidate) == _without_layout(trial.candidate)
        return f"the runtime refuses these settings: {outcome.evidence}" if is_same else ""
    if not isinstance(outcome, OutOfMemory | Spilled) or trial.layout != layout:
        return ""
    here, there = maker.estimate(candidate), maker.estimate(trial.candidate)
    if here is None or there is None:
        return ""
    if isinstance(outcome, OutOfMemory) and outcome.where != "device":
        is_more = here.host.resident_mib >= there.host.resident_mib
        return "takes at least the host memory of one that failed for it" if is_more else ""
    rows = {row.name: row for row in here.devices}
    failed = [row for row in there.devices if outcome.device in (None, row.name)]
    is_more = all(row.name in rows and _needs_more(rows[row.name], row) for row in failed)
    device = outcome.device or "each device"
    return f"takes at least as much of {device} as one that failed there" if is_more else ""


def _needs_more(row: DeviceMemory, failed: DeviceMemory) -> bool:
    weights = row.weights_mib - failed.weights_mib
    cache = row.kv_mib - failed.kv_mib
    if min(weights, cache) < -_ROUNDING_MIB:
        return False
    unsure = (row.compute_mib - failed.compute_mib, row.other_mib - failed.other_mib)
    rest = sum(mib * _DOUBT if mib < 0 else 0.0 for mib in unsure)
    return weights + cache + rest >= -_ROUNDING_MIB


def _without_layout(candidate: Candidate) -> Candidate:
    return candidate.with_params(**dict.fromkeys(LAYOUT_PARAMS))
