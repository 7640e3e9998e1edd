"""An entry of the baseline: the last night as a whole, and the figures of the nights before.

Nights belong to levels. A change that was accepted begins a new level, and so do other
settings. Tonight is compared with the nights of the current level, which is that of the last
night. How much nights vary is estimated from all of them.
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
        settings: a digest of the settings and the requests that were measured.
        level: nights of equal level have about the same values.
        values: by metric.
        peak_mib: by device.
    """

    date: str
    settings: str = ""
    level: int = 0
    values: Mapping[str, NightValue] = field(default_factory=dict)
    peak_mib: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: EntryRecord) -> Night:
        """Return the figures of a record, with five digits."""
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
        """Return the night as JSON data; a metric is a list of typical value, deviation and n."""
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
            KeyError, TypeError, ValueError: the data is no night.
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
    """The record of the last night, and the figures of all nights from the oldest on.

    A record of a failure has no figures, so its night is not in `nights`.
    """

    record: EntryRecord
    nights: tuple[Night, ...] = ()

    @property
    def current_nights(self) -> tuple[Night, ...]:
        """The nights of the current level."""
        return tuple(night for night in self.nights if night.level == self.nights[-1].level)

    def with_current_level(self, level: int) -> BaselineEntry:
        """Return the entry with another level as the current one."""
        return replace(self, nights=tuple(sorted(self.nights, key=lambda n: n.level == level)))

    def values_by_level(self, metric: str) -> list[list[NightValue]]:
        """Return the values of each level, the current one last; empty if that has none."""
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
        """Return the memory that the nights of the current level needed on a device."""
        return [
            night.peak_mib[device] for night in self.current_nights if device in night.peak_mib
        ]


def settings_digest(record: EntryRecord) -> str:
    """Return a digest of settings and requests: figures compare only where it is equal."""
    digest = record.winner.digest if record.winner else ""
    task = record.environment.task.encode("utf-8", "backslashreplace")
    return f"{digest}-{hashlib.sha256(task).hexdigest()[:8]}" if task else digest


def shorten(value: float) -> float:
    """Return a number with the five digits that a baseline keeps."""
    return float(f"{value:.{_DIGITS}g}")


@cache
def _night_type() -> TypeAdapter[Night]:
    return TypeAdapter(Night)
