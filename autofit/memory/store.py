"""What launches really used beside what was estimated, kept between studies.

One JSON line a launch and device in the user's data folder. It is a help, not a result:
where the file cannot be written, nothing is remembered and nothing fails.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from autofit.study.durable_file import append_line, read_lines, write_durably
from autofit.study.study_location import user_data

_KEPT_PER_KEY = 50
_COMPACT_ABOVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryKey:
    """What an error of the estimate belongs to; `device` is a device's name or `host`."""

    model_digest: str
    build: str
    device: str


@dataclass(frozen=True, slots=True)
class MemoryRecord:
    """Estimate and truth of one launch on one device."""

    estimate_mib: float
    actual_mib: float


class MemoryStore:
    """The remembered estimates and truths, oldest first, by key."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or user_data() / "memory.jsonl"

    def remember(self, key: MemoryKey, estimate_mib: float, actual_mib: float) -> bool:
        """Keep one pair, and tell whether it could be kept."""
        record = _record(key, MemoryRecord(estimate_mib, actual_mib))
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self._path, record)
            if self._path.stat().st_size > _COMPACT_ABOVE_BYTES:
                self._compact()
        except OSError:
            return False
        return True

    def recall(self, key: MemoryKey) -> tuple[MemoryRecord, ...]:
        """The latest 50 pairs of a key, oldest first; none where nothing is known."""
        return tuple(self._read().get(key, ())[-_KEPT_PER_KEY:])

    def _read(self) -> dict[MemoryKey, list[MemoryRecord]]:
        try:
            lines, _ = read_lines(self._path)
        except OSError:
            return {}
        found: defaultdict[MemoryKey, list[MemoryRecord]] = defaultdict(list)
        for line in lines:
            try:
                key = MemoryKey(line["model_digest"], line["build"], line["device"])
                record = MemoryRecord(float(line["estimate_mib"]), float(line["actual_mib"]))
                found[key].append(record)
            except (KeyError, TypeError, ValueError):
                continue
        return found

    def _compact(self) -> None:
        lines = [
            json.dumps(_record(key, record))
            for key, records in self._read().items()
            for record in records[-_KEPT_PER_KEY:]
        ]
        write_durably(self._path, "".join(f"{line}\n" for line in lines))


def _record(key: MemoryKey, record: MemoryRecord) -> dict[str, str | float]:
    return {**asdict(key), **asdict(record)}
