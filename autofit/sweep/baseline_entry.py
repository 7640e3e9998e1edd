"""An entry of the baseline: the complete record of the last night, and the figures of all nights.

Each night belongs to a level. An accepted change and other settings begin a new level. Tonight
is compared with the nights of the current level, which is the level of the last night. The
variation between nights is estimated from all nights.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from autofit.statistics.night_change import NightValue, night_value
from autofit.sweep.entry_record import EntryRecord, LaunchValues

_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The figures of one night.

    Attributes:
        settings: a digest of the measured settings and requests.
        level: a number; nights with the same number have about the same values.
        values: the value of each metric.
        peak_mib: the peak memory of each device.
    """

    date: str
    settings: str = ""
    level: int = 0
    values: Mapping[str, NightValue] = field(default_factory=dict)
    peak_mib: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: EntryRecord) -> Night:
        """Return the figures of a record, rounded to five digits."""
        values = {
            one.name: value
            for one in fields(LaunchValues)
            if (value := night_value(record.values(one.name)))
        }
        return cls(
            date=record.date,
            settings=settings_digest(record),
            values={
                metric: NightValue(shorten(one.typical), one.sd and shorten(one.sd), one.n)
                for metric, one in values.items()
            },
            peak_mib={
                name: shorten(mib) for name, mib in record.peak_mib.items() if mib is not None
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the night as JSON data. A metric is a list of typical value, deviation and n."""
        return {
            "date": self.date,
            "settings": self.settings,
            "level": self.level,
            "values": {key: [one.typical, one.sd, one.n] for key, one in self.values.items()},
            "peak_mib": dict(self.peak_mib),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Night:
        """Read the data of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data does not describe a night.
        """
        names = [one.name for one in fields(NightValue)]
        values = {key: dict(zip(names, one, strict=True)) for key, one in data["values"].items()}
        night = _night_type().validate_python({**data, "values": values})
        for key, one in night.values.items():
            if not (one.typical > 0 and one.n >= 1 and (one.sd is None or one.sd >= 0)):
                raise ValueError(f"{key}: not the values of a night: {data['values'][key]}")
        return night


@dataclass(frozen=True, slots=True)
class BaselineEntry:
    """An entry of the baseline: the record of the last night, and the figures of all nights.

    `nights` begins with the oldest. A failure has no figures, so its night is not in it.
    """

    record: EntryRecord
    nights: tuple[Night, ...] = ()

    @property
    def current_nights(self) -> tuple[Night, ...]:
        """The nights of the current level."""
        return tuple(night for night in self.nights if night.level == self.nights[-1].level)

    def with_current_level(self, level: int) -> BaselineEntry:
        """Return the entry with another current level."""
        return replace(self, nights=tuple(sorted(self.nights, key=lambda n: n.level == level)))

    def values_by_level(self, metric: str) -> list[list[NightValue]]:
        """Return the values of each level, the current one last, or nothing if that has none."""
        levels: dict[int, list[NightValue]] = {}
        for night in self.nights:
            if metric in night.values:
                levels.setdefault(night.level, []).append(night.values[metric])
        current = levels.pop(self.nights[-1].level, []) if self.nights else []
        return [*levels.values(), current] if current else []

    def history(self, metric: str) -> list[float]:
        """Return the typical values of all nights, the oldest first."""
        nights = sorted(self.nights, key=lambda night: night.date)
        return [night.values[metric].typical for night in nights if metric in night.values]

    def peaks_mib(self, device: str) -> list[float]:
        """Return the peak memory of a device in each night of the current level."""
        return [
            night.peak_mib[device] for night in self.current_nights if device in night.peak_mib
        ]


def settings_digest(record: EntryRecord) -> str:
    """Return a digest of settings and requests. Only figures with equal digests are compared."""
    digest = record.winner.digest if record.winner else ""
    task = record.environment.task.encode("utf-8", "backslashreplace")
    return f"{digest}-{hashlib.sha256(task).hexdigest()[:8]}" if task else digest


def shorten(value: float) -> float:
    """Round a number to the five digits that a baseline keeps."""
    return float(f"{value:.{_DIGITS}g}")


@cache
def _night_type() -> TypeAdapter[Night]:
    return TypeAdapter(Night)
