"""What a baseline keeps of an entry: one night whole, and the nights before it in numbers.

Nights lie around a level. A change that was accepted begins another one, as other settings do:
tonight is compared with the nights of the level that the last one lies around, how nights vary
is learnt from all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from autofit.statistics.night_change import NightValue, night_value
from autofit.sweep.entry_record import EntryRecord, LaunchValues

_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """The figures of one night, by the names that documents have for metrics.

    `settings` tells what was measured, and by which requests; nights of the same `level` lie
    around the same values.
    """

    date: str
    settings: str = ""
    level: int = 0
    values: Mapping[str, NightValue] = field(default_factory=dict)
    peak_mib: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, record: EntryRecord) -> Night:
        """The figures of a record, with five digits."""
        values = {
            one.name: value
            for one in fields(LaunchValues)
            if (value := night_value(record.values(one.name)))
        }
        return cls(
            date=record.date,
            settings=settings_of(record),
            values={key: _short_value(value) for key, value in values.items()},
            peak_mib={
                name: short(mib) for name, mib in record.peak_mib.items() if mib is not None
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """The night as JSON data: of each metric typical value, deviation and launches."""
        return {
            "date": self.date,
            "settings": self.settings,
            "level": self.level,
            "values": {k: [v.typical, v.sd, v.n] for k, v in self.values.items()},
            "peak_mib": dict(self.peak_mib),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Night:
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError, ValueError: the data is no night.
        """
        values = {key: _checked(NightValue(*value)) for key, value in data["values"].items()}
        return cls(**{**data, "values": values})


@dataclass(frozen=True, slots=True)
class Kept:
    """An entry as it was kept: the record of the last night and the figures of all, oldest first.

    A record that failed has no figures, so its night is not among them.
    """

    record: EntryRecord
    nights: tuple[Night, ...] = ()

    @property
    def level(self) -> tuple[Night, ...]:
        """The nights that tonight is compared with."""
        return tuple(night for night in self.nights if night.level == self.nights[-1].level)

    def beside(self, level: int) -> Kept:
        """The same with another of its levels as the one that tonight is compared with."""
        return replace(self, nights=tuple(sorted(self.nights, key=lambda n: n.level == level)))

    def levels(self, key: str) -> list[list[NightValue]]:
        """The values of a metric by level, that of `level` last; empty where it has none."""
        groups: dict[int, list[NightValue]] = {}
        for night in self.nights:
            if key in night.values:
                groups.setdefault(night.level, []).append(night.values[key])
        last = groups.pop(self.nights[-1].level, []) if self.nights else []
        return [*groups.values(), last] if last else []

    def course(self, key: str) -> list[float]:
        """The typical values of a metric over all nights, the oldest first."""
        nights = sorted(self.nights, key=lambda night: night.date)
        return [night.values[key].typical for night in nights if key in night.values]

    def peaks_mib(self, device: str) -> list[float]:
        """What the nights of the level needed on a device."""
        return [night.peak_mib[device] for night in self.level if device in night.peak_mib]


def settings_of(record: EntryRecord) -> str:
    """What was measured and what was asked of it: equal where figures may be compared."""
    digest = record.winner.digest if record.winner else ""
    task = record.environment.task.encode("utf-8", "backslashreplace")
    return f"{digest}-{hashlib.sha256(task).hexdigest()[:8]}" if task else digest


def short(value: float) -> float:
    """A number with five digits, as a baseline keeps it."""
    return float(f"{value:.{_DIGITS}g}")


def _short_value(value: NightValue) -> NightValue:
    return NightValue(short(value.typical), None if value.sd is None else short(value.sd), value.n)


def _checked(value: NightValue) -> NightValue:
    if not (value.typical > 0 and value.n >= 1 and (value.sd is None or value.sd >= 0)):
        raise ValueError(f"no value of a night: {value}")
    return value
