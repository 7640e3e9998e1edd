"""What one entry of a sweep measured in one night: the common ground of running and judging."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from autofit.model.sizes.unreported_memory import select_expert_settings
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.sweep.environment_snapshot import EnvironmentSnapshot
from autofit.trial.candidate import Params
from autofit.trial.outcome import Outcome

Mode = Literal["tune", "remeasure", "compare"]
# ok: measured; rejected: the runtime no longer takes the settings; failed: anything else that
# ended it; timed_out: the entry's own time was up; missing_hardware: never launched; not_run:
# neither, for the time of the whole sweep was up.
Status = Literal["ok", "failed", "timed_out", "rejected", "missing_hardware", "not_run"]
MODES: tuple[Mode, ...] = get_args(Mode)
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass(frozen=True, slots=True)
class LaunchValues:
    """One value a metric, the median over the requests of one fresh process.

    None where the metric was not measured; all of them where the launch failed.
    """

    pp_per_s: float | None = None
    tg_per_s: float | None = None
    ttft_s: float | None = None
    request_s: float | None = None
    load_s: float | None = None

    def get(self, key: str) -> float | None:
        """The value of a metric by the name it has in documents; None unless it is positive."""
        value: float | None = getattr(self, key)
        return value if value is not None and 0 < value < math.inf else None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an entry brought no figures.

    `kind` is that of an outcome (`out_of_memory`, `rejected`, `crashed`, ...), or of an error
    that ended the run (`failed`, `usage`, ...); `reason` the outcome's (`unknown_flag`, ...).
    """

    kind: str
    evidence: str
    stage: str = ""
    reason: str | None = None

    @classmethod
    def of(cls, outcome: Outcome) -> Failure:
        """The failure that an outcome tells of."""
        reason = getattr(outcome, "reason", None)
        return cls(outcome.kind, outcome.evidence, outcome.stage, reason)


@dataclass(frozen=True, slots=True)
class Winner:
    """The settings that were measured; secrets in `argv` and `env` are masked.

    `digest` is that of the preset (`Candidate.key`): equal digests are equal settings.
    """

    params: Params
    argv: tuple[str, ...]
    digest: str
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BoundaryRow:
    """One fit boundary as `tune --json` prints it: `fits` beside `fails`, in host layers.

    `ubatch` is None in records of older versions, and so are `experts`: the settings that take
    a device's memory for experts, where nothing fits, too.
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
    def from_dict(cls, data: Mapping[str, Any]) -> BoundaryRow:
        """A row of the document of `tune` or `probe`; keys it has besides are left out.

        Raises:
            KeyError: the data is no boundary.
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
class EntryRecord:
    """One entry in one night.

    `launches` has the winner's fresh processes in order, and `reference`, where the old
    runtime was measured again, one for each of them, run beside it in the same round (the
    order within a round is random). `peak_mib` is the most that the runtime itself took and
    `free_mib` the least that was left, of all launches, by device, with `host`. `answers` are
    greedy answers to the same prompts every night, `reference_answers` those of the old
    runtime to the same, tonight; `is_sparse` says whether the model is a mixture of
    experts. `date` is ISO 8601 in UTC, to the second; `reproduce` a shell command;
    `seconds` the time the entry took.
    """

    name: str
    mode: Mode
    date: str
    autofit_version: str
    status: Status = "ok"
    failure: Failure | None = None
    winner: Winner | None = None
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

    def values(self, key: str) -> list[float]:
        """A metric of all launches that have it."""
        return [value for one in self.launches if (value := one.get(key)) is not None]

    def pairs(self, key: str) -> list[tuple[float, float]]:
        """A metric of the reference and of the launch beside it, where both have it."""
        return [
            (old, new)
            for before, now in zip(self.reference, self.launches, strict=False)
            if (old := before.get(key)) is not None and (new := now.get(key)) is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """The record as JSON data."""
        return {
            "name": self.name,
            "mode": self.mode,
            "date": self.date,
            "autofit_version": self.autofit_version,
            "status": self.status,
            "failure": asdict(self.failure) if self.failure else None,
            "winner": _winner_data(self.winner) if self.winner else None,
            "launches": [asdict(one) for one in self.launches],
            "reference": [asdict(one) for one in self.reference],
            "peak_mib": dict(self.peak_mib),
            "free_mib": dict(self.free_mib),
            "boundary": [asdict(row) for row in self.boundary],
            "answers": [answer.to_dict() for answer in self.answers],
            "reference_answers": [answer.to_dict() for answer in self.reference_answers],
            "is_sparse": self.is_sparse,
            "environment": self.environment.to_dict(),
            "seconds": self.seconds,
            "reproduce": self.reproduce,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EntryRecord:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data is no record.
        """
        if data["status"] not in STATUSES or data["mode"] not in MODES:
            raise ValueError(f"no status or mode of an entry: {data['status']}, {data['mode']}")
        failure, winner = data["failure"], data["winner"]
        return cls(
            **{
                **data,
                "failure": Failure(**failure) if failure else None,
                "winner": Winner(**{**winner, "argv": tuple(winner["argv"])}) if winner else None,
                "launches": tuple(LaunchValues(**one) for one in data["launches"]),
                "reference": tuple(LaunchValues(**one) for one in data["reference"]),
                "boundary": tuple(BoundaryRow(**row) for row in data["boundary"]),
                "answers": _answers(data["answers"]),
                "reference_answers": _answers(data["reference_answers"]),
                "environment": EnvironmentSnapshot.from_dict(data["environment"]),
                "notes": tuple(data["notes"]),
            }
        )


def _answers(data: Sequence[Mapping[str, Any]]) -> tuple[RecordedAnswer, ...]:
    return tuple(RecordedAnswer.from_dict(one) for one in data)


def _winner_data(winner: Winner) -> dict[str, Any]:
    return {
        "params": dict(winner.params),
        "argv": list(winner.argv),
        "digest": winner.digest,
        "env": dict(winner.env),
    }
