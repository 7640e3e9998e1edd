"""What launches showed of memory: what a device holds beside buffers, spills, what stays free.

The last launches know best: a spill that one launch could not show may be plain beside the
next one, so outcomes are reviewed with everything that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from autofit.model.sizes.memory_estimate import DeviceEstimate
from autofit.runtime.diagnosis.memory_evidence import (
    ExpectedSlots,
    ExpectedUsage,
    find_spill,
    free_at_peak_mib,
    is_steady,
    launch_usage_mib,
)
from autofit.session.candidates import CandidateFactory
from autofit.trial.candidate import Candidate
from autofit.trial.measurement import Measurement
from autofit.trial.outcome import Outcome, Spilled
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS, KV_TYPE_PARAMS, PREFETCH_PARAMS
from autofit.trial.trial import Trial

# What decides how much a launch takes beside its buffers; those of the second group take it in
# steps of some hundred MiB.
_DECISIVE = (*KV_TYPE_PARAMS, "ubatch", "flash_attn")
_DECISIVE_IN_STEPS = EXPERT_MEMORY_PARAMS
# How much less a launch with other settings may take beside its buffers.
_UNLIKE_MIB = 160.0
# A device that spills is filled to the same mark each time, give or take this.
_BRIM_MIB = 16.0
# On a device that is known to spill and full to that mark, more than rounding is missing.
_BRIM_SIGN_MIB = 2.0


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """The launches of one run, read anew with each question.

    `trials` grows while the run goes on; `shared` are the devices whose memory is not their
    own.
    """

    maker: CandidateFactory
    trials: Sequence[Trial]
    shared: frozenset[str] = frozenset()

    def unreported_mib(self, candidate: Candidate) -> dict[str, float]:
        """By device what a candidate takes at least beside the runtime's buffers.

        A device without a launch that shows it is missing.
        """
        return self._unreported(candidate, self._brims())

    def outcome(self, trial: Trial) -> Outcome:
        """What came of a launch, by all that is known now: it may turn out to have spilled."""
        measured = trial.measurement
        if not trial.is_completed or measured is None:
            return trial.outcome
        brims = self._brims()
        unreported = self._unreported(trial.candidate, brims, besides=trial)
        holdings = [
            ExpectedUsage(
                device=name,
                buffers_mib=row.buffers_mib,
                unreported_mib=unreported.get(name),
                is_shared=name in self.shared,
            )
            for name, row in measured.reported.items()
        ]
        spill = find_spill(measured.readings, holdings, slowdown=self._slowdown(trial, brims))
        if spill is not None:
            return spill.outcome
        alike = self._alike(trial.candidate, brims, besides=trial)
        for holding in holdings:
            full = _full_to_the_brim(measured, holding, alike.get(holding.device), brims)
            if full is not None:
                return full
        return trial.outcome

    def is_unsure(self, trial: Trial) -> bool:
        """Whether a device came out full to the brim, and only a neighbour could tell why."""
        measured = trial.measurement
        if measured is None or not trial.is_completed:
            return False
        brims = {name: 0.0 for name in measured.reported if name not in self.shared}
        brims |= self._brims()
        alike = self._alike(trial.candidate, brims, besides=trial)
        return any(
            _is_at(measured, name, brims) and name not in alike for name in measured.reported
        )

    def beside_buffers_mib(self, candidate: Candidate) -> dict[str, float]:
        """By device what launches with the same settings took beside their buffers."""
        return {
            name: median(seen)
            for name, seen in self._alike(candidate, self._brims(), besides=None).items()
        }

    def expected_slots(self, candidate: Candidate) -> ExpectedSlots | None:
        """The prefetch slots that a candidate is to take; None where it prefetches nothing."""
        estimate = self.maker.estimate(candidate)
        rows = estimate.devices if estimate else ()
        row = next((row for row in rows if row.prefetch_mib), None)
        if row is None:
            return None
        # By layer it holds gate, up and down of one.
        count = candidate.get_amount("prefetch_slots") or 3
        without = candidate.with_params(**dict.fromkeys(PREFETCH_PARAMS, None))
        return ExpectedSlots(
            device=row.name,
            count=count,
            slot_mib=row.prefetch_mib / count,
            unreported_mib=self._likely_beside_mib(without, row.name),
        )

    def _likely_beside_mib(self, candidate: Candidate, device: str) -> float | None:
        """What a candidate takes of a device beside buffers, as far as launches tell."""
        brims = self._brims()
        alike = self._alike(candidate, brims, besides=None).get(device)
        if alike:
            return median(alike)
        others = self._others(candidate, brims, besides=None).get(device)
        return median(others) if others else None

    def free_mib(self, candidate: Candidate) -> float | None:
        """What the tightest device would have left; None where nothing is known.

        Of a candidate that resembles one that ran, only what the two differ by is estimated.
        """
        estimate = self.maker.estimate(candidate)
        if estimate is None or not estimate.devices:
            return None
        anchors = self._anchors(candidate)
        return min(self._free_on(row, anchors) for row in estimate.devices)

    # ---- spills

    def _brims(self) -> dict[str, float]:
        """By device what is free when it is full, where a launch was seen to spill."""
        brims: dict[str, float] = {}
        for trial in self.trials:
            if isinstance(trial.outcome, Spilled) and trial.measurement and trial.outcome.device:
                name = trial.outcome.device
                free = free_at_peak_mib(trial.measurement.readings, name)
                if free is not None:
                    brims[name] = max(free, brims.get(name, 0.0))
        return brims

    def _unreported(
        self, candidate: Candidate, brims: Mapping[str, float], besides: Trial | None = None
    ) -> dict[str, float]:
        alike = self._alike(candidate, brims, besides)
        others = self._others(candidate, brims, besides)
        unsure = {name: max(0.0, min(seen) - _UNLIKE_MIB) for name, seen in others.items()}
        return {**unsure, **{name: median(seen) for name, seen in alike.items()}}

    def _others(
        self, candidate: Candidate, brims: Mapping[str, float], besides: Trial | None
    ) -> dict[str, list[float]]:
        """What launches with other settings took, less what by estimate they differ by."""
        others: dict[str, list[float]] = {}
        for trial, name, mib in self._seen(candidate, _DECISIVE_IN_STEPS, brims, besides):
            here, there = self._estimated(candidate, name), self._estimated(trial.candidate, name)
            if here is not None and there is not None:
                others.setdefault(name, []).append(mib + here.other_mib - there.other_mib)
        return others

    def _alike(
        self, candidate: Candidate, brims: Mapping[str, float], besides: Trial | None
    ) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for _, name, mib in self._seen(
            candidate, (*_DECISIVE, *_DECISIVE_IN_STEPS), brims, besides
        ):
            found.setdefault(name, []).append(mib)
        return found

    def _seen(
        self,
        candidate: Candidate,
        params: Sequence[str],
        brims: Mapping[str, float],
        besides: Trial | None,
    ) -> Iterator[tuple[Trial, str, float]]:
        """What launches with the same values took of each device beside their buffers."""
        for trial, measured in self._completed():
            if trial is besides or not _agree(candidate, trial.candidate, params):
                continue
            for name, row in measured.reported.items():
                taken = launch_usage_mib(measured.readings, name)
                if (
                    taken is not None
                    and is_steady(measured.readings, name)
                    and not _is_at(measured, name, brims)
                ):
                    yield trial, name, taken - row.buffers_mib

    def _slowdown(self, trial: Trial, brims: Mapping[str, float]) -> float | None:
        """How many times slower a launch is than the nearest that resembles it."""
        neighbours = [
            other
            for other, measured in self._completed()
            if other is not trial
            and other.layout == trial.layout
            and _agree(trial.candidate, other.candidate, (*_DECISIVE, *_DECISIVE_IN_STEPS))
            and not any(_is_at(measured, name, brims) for name in measured.reported)
        ]
        if not neighbours:
            return None
        nearest = min(neighbours, key=lambda other: self._distance_mib(trial, other))
        ours, theirs = _seconds_per_token(trial), _seconds_per_token(nearest)
        return max((ours[kind] / theirs[kind] for kind in ours if kind in theirs), default=None)

    def _distance_mib(self, trial: Trial, other: Trial) -> float:
        sizes = [
            sum(row.buffers_mib for row in one.measurement.reported.values())
            for one in (trial, other)
            if one.measurement
        ]
        return abs(sizes[0] - sizes[-1])

    # ---- what would be free

    def _anchors(self, candidate: Candidate) -> list[tuple[bool, Trial, Measurement]]:
        """Launches that tell what is free, with whether they resemble the candidate."""
        brims = self._brims()
        return [
            (_agree(candidate, trial.candidate, _DECISIVE), trial, measured)
            for trial, measured in self._completed()
            if _agree(candidate, trial.candidate, _DECISIVE_IN_STEPS)
            and not any(_is_at(measured, name, brims) for name in measured.reported)
        ]

    def _free_on(
        self, row: DeviceEstimate, anchors: Sequence[tuple[bool, Trial, Measurement]]
    ) -> float:
        limit_mib = self.maker.task.limits_mib.get(row.name)
        buffers_mib = row.weights_mib + row.kv_mib + row.compute_mib
        found: list[tuple[bool, float, float]] = []
        for is_alike, trial, measured in anchors:
            there = self._estimated(trial.candidate, row.name)
            told = measured.reported.get(row.name)
            if there is None or told is None:
                continue
            distance = abs(there.total_mib - row.total_mib)
            free = free_at_peak_mib(measured.readings, row.name)
            left = [] if free is None else [free + there.total_mib - row.total_mib]
            if limit_mib is not None:
                differ = buffers_mib - there.weights_mib - there.kv_mib - there.compute_mib
                left.append(limit_mib - told.buffers_mib - differ)
            if left:
                found.append((not is_alike, distance, min(left)))
        if found:
            return min(found)[2]
        return row.free_mib if limit_mib is None else limit_mib - buffers_mib

    def _estimated(self, candidate: Candidate, device: str) -> DeviceEstimate | None:
        estimate = self.maker.estimate(candidate)
        rows = estimate.devices if estimate else ()
        return next((row for row in rows if row.name == device), None)

    def _completed(self) -> Iterator[tuple[Trial, Measurement]]:
        for trial in self.trials:
            if trial.is_completed and trial.measurement is not None:
                yield trial, trial.measurement


def _agree(one: Candidate, other: Candidate, params: Sequence[str]) -> bool:
    # What is off is as good as absent.
    return all((one.params.get(name) or 0) == (other.params.get(name) or 0) for name in params)


def _full_to_the_brim(
    measured: Measurement,
    holding: ExpectedUsage,
    unreported_mib: Sequence[float] | None,
    brims: Mapping[str, float],
) -> Spilled | None:
    """A device that is known to spill, full, and lacking a little of what it should hold."""
    name = holding.device
    taken = launch_usage_mib(measured.readings, name)
    if taken is None or not unreported_mib or not _is_at(measured, name, brims):
        return None
    missing = holding.buffers_mib + min(unreported_mib) - taken
    if missing <= _BRIM_SIGN_MIB:
        return None
    text = f"{name} is full, as when it spilled, and lacks {missing:.0f} MiB"
    return Spilled("prompt", text, name, round(missing, 1))


def _is_at(measured: Measurement, device: str, brims: Mapping[str, float]) -> bool:
    """Whether a device was as full as when it spilled."""
    if device not in brims:
        return False
    free = free_at_peak_mib(measured.readings, device)
    return free is not None and free <= brims[device] + _BRIM_MIB


def _seconds_per_token(trial: Trial) -> dict[str, float]:
    """The best of a launch, by kind of token: what is slow once may be somebody else's doing."""
    samples = trial.measurement.samples if trial.measurement else ()
    prompt = [s.prompt_s / s.prompt_tokens for s in samples if s.pp_per_s]
    predicted = [1 / s.tg_per_s for s in samples if s.tg_per_s]
    found = {"prompt": min(prompt, default=0.0), "predicted": min(predicted, default=0.0)}
    return {kind: seconds for kind, seconds in found.items() if seconds}
