"""The record of one entry in one night: its measurements and their environment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any, Literal

from pydantic import TypeAdapter

from autofit.machine.host_load import HostState
from autofit.model.sizes.unreported_memory import select_expert_settings
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.study.fingerprint import Environment
from autofit.trial.candidate import Params
from autofit.trial.outcome import Outcome

Mode = Literal["tune", "remeasure", "compare"]
# ok: measured. rejected: the runtime no longer accepts the settings. failed: any other failure.
# timed_out: the entry's own time was used up. missing_hardware: a device, model or runtime is
# missing. not_run: the time of the whole sweep was used up, or the sweep itself failed.
Status = Literal["ok", "failed", "timed_out", "rejected", "missing_hardware", "not_run"]
# An entry with one of these statuses was not measured, which is no fault of its settings.
NEVER_LAUNCHED: tuple[Status, ...] = ("missing_hardware", "not_run")

# Boost clocks of a GPU and a CPU vary by this share from launch to launch.
_SAME_CLOCK = 0.05
# Cores that other processes may keep busy without an effect on measurements.
_SAME_CORES = 0.5
# A number, unless it is part of a name such as CUDA0.
_FIGURE = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)")


# Seconds and rates of a record are between these: ratios of others may have no logarithm.
_LEAST_VALUE, _LARGEST_VALUE = 1e-9, 1e12


@dataclass(frozen=True, slots=True)
class LaunchValues:
    """The values of one launch: the median of each metric over its requests.

    A metric that was not measured is None. If the launch failed, all are None.
    """

    pp_per_s: float | None = None
    tg_per_s: float | None = None
    ttft_s: float | None = None
    request_s: float | None = None
    load_s: float | None = None

    def get(self, metric: str) -> float | None:
        """Return the value of a metric, or None if it is none that a launch can have."""
        value: float | None = getattr(self, metric)
        return value if value is not None and _LEAST_VALUE < value < _LARGEST_VALUE else None


@dataclass(frozen=True, slots=True)
class EntryFailure:
    """The reason why an entry has no measurement.

    Attributes:
        kind: the kind of an outcome (`out_of_memory`, `rejected`, `crashed`, ...), or of an
            error that ended the run (`failed`, `usage`, ...).
        reason: the reason that the outcome gives (`unknown_flag`, ...).
    """

    kind: str
    evidence: str
    stage: str = ""
    reason: str | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> EntryFailure:
        """Return the failure of an outcome."""
        reason = getattr(outcome, "reason", None)
        return cls(outcome.kind, outcome.evidence, outcome.stage, reason)


@dataclass(frozen=True, slots=True)
class MeasuredSettings:
    """The settings that were measured. Secrets in `argv` and `env` are masked.

    `digest` is the candidate's key: equal digests are equal settings.
    """

    params: Params
    argv: tuple[str, ...]
    digest: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundaryRow:
    """One fit boundary, as `tune --json` prints it: `fits` and `fails` are host layers.

    Attributes:
        ubatch: the ubatch, or None in records of older versions.
        experts: the settings that use device memory for experts, or None in such records.
    """

    layout: str
    cache_type: str
    fits: int | None
    fails: int | None
    outcome: str | None = None
    proven: bool = False
    ubatch: int | None = None
    experts: Params | None = None

    @classmethod
    def from_result(cls, data: Mapping[str, Any]) -> BoundaryRow:
        """Read a boundary from the result of `tune` or `probe`, and ignore other keys.

        Raises:
            KeyError: the data does not describe a boundary.
        """
        return cls(
            layout=data["layout"],
            cache_type=data["cache_type"],
            fits=data["fits"],
            fails=data["fails"],
            outcome=data.get("outcome"),
            proven=data.get("proven", False),
            ubatch=data.get("ubatch"),
            experts=None if data.get("params") is None else select_expert_settings(data["params"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSnapshot:
    """The environment of a night: machine, build, model, and the host's load at the time.

    Attributes:
        task: a text with the requests and all arguments of the runtime that are no settings.
        clocks_mhz: the clock of each device and of `cpu`, or None if it is unknown.
        others_cores: the number of cores that other processes kept busy.
        remarks: the warnings of `HostState`.
    """

    driver: str = ""
    build: str = ""
    model_digest: str = ""
    cpu: str = ""
    devices: tuple[str, ...] = ()
    system: str = ""
    task: str = ""
    clocks_mhz: Mapping[str, float | None] = field(default_factory=dict)
    others_cores: float | None = None
    load_1m: float | None = None
    remarks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, environment: Environment, host: HostState | None, task: str = ""
    ) -> EnvironmentSnapshot:
        """Return the environment of a study, with the host's state during its run if known."""
        found = cls(
            driver=environment.driver,
            build=environment.build,
            model_digest=environment.model_digest,
            cpu=environment.cpu,
            devices=environment.devices,
            system=environment.system,
            task=task,
        )
        if host is None:
            return found
        clocks = {f"{gpu.name} ({gpu.pci_id})": gpu.clock_mhz for gpu in host.gpus}
        return replace(
            found,
            clocks_mhz={**clocks, "cpu": host.cpu_mhz},
            others_cores=host.others_cores,
            load_1m=host.load_1m,
            remarks=host.warnings(),
        )

    def changes(self, now: EnvironmentSnapshot) -> Iterator[str]:
        """Yield a sentence for each difference between this night and another."""
        for name, title in (
            ("driver", "driver"),
            ("build", "runtime build"),
            ("model_digest", "model file"),
            ("cpu", "CPU"),
            ("devices", "devices"),
            ("system", "system"),
            ("task", "task"),
        ):
            before, after = getattr(self, name), getattr(now, name)
            # If one side is unknown, no difference is shown.
            if before and after and before != after:
                yield f"{title}: {_to_text(before)}, now {_to_text(after)}"
        for device in sorted(self.clocks_mhz.keys() & now.clocks_mhz.keys()):
            was_mhz, now_mhz = self.clocks_mhz[device], now.clocks_mhz[device]
            if was_mhz and now_mhz and abs(now_mhz / was_mhz - 1) > _SAME_CLOCK:
                yield f"clock of {device}: {was_mhz:.0f} MHz, now {now_mhz:.0f} MHz"
        before_cores, after_cores = self.others_cores, now.others_cores
        if (
            before_cores is not None
            and after_cores is not None
            and abs(after_cores - before_cores) > _SAME_CORES
        ):
            yield f"other processes: {before_cores:.1f} cores busy, now {after_cores:.1f}"
        # A remark that differs only in its numbers is no change.
        known = {_FIGURE.sub("N", remark) for remark in self.remarks}
        yield from (remark for remark in now.remarks if _FIGURE.sub("N", remark) not in known)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRecord:
    """One entry in one night.

    Attributes:
        date: ISO 8601 in UTC, to the second.
        winner: the settings that were measured.
        launches: the launches of these settings in order, each a fresh process.
        reference: if the old runtime was measured, too, its launches, one for each of
            `launches` in the same round. The order within a round is random.
        peak_mib: the most memory that the runtime itself used in any launch, for each device and
            `host`.
        free_mib: the least free memory in any launch, for each device and `host`.
        answers: greedy answers to the same prompts every night.
        reference_answers: tonight's answers of the old runtime.
        is_sparse: whether the model is a mixture of experts.
        seconds: the time that the entry took.
        reproduce: a shell command that measures the entry again.
    """

    name: str
    mode: Mode
    date: str
    autofit_version: str
    status: Status = "ok"
    failure: EntryFailure | None = None
    winner: MeasuredSettings | None = None
    launches: tuple[LaunchValues, ...] = ()
    reference: tuple[LaunchValues, ...] = ()
    peak_mib: Mapping[str, float | None] = field(default_factory=dict)
    free_mib: Mapping[str, float | None] = field(default_factory=dict)
    boundary: tuple[BoundaryRow, ...] = ()
    answers: tuple[RecordedAnswer, ...] = ()
    reference_answers: tuple[RecordedAnswer, ...] = ()
    is_sparse: bool = False
    environment: EnvironmentSnapshot = field(default_factory=EnvironmentSnapshot)
    seconds: float = 0.0
    reproduce: str = ""
    notes: tuple[str, ...] = ()

    def values(self, metric: str) -> list[float]:
        """Return the values of a metric from all launches that have it."""
        return [value for one in self.launches if (value := one.get(metric)) is not None]

    def pairs(self, metric: str) -> list[tuple[float, float]]:
        """Return the pairs of a metric from reference and launch of each round that has both."""
        return [
            (old, new)
            for before, now in zip(self.reference, self.launches, strict=False)
            if (old := before.get(metric)) is not None and (new := now.get(metric)) is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EntryRecord:
        """Read the data of `to_dict`.

        Raises:
            pydantic.ValidationError: the data is no record.
        """
        return _record_type().validate_python(data)


@cache
def _record_type() -> TypeAdapter[EntryRecord]:
    return TypeAdapter(EntryRecord)


def _to_text(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
