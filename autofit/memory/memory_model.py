"""The memory model: memory predictions for candidates, calibrated by the planner and by launches.

Arithmetic predicts the memory of thousands of candidates. The runtime's own planner predicts it
for a few. A launch shows the true memory. Only `MemoryModel.observe` takes launches into
account, and all later answers use them:

- `predict` is arithmetic, corrected by the planner and by launches (`calibration`);
- `free_mib` starts from a launch with similar settings if there is one, and predicts only the
  difference; `excess_mib` is the least error that failed launches show;
- `unreported_mib` and `expected_slots` return how much a launch should use, so that it can be
  judged;
- `spill_review` judges finished launches again with the launches that came after them.

The search does not use bytes directly. `search.feasibility` converts a predicted margin to the
probability that a candidate runs, from the number of launches with such margins that failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

from autofit.errors import UsageError
from autofit.memory.calibration import (
    Calibration,
    CalibrationStore,
    ObservedMemory,
    calibrate,
)
from autofit.memory.demand import without_free_settings
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import DeviceEstimate, MemoryEstimate, estimate_memory
from autofit.runtime.diagnosis.memory_evidence import (
    ExpectedSlots,
    find_shared_devices,
    free_at_peak_mib,
    is_steady,
    launch_usage_mib,
)
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.runtime.server.request_plan import FullContextCheck, make_full_context_request
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.measurement import Measurement
from autofit.trial.outcome import Spilled, lacks_device_memory
from autofit.trial.parameter_groups import (
    EXPERT_MEMORY_PARAMS,
    KV_TYPE_PARAMS,
    PREFETCH_PARAMS,
)
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# Launches that agree in these settings use the same memory beyond their buffers. The second
# group changes that memory in steps of some hundred MiB.
DECISIVE_PARAMS = (*KV_TYPE_PARAMS, "ubatch", "flash_attn")
DECISIVE_IN_STEPS = EXPERT_MEMORY_PARAMS
# A launch with other settings may use this much less beyond its buffers.
_DIFFERENT_MIB = 160.0
# A device that spills is filled to the same level each time, within this difference.
_FULL_LEVEL_MIB = 16.0
# A full context is tried where a device keeps less than this, apart from the known growth of
# pools. On real cards the free memory shrank by 2 to 10 MiB from the workload's
# prompts to a full context served twice.
_UNTRUSTED_MIB = 128.0


@dataclass(slots=True, kw_only=True)
class MemoryModel:
    """A predictor of the memory that candidates of one model need on some devices.

    Attributes:
        inventory: the model.
        devices: those that may be used, in order.
        workload: its context has to fit.
        limits_mib: the user's limit for each device, by name; empty without limits.
        planner: the runtime's own planner, or None. It may run only while no server runs.
        build: the fingerprint of the runtime; calibration is kept for each.
        store: the calibration kept between studies, or None to keep nothing.
        launches: all observed launches in order, with their final outcomes.
    """

    inventory: ModelInventory
    devices: tuple[Device, ...]
    workload: Workload
    limits_mib: Mapping[str, float] = field(default_factory=dict)
    planner: RuntimePlanner | None = None
    build: str = ""
    store: CalibrationStore | None = None
    launches: list[Trial] = field(default_factory=list)
    _arithmetic: dict[str, MemoryEstimate | None] = field(default_factory=dict)
    _observed: dict[str, ObservedMemory] = field(default_factory=dict)
    _earlier: Calibration = field(init=False)
    _calibration: Calibration = field(init=False)

    def __post_init__(self) -> None:
        self._earlier = Calibration()
        if self.store is not None:
            self._earlier = self.store.calibration(self.inventory.digest, self.build)
        self._calibration = self._earlier

    # ---- calibration

    def observe(self, trial: Trial) -> None:
        """Take a finished launch into account.

        A failed launch does not calibrate predictions, because it had not allocated everything.
        On real cards launches that ran out of memory used from 740 MiB less to 730 MiB more than
        their buffers; all others used 720 to 800 MiB more. The baseline does not calibrate them
        either, because the runtime itself placed its layers.
        """
        self.launches.append(trial)
        measured = trial.measurement
        if not trial.is_completed or trial.phase == "baseline" or measured is None:
            return
        predicted = self._by_arithmetic(trial.candidate)
        if predicted is None or not measured.reported:
            return
        used_mib = self._used_at_full_context(trial.candidate, measured)
        observed = ObservedMemory(
            predicted=predicted, reported=measured.reported, used_mib=used_mib
        )
        self._calibrate(trial.candidate, observed)
        if self.store is None:
            return
        for row in predicted.devices:
            if row.name in used_mib:
                self.store.add(
                    self.inventory.digest,
                    self.build,
                    row.name,
                    predicted_mib=row.total_mib,
                    used_mib=used_mib[row.name],
                )

    def ask_planner(self, candidate: Candidate) -> None:
        """Calibrate predictions with the planner's answer for a candidate, if one exists."""
        predicted = self._by_arithmetic(candidate)
        if self.planner is None or predicted is None:
            return
        if without_free_settings(candidate).key in self._observed:
            return
        reported = self.planner.predict_memory(candidate)
        if reported is not None:
            self._calibrate(candidate, ObservedMemory(predicted=predicted, reported=reported))

    def _calibrate(self, candidate: Candidate, observed: ObservedMemory) -> None:
        self._observed[without_free_settings(candidate).key] = observed
        learned = calibrate(list(self._observed.values()))
        self._calibration = Calibration({**self._earlier.devices, **learned.devices})

    def _used_at_full_context(
        self, candidate: Candidate, measured: Measurement
    ) -> dict[str, float]:
        """Map each device to its used MiB plus the growth to a full context."""
        before = measured.readings[0].device_used_mib if measured.readings else {}
        depth = max((s.depth + s.predicted_tokens for s in measured.samples), default=None)
        growth = {} if depth is None else self.growth_mib(candidate, depth=depth)
        return {
            name: peak - start + growth.get(name, 0.0)
            for name, peak in measured.peak_mib.items()
            if peak is not None and (start := before.get(name)) is not None
        }

    def launch_of(self, candidate: Candidate) -> Trial | None:
        """Return the first observed launch of a candidate, or None if there is none."""
        return next((trial for trial in self.launches if trial.candidate == candidate), None)

    # ---- predictions

    def predict(self, candidate: Candidate) -> MemoryEstimate | None:
        """Return the predicted memory, or None if arithmetic cannot predict it."""
        predicted = self._by_arithmetic(candidate)
        return None if predicted is None else self._calibration.corrected(predicted)

    def predict_device(self, candidate: Candidate, device: str) -> DeviceEstimate | None:
        """Return the predicted memory of one device, or None where it is unknown or unused."""
        predicted = self.predict(candidate)
        rows = predicted.devices if predicted else ()
        return next((row for row in rows if row.name == device), None)

    def growth_mib(self, candidate: Candidate, *, depth: int) -> dict[str, float]:
        """Map each device to its pool growth from `depth` tokens a slot to a full context."""
        slots = max(1, candidate.get_int("parallel", self.workload.parallel))
        context = candidate.get_int("context", self.workload.context)
        if depth * slots >= context:
            return {}
        full = self._by_arithmetic(candidate)
        part = self._by_arithmetic(candidate.with_params(context=max(1, depth) * slots))
        if full is None or part is None:
            return {}
        return {
            row.name: max(0.0, row.other_mib - less.other_mib)
            for row, less in zip(full.devices, part.devices, strict=True)
        }

    def full_context_check(self, candidate: Candidate) -> FullContextCheck:
        """Return the request that fills a slot, and the free memory below which it is sent."""
        # A short launch ends long before the workload's generation does.
        growth = self.growth_mib(candidate, depth=self.workload.longest_prompt_tokens)
        predicted = self.predict(candidate)
        rows = predicted.devices if predicted else ()
        return FullContextCheck(
            make_full_context_request(self.workload.context // self.workload.parallel),
            {
                row.name: growth.get(row.name, 0.0) + _UNTRUSTED_MIB + row.headroom_mib
                for row in rows
            },
            {row.name: row.free_mib + row.headroom_mib for row in rows},
        )

    def free_mib(self, candidate: Candidate) -> float | None:
        """Return the MiB that the tightest device would keep free, or None where it is unknown.

        The headroom that is to stay free does not count.
        """
        predicted = self.predict(candidate)
        if predicted is None or not predicted.devices:
            return None
        full = self.full_levels_mib()
        similar = [
            (trial, measured)
            for trial, measured in self._completed()
            if agree(candidate, trial.candidate, DECISIVE_IN_STEPS)
            and not any(is_at_full_level(measured, name, full) for name in measured.reported)
        ]
        return min(self._free_on(row, candidate, similar) for row in predicted.devices)

    def excess_mib(self, launches: Iterable[Trial]) -> float:
        """Return the least MiB by which predictions are too low, from launches that did not fit.

        A failed launch measures nothing, so it corrects only the predictions for which a caller
        passes it.
        """
        free = [
            self.free_mib(trial.candidate) or 0.0
            for trial in launches
            if lacks_device_memory(trial.outcome)
        ]
        return max([0.0, *(mib + 1.0 for mib in free)])

    def _free_on(
        self,
        row: DeviceEstimate,
        candidate: Candidate,
        similar: Sequence[tuple[Trial, Measurement]],
    ) -> float:
        """Predict a device's free MiB from the launch that differs least from the candidate."""
        limit_mib = self.limits_mib.get(row.name)
        buffers_mib = row.weights_mib + row.kv_mib + row.compute_mib
        found: list[tuple[bool, float, float]] = []
        for trial, measured in similar:
            there = self.predict_device(trial.candidate, row.name)
            reported = measured.reported.get(row.name)
            if there is None or reported is None:
                continue
            is_different = not agree(candidate, trial.candidate, DECISIVE_PARAMS)
            distance = abs(there.total_mib - row.total_mib)
            free = free_at_peak_mib(measured.readings, row.name)
            more = there.total_mib - row.total_mib - row.headroom_mib
            left = [] if free is None else [free + more]
            if limit_mib is not None:
                more = buffers_mib - there.weights_mib - there.kv_mib - there.compute_mib
                left.append(limit_mib - reported.buffers_mib - more)
            if left:
                found.append((is_different, distance, min(left)))
        if found:
            return min(found)[2]
        return row.free_mib if limit_mib is None else limit_mib - buffers_mib

    def _by_arithmetic(self, candidate: Candidate) -> MemoryEstimate | None:
        reduced = without_free_settings(candidate)
        if reduced.key not in self._arithmetic:
            predicted = None
            if self.devices:
                with suppress(UsageError):  # for some placements that a user pinned
                    predicted = estimate_memory(self.inventory, reduced, self.devices)
            self._arithmetic[reduced.key] = predicted
        return self._arithmetic[reduced.key]

    # ---- memory beyond the runtime's buffers: driver contexts, pools, slots

    def unreported_mib(
        self, candidate: Candidate, *, excluding: Trial | None = None
    ) -> dict[str, float]:
        """Map each device to the least MiB that a candidate uses beyond the runtime's buffers.

        A device is left out if no launch has shown that use.
        """
        others = self._unreported(candidate, DECISIVE_IN_STEPS, excluding=excluding)
        least = {name: max(0.0, min(mib) - _DIFFERENT_MIB) for name, mib in others.items()}
        return {**least, **self.usual_unreported_mib(candidate, excluding=excluding)}

    def usual_unreported_mib(
        self, candidate: Candidate, *, excluding: Trial | None = None
    ) -> dict[str, float]:
        """Map each device to the median use beyond buffers of launches with the same settings."""
        same = self.unreported_of_same(candidate, excluding=excluding)
        return {name: median(mib) for name, mib in same.items()}

    def unreported_of_same(
        self,
        candidate: Candidate,
        *,
        excluding: Trial | None = None,
        full_levels_mib: Mapping[str, float] | None = None,
    ) -> dict[str, list[float]]:
        """Map each device to the MiB that launches with the same settings use beyond buffers.

        A launch does not count for a device that it filled to the full level. `full_levels_mib`
        replaces the levels that spills have shown.
        """
        params = (*DECISIVE_PARAMS, *DECISIVE_IN_STEPS)
        return self._unreported(
            candidate, params, excluding=excluding, full_levels_mib=full_levels_mib
        )

    def _unreported(
        self,
        candidate: Candidate,
        params: Sequence[str],
        *,
        excluding: Trial | None = None,
        full_levels_mib: Mapping[str, float] | None = None,
    ) -> dict[str, list[float]]:
        """Map each device to the MiB that launches with the same `params` use beyond buffers.

        If `params` does not include all decisive settings, the predicted difference is added. A
        launch does not count for a device that was full, or on which another program allocated
        or freed memory meanwhile.
        """
        levels = self.full_levels_mib() if full_levels_mib is None else full_levels_mib
        is_same = set(params) >= set(DECISIVE_PARAMS)
        found: dict[str, list[float]] = {}
        for trial, measured in self._completed():
            if trial is excluding or not agree(candidate, trial.candidate, params):
                continue
            for name, row in measured.reported.items():
                used_mib = launch_usage_mib(measured.readings, name)
                if (
                    used_mib is None
                    or not is_steady(measured.readings, name)
                    or is_at_full_level(measured, name, levels)
                ):
                    continue
                mib = used_mib - row.buffers_mib
                if not is_same:
                    here = self.predict_device(candidate, name)
                    there = self.predict_device(trial.candidate, name)
                    if here is None or there is None:
                        continue
                    mib = mib + here.other_mib - there.other_mib
                found.setdefault(name, []).append(mib)
        return found

    def expected_slots(self, candidate: Candidate) -> ExpectedSlots | None:
        """Return the prefetch slots of a candidate, or None where it prefetches nothing."""
        predicted = self.predict(candidate)
        rows = predicted.devices if predicted else ()
        row = next((row for row in rows if row.prefetch_mib), None)
        if row is None:
            return None
        # By layer it holds gate, up and down of one.
        count = candidate.get_amount("prefetch_slots") or 3
        without = candidate.with_params(**dict.fromkeys(PREFETCH_PARAMS, None))
        same = self.unreported_of_same(without)
        mib = same.get(row.name) or self._unreported(without, DECISIVE_IN_STEPS).get(row.name)
        return ExpectedSlots(
            device=row.name,
            count=count,
            slot_mib=row.prefetch_mib / count,
            unreported_mib=median(mib) if mib else None,
        )

    def full_levels_mib(self) -> dict[str, float]:
        """Map each device to its free MiB when it is full, from launches that spilled there."""
        levels: dict[str, float] = {}
        for trial in self.launches:
            if isinstance(trial.outcome, Spilled) and trial.measurement and trial.outcome.device:
                name = trial.outcome.device
                free = free_at_peak_mib(trial.measurement.readings, name)
                if free is not None:
                    levels[name] = max(free, levels.get(name, 0.0))
        return levels

    @property
    def shared_devices(self) -> frozenset[str]:
        """The devices that share memory with the host, for which counters show nothing."""
        return find_shared_devices(self.devices)

    def _completed(self) -> Iterator[tuple[Trial, Measurement]]:
        for trial in self.launches:
            if trial.is_completed and trial.measurement is not None:
                yield trial, trial.measurement


def agree(one: Candidate, other: Candidate, params: Sequence[str]) -> bool:
    """Return whether two candidates agree in some settings; off and absent count as equal."""
    return all((one.params.get(name) or 0) == (other.params.get(name) or 0) for name in params)


def is_at_full_level(measured: Measurement, device: str, levels_mib: Mapping[str, float]) -> bool:
    """Return whether a launch filled a device as much as a launch that spilled there."""
    if device not in levels_mib:
        return False
    free = free_at_peak_mib(measured.readings, device)
    return free is not None and free <= levels_mib[device] + _FULL_LEVEL_MIB
