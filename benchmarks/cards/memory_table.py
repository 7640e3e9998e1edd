"""Compare memory by arithmetic with what launches of recorded studies showed.

    python benchmarks/cards/memory_table.py MODEL [NAME=]STUDY ...

MODEL need only be a header (`autofit synth --header-only`). For every device of every completed
launch whose placement is explicit: weights, cache and compute buffers next to the runtime's own
table, and the rest by the device's counter next to its prediction.
Where the runtime placed layers itself, nothing says where, and the launch is counted only.
Tables as markdown come to stdout; the exit code is 1 where a device's buffers are off by more
than the limit.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.memory_estimate import DeviceEstimate, estimate_memory
from autofit.study.study_folder import Study
from autofit.trial.device import Device, backend_of
from autofit.trial.measurement import ReportedMemory
from autofit.trial.purpose import PHASES
from autofit.trial.trial import Trial

LIMIT = 0.02
_DEVICE = re.compile(r"(\w+): (.*), (\d+) MiB")
# `n_gpu_layers` is in every candidate that says where layers lie.
_PLACED = "n_gpu_layers"
_TO_BOUNDARY = ("baseline", "boundary", "search")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLaunch:
    """One device in one launch: estimated, reported by the runtime, and counted by the driver.

    `taken_mib` is the peak less what others held before the launch, None without a counter.
    """

    study: str
    trial: Trial
    estimate: DeviceEstimate
    reported: ReportedMemory
    taken_mib: float | None

    @property
    def key(self) -> tuple[str, str, str]:
        """Study, backend and device."""
        return self.study, backend_of(self.estimate.name), self.estimate.name

    @property
    def expert_cache_mib(self) -> float:
        """The upstream expert cache, which the runtime's table counts as context memory."""
        return self.trial.candidate.get_int("moe_cache_mib", 0)

    @property
    def buffers_off_mib(self) -> float:
        """Predicted buffers minus those in the runtime's table, in MiB."""
        row = self.estimate
        buffers_mib = row.weights_mib + row.kv_mib + row.compute_mib + self.expert_cache_mib
        return buffers_mib - self.reported.buffers_mib

    @property
    def buffers_off(self) -> float:
        """The same as a share of the table's buffers."""
        return self.buffers_off_mib / self.reported.buffers_mib

    @property
    def other_mib(self) -> float | None:
        """Memory of the counter outside the buffers, in MiB."""
        return None if self.taken_mib is None else self.taken_mib - self.reported.buffers_mib

    @property
    def other_off_mib(self) -> float | None:
        """Predicted minus counted memory outside the buffers, in MiB."""
        if self.other_mib is None:
            return None
        return self.estimate.other_mib - self.expert_cache_mib - self.other_mib

    @property
    def total_off_mib(self) -> float | None:
        """Predicted minus counted memory in all, in MiB."""
        return None if self.taken_mib is None else self.estimate.total_mib - self.taken_mib


def main() -> int:
    """Print the tables that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("studies", nargs="+", metavar="[NAME=]STUDY")
    given = parser.parse_args()
    model = read_inventory(given.model)
    studies = dict(_named(text) for text in given.studies)
    launches = [
        launch for name, study in studies.items() for launch in device_launches(name, study, model)
    ]
    print("## Memory by device\n")
    print("\n".join(memory_table(launches)))
    print()
    print("\n".join(_verdict(launches, studies)))
    print("\n## Launches\n")
    print("\n".join(launch_table(studies)))
    return int(any(abs(launch.buffers_off) > LIMIT for launch in launches))


def device_launches(name: str, study: Study, model: ModelInventory) -> Iterator[DeviceLaunch]:
    """Every device of every completed launch that was measured and says where layers lie."""
    devices = _devices(study)
    for trial in study.trials():
        measured = trial.measurement
        if not _is_placed(trial) or measured is None:
            continue
        taken = measured.taken_mib()
        for row in estimate_memory(model, trial.candidate, devices).devices:
            if row.name in measured.reported:
                yield DeviceLaunch(
                    study=name,
                    trial=trial,
                    estimate=row,
                    reported=measured.reported[row.name],
                    taken_mib=taken.get(row.name),
                )


def memory_table(launches: Sequence[DeviceLaunch]) -> Iterator[str]:
    """A line for each study and device, by name."""
    yield (
        "| study | backend | device | launches | buffers, median | worst | other shown, median "
        "| other, median error | worst | total, median error | worst |"
    )
    yield "| --- | --- | --- |" + " ---: |" * 8
    for (name, backend, device), group in groupby(
        sorted(launches, key=lambda launch: launch.key), key=lambda launch: launch.key
    ):
        own = list(group)
        worst = max(own, key=lambda launch: abs(launch.buffers_off))
        middle = median(launch.buffers_off for launch in own)
        cells = [
            name, backend, device, str(len(own)),
            f"{middle:+.2%}, {median(launch.buffers_off_mib for launch in own):+.1f} MiB",
            f"{worst.buffers_off:+.2%}, {worst.buffers_off_mib:+.1f} MiB",
            _median(own, lambda launch: launch.other_mib, sign=""),
            _median(own, lambda launch: launch.other_off_mib),
            _worst(own, lambda launch: launch.other_off_mib),
            _median(own, lambda launch: launch.total_off_mib),
            _worst(own, lambda launch: launch.total_off_mib),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def launch_table(studies: dict[str, Study]) -> Iterator[str]:
    """A line for each study: launches by phase, what it took until the search ended, failures."""
    yield f"| study | {' | '.join(PHASES)} | seconds to the end of the search | failures |"
    yield "| --- |" + " ---: |" * (len(PHASES) + 1) + " --- |"
    for name, study in studies.items():
        trials = study.trials()
        phases = Counter(trial.phase for trial in trials)
        seconds = sum(trial.spent_s for trial in trials if trial.phase in _TO_BOUNDARY)
        failed = Counter(
            f"{trial.outcome.kind.replace('_', ' ')} ({trial.outcome.stage})"
            for trial in trials
            if not trial.is_completed
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in failed.items()) or "none"
        spent = f"{seconds:.0f}" if phases["search"] else "-"
        cells = [name, *(str(phases[phase]) for phase in PHASES), spent, kinds]
        yield f"| {' | '.join(cells)} |"


def _verdict(launches: Sequence[DeviceLaunch], studies: dict[str, Study]) -> Iterator[str]:
    beyond = [launch for launch in launches if abs(launch.buffers_off) > LIMIT]
    yield (
        f"Buffers within {LIMIT:.0%} of the runtime's own table: {len(launches) - len(beyond)} "
        f"of {len(launches)} devices of completed launches."
    )
    for launch in beyond:
        row, reported = launch.estimate, launch.reported
        yield (
            f"- {launch.study}, launch {launch.trial.number}, {row.name}: "
            f"{launch.buffers_off:+.2%} (weights "
            f"{row.weights_mib:.0f} for {reported.model_mib:.0f}, "
            f"cache {row.kv_mib:.0f} for {reported.context_mib:.0f}, "
            f"compute {row.compute_mib:.0f} for {reported.compute_mib:.0f})"
        )
    completed = [t for study in studies.values() for t in study.trials() if t.is_completed]
    unplaced = sum(not _is_placed(trial) for trial in completed)
    silent = sum(trial.measurement is None or not trial.measurement.reported
                 for trial in completed if _is_placed(trial))  # fmt: skip
    yield ""
    yield (
        f"Left out: {unplaced} completed launches that the runtime placed itself, and {silent} "
        "of which no memory table was kept."
    )


def _is_placed(trial: Trial) -> bool:
    return trial.is_completed and _PLACED in trial.candidate.params


def _devices(study: Study) -> list[Device]:
    """Return the machine's devices from the study's header."""
    limits = study.header.options.get("devices_mib") or {}
    found = (_DEVICE.fullmatch(line) for line in study.header.environment.devices)
    return [
        Device(match[1], match[2], float(match[3]), float(limits.get(match[1]) or match[3]))
        for match in found
        if match
    ]


def _named(text: str) -> tuple[str, Study]:
    name, _, folder = text.rpartition("=")
    study = Study.open(Path(folder))
    return name or study.path.name, study


Figure = Callable[[DeviceLaunch], float | None]


def _median(launches: Sequence[DeviceLaunch], figure: Figure, *, sign: str = "+") -> str:
    reported = [value for launch in launches if (value := figure(launch)) is not None]
    return f"{median(reported):{sign}.0f} MiB" if reported else "-"


def _worst(launches: Sequence[DeviceLaunch], figure: Figure) -> str:
    reported = [value for launch in launches if (value := figure(launch)) is not None]
    return f"{max(reported, key=abs):+.0f} MiB" if reported else "-"


if __name__ == "__main__":
    sys.exit(main())
