"""Calibration: corrections of memory predictions from the reports of launches and the planner.

For one model, build and device the predictions of all candidates have about the same error. So
a few launches correct the predictions of all other candidates. The pairs of predicted and used
bytes are kept in a file in the user's data folder, so that a later study starts calibrated. The
file is optional: if it cannot be written, nothing is kept and nothing fails.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from autofit.model.sizes.memory_estimate import MemoryEstimate
from autofit.study.durable_file import append_line, read_lines, write_durably
from autofit.study.study_location import user_data_folder
from autofit.trial.measurement import ReportedMemory

# A launch whose compute buffer differs by more than this factor is not what was predicted.
_LARGEST_FACTOR = 2.0
_KEPT_PER_KEY = 50
_COMPACT_ABOVE_BYTES = 1 << 20

# Model, build and device, for which errors are the same; predicted and used MiB of a launch.
_Key = tuple[str, str, str]
_Pair = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedMemory:
    """The observed memory of a launch, or of a planner's answer, with the arithmetic prediction.

    `reported` maps each device to the runtime's own figures. `used_mib` maps each device that
    has a counter to the memory that the launch used there.
    """

    predicted: MemoryEstimate
    reported: Mapping[str, ReportedMemory] = field(default_factory=dict)
    used_mib: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCalibration:
    """The correction of one device: a factor for the compute buffer, an offset for the rest.

    `observations` counts the launches and planner's answers that it comes from.
    """

    compute_factor: float = 1.0
    other_offset_mib: float = 0.0
    observations: int = 0


@dataclass(frozen=True, slots=True)
class Calibration:
    """The corrections by device name. A device without one is predicted by arithmetic alone."""

    devices: Mapping[str, DeviceCalibration] = field(default_factory=dict)

    def corrected(self, predicted: MemoryEstimate) -> MemoryEstimate:
        """Return an arithmetic prediction with the corrections applied."""
        rows = []
        for row in predicted.devices:
            known = self.devices.get(row.name, DeviceCalibration())
            rows.append(
                replace(
                    row,
                    compute_mib=row.compute_mib * known.compute_factor,
                    other_mib=max(0.0, row.other_mib + known.other_offset_mib),
                )
            )
        return replace(predicted, devices=tuple(rows))


def calibrate(observations: Sequence[ObservedMemory]) -> Calibration:
    """Compute corrections as medians of observations, so that one odd launch changes little."""
    names = sorted({row.name for seen in observations for row in seen.predicted.devices})
    calibrated = {name: _calibrate_device(name, observations) for name in names}
    return Calibration({name: one for name, one in calibrated.items() if one.observations})


def _calibrate_device(name: str, observations: Sequence[ObservedMemory]) -> DeviceCalibration:
    factors, offsets, count = [], [], 0
    for seen in observations:
        row = next((row for row in seen.predicted.devices if row.name == name), None)
        reported = seen.reported.get(name)
        if row is None or reported is None:
            continue
        count += 1
        if row.compute_mib and reported.compute_mib:
            factor = reported.compute_mib / row.compute_mib
            if 1 / _LARGEST_FACTOR <= factor <= _LARGEST_FACTOR:
                factors.append(factor)
        used_mib = seen.used_mib.get(name)
        if used_mib is not None:
            # A prediction counts a cache of experts among the rest, the runtime does not.
            buffers_mib = reported.buffers_mib - reported.expert_cache_mib
            offsets.append(used_mib - buffers_mib - row.other_mib)
    return DeviceCalibration(
        compute_factor=median(factors) if factors else 1.0,
        other_offset_mib=median(offsets) if offsets else 0.0,
        observations=count,
    )


class CalibrationStore:
    """The file of predicted and used memory: one JSON line for each launch and device."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or user_data_folder() / "memory.jsonl"

    def add(
        self, model_digest: str, build: str, device: str, *, predicted_mib: float, used_mib: float
    ) -> bool:
        """Add the memory of a launch on one device, and return whether it could be written."""
        line = _line((model_digest, build, device), (predicted_mib, used_mib))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._path, line)
            if self._path.stat().st_size > _COMPACT_ABOVE_BYTES:
                self._compact()
        except OSError:
            return False
        return True

    def calibration(self, model_digest: str, build: str) -> Calibration:
        """Return the corrections from the latest launches: the median excess on each device."""
        return Calibration(
            {
                device: DeviceCalibration(
                    other_offset_mib=median(used - predicted for predicted, used in pairs),
                    observations=len(pairs),
                )
                for (model, build_of, device), pairs in self._read().items()
                if (model, build_of) == (model_digest, build)
            }
        )

    def _read(self) -> Mapping[_Key, Sequence[_Pair]]:
        """Return the latest pairs of each key, the oldest first, and skip all other lines."""
        try:
            lines, _ = read_lines(self._path)
        except OSError:
            return {}
        found: defaultdict[_Key, deque[_Pair]] = defaultdict(lambda: deque(maxlen=_KEPT_PER_KEY))
        for line in lines:
            try:
                key = line["model_digest"], line["build"], line["device"]
                pair = float(line["estimate_mib"]), float(line["actual_mib"])
                found[key].append(pair)
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def _compact(self) -> None:
        lines = [
            json.dumps(_line(key, pair)) for key, pairs in self._read().items() for pair in pairs
        ]
        write_durably(self._path, "".join(f"{line}\n" for line in lines))


def _line(key: _Key, pair: _Pair) -> dict[str, str | float]:
    names = ("model_digest", "build", "device", "estimate_mib", "actual_mib")
    return dict(zip(names, (*key, *pair), strict=True))
