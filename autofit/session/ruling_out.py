"""What a failed launch rules out, so that it is never launched again in another dress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autofit.model.sizes.memory_estimate import DeviceEstimate
from autofit.session.launch_memory import MemoryRecord
from autofit.study.skipped import SkippedCandidate
from autofit.trial.candidate import Candidate
from autofit.trial.outcome import Outcome, OutOfMemory, Rejected, Skipped, Spilled
from autofit.trial.parameter_groups import HOST_LAYER_PARAMS, PLACEMENT_PARAMS
from autofit.trial.trial import Trial

# Refusals that have nothing to do with where layers lie.
_REFUSALS = frozenset({"unknown_flag", "bad_value", "combination"})
# Weights and caches are known to the byte. Compute buffers are not, nor are pools before a
# launch has shown them: where they are smaller than those of the launch that failed, this much
# of the difference is reckoned with.
_DOUBT = 1.25
_ROUNDING_MIB = 0.5


def ruled_out(
    candidate: Candidate, layout: str, trials: Sequence[Trial], record: MemoryRecord
) -> SkippedCandidate | None:
    """The candidate as one that need not be launched, None where no failure rules it out.

    A launch that lacked memory rules out what needs at least as much of it on the same device,
    in the same layout or with layers lying alike; one that was refused, the same settings
    however they are laid out.
    """
    for trial in trials:
        why = _reason(trial, candidate, layout, trials, record)
        if why:
            outcome = Skipped(f"{why} (launch {trial.number})", because=trial.candidate.key)
            return SkippedCandidate(candidate, outcome, "boundary", layout)
    return None


def lacks_host_memory(trial: Trial, trials: Sequence[Trial], record: MemoryRecord) -> bool:
    """Whether a launch shows that the host has too little memory for what it asked of it.

    It does not where another ran that takes as much: something else befell it then.
    """
    if not _failed_for_host(trial.outcome):
        return False
    failed = record.maker.estimate(trial.candidate)
    ran = [record.maker.estimate(one.candidate) for one in trials if one.is_completed]
    return failed is None or not any(
        other is not None and other.host.resident_mib >= failed.host.resident_mib for other in ran
    )


def _failed_for_host(outcome: Outcome) -> bool:
    return isinstance(outcome, OutOfMemory) and outcome.where != "device"


def _reason(
    trial: Trial,
    candidate: Candidate,
    layout: str,
    trials: Sequence[Trial],
    record: MemoryRecord,
) -> str:
    outcome = trial.outcome
    if isinstance(outcome, Rejected) and outcome.reason in _REFUSALS:
        is_same = _without_layout(candidate) == _without_layout(trial.candidate)
        return f"the runtime refuses these settings: {outcome.evidence}" if is_same else ""
    if not isinstance(outcome, OutOfMemory | Spilled):
        return ""
    if trial.layout != layout and not _lie_alike(candidate, trial.candidate):
        return ""
    here, there = (record.maker.estimate(one) for one in (candidate, trial.candidate))
    if here is None or there is None:
        return ""
    if _failed_for_host(outcome):
        is_more = here.host.resident_mib >= there.host.resident_mib
        is_more = is_more and lacks_host_memory(trial, trials, record)
        return "takes at least the host memory of one that failed for it" if is_more else ""
    rows = {row.name: row for row in here.devices}
    failed = [row for row in there.devices if outcome.device in (None, row.name)]
    beside = [record.beside_buffers_mib(one) for one in (candidate, trial.candidate)]
    is_more = all(row.name in rows and _needs_more(rows[row.name], row, beside) for row in failed)
    device = outcome.device or "each device"
    return f"takes at least as much of {device} as one that failed there" if is_more else ""


def _needs_more(
    row: DeviceEstimate, failed: DeviceEstimate, beside_mib: Sequence[Mapping[str, float]]
) -> bool:
    """Whether a device must hold at least as much as where it failed.

    `beside_mib` is what launches like the two took beside their buffers, by device.
    """
    weights = row.weights_mib - failed.weights_mib
    cache = row.kv_mib - failed.kv_mib
    if min(weights, cache) < -_ROUNDING_MIB:
        return False
    unsure = [row.compute_mib - failed.compute_mib]
    if all(row.name in seen for seen in beside_mib):
        cache += beside_mib[0][row.name] - beside_mib[1][row.name]
    else:
        unsure.append(row.other_mib - failed.other_mib)
    rest = sum(mib * _DOUBT if mib < 0 else 0.0 for mib in unsure)
    return weights + cache + rest >= -_ROUNDING_MIB


def _lie_alike(one: Candidate, other: Candidate) -> bool:
    """Whether layers lie on the same devices, experts in host memory left aside."""
    names = set(PLACEMENT_PARAMS) - set(HOST_LAYER_PARAMS)
    return all(one.params.get(name) == other.params.get(name) for name in names)


def _without_layout(candidate: Candidate) -> Candidate:
    return candidate.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
