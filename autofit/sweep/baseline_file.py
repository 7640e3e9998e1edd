"""The baseline file: what sweeps are compared with, small and made to be committed.

    {"schema": 1, "entries": {NAME: {"record": {...}, "nights": [{...}, ...]}}}

Keys are sorted, numbers short, and what fits on a line stands on one, so that a diff shows what
changed. `record` is the last night that was kept, `nights` are the figures of the last 30.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from autofit.errors import AutofitError, UsageError
from autofit.study.durable_file import storage_error, write_durably
from autofit.study.study_document import DAMAGED, describe_error
from autofit.sweep.entry_record import EntryRecord, LaunchValues
from autofit.sweep.kept_answer import answer_data, answer_of, shortened
from autofit.sweep.kept_night import Kept, Night, settings_of, short
from autofit.sweep.speed_verdict import moved
from autofit.sweep.thresholds import Thresholds

SCHEMA = 1
# Nights tell how they vary from about ten on; a month shows a trend.
MAX_NIGHTS = 30
_LINE = 99
_TYPES = TypeAdapter(Kept)
_HINT = "restore it from version control, or move it away: `--update-baseline` writes a new one"
_UNWRITTEN_HINT = (
    "once it can be written, add `--resume --update-baseline`: nothing is launched again"
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """All kept entries by name."""

    entries: Mapping[str, Kept] = field(default_factory=dict)

    def entry(self, name: str) -> Kept | None:
        """What is kept of an entry, None where nothing is."""
        return self.entries.get(name)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The baseline of a file.

        Raises:
            UsageError: it is not there, damaged, or from a newer autofit.
        """
        try:
            text = path.read_bytes().decode("utf-8")
        except FileNotFoundError as error:
            hint = "`--update-baseline` writes one"
            raise UsageError(f"there is no baseline {path}", hint) from error
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "give the JSON file that `--update-baseline` has written"
            raise UsageError(f"cannot read the baseline {path}: {reason}", hint) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no baseline: it is not UTF-8", _HINT) from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Baseline:
        """The baseline of a text; `source` names it in errors.

        Raises:
            UsageError: it is damaged, or from a newer autofit.
        """
        try:
            data = json.loads(text)
            schema = data["schema"]
            is_newer = int(schema) > SCHEMA
        except json.JSONDecodeError as error:
            place = f"{source}:{error.lineno}"
            raise UsageError(f"{place}: damaged baseline: {error.msg}", _HINT) from error
        except DAMAGED as error:
            raise UsageError(f"{source} is no baseline: no schema version", _HINT) from error
        if is_newer:
            raise UsageError(
                f"{source} is from a newer autofit (schema {schema}, this one knows {SCHEMA})",
                "upgrade autofit, or keep a baseline of its own for this version",
            )
        try:
            entries = data["entries"].items()
        except DAMAGED as error:
            raise UsageError(f"{source}: damaged baseline: no entries", _HINT) from error
        return cls({name: _kept_of(name, kept, source) for name, kept in entries})

    def updated(
        self,
        records: Iterable[EntryRecord],
        thresholds: Mapping[str, Thresholds] | None = None,
        *,
        max_nights: int = MAX_NIGHTS,
    ) -> Baseline:
        """The baseline with these records kept in place of those of the same entries.

        What was never launched changes nothing; of a failure only the record is kept.
        """
        entries = dict(self.entries)
        for record in records:
            if record.status not in ("missing_hardware", "not_run"):
                limits = (thresholds or {}).get(record.name, Thresholds())
                entries[record.name] = _joined(
                    entries.get(record.name), _shortened(record), limits, max_nights
                )
        return Baseline(entries)

    def dump(self) -> str:
        """The baseline as the text of its file."""
        entries = {name: _kept_data(kept) for name, kept in self.entries.items()}
        text = "".join(_lines({"schema": SCHEMA, "entries": entries})) + "\n"
        # Only halves of characters, as in paths of raw bytes, are no UTF-8: JSON escapes them so.
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def write(self, path: Path) -> None:
        """Replace the file; at any moment the old or the new one is there, whole.

        Raises:
            AutofitError: it cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, self.dump())
        except OSError as error:
            message = storage_error(error, path).message
            raise AutofitError(message, _UNWRITTEN_HINT) from error


def _joined(
    kept: Kept | None, record: EntryRecord, thresholds: Thresholds, max_nights: int
) -> Kept:
    # Kept once already, as where a sweep is gone on with after its end.
    before = tuple(night for night in kept.nights if night.date != record.date) if kept else ()
    if record.status != "ok":
        return Kept(_with_settings(record, kept.record) if kept else record, before)
    night = replace(Night.of(record), level=_level(before, record, thresholds))
    return Kept(record, (*before, night)[-max_nights:])


def _with_settings(failed: EntryRecord, last: EntryRecord) -> EntryRecord:
    """A failure with the settings and answers that were kept, to be tried again."""
    return replace(
        failed,
        winner=failed.winner or last.winner,
        boundary=failed.boundary or last.boundary,
        answers=failed.answers or last.answers,
    )


def _level(before: tuple[Night, ...], record: EntryRecord, thresholds: Thresholds) -> int:
    """The level that a night lies around: the last one, an earlier one, or one of its own.

    A night that was off, and accepted as a change, so costs the nights before it only until
    the next one like them.
    """
    kept = Kept(record, before)
    settings = settings_of(record)
    latest = dict.fromkeys(night.level for night in reversed(before))
    for level in latest:
        nights = [night for night in before if night.level == level]
        is_same = nights[-1].settings == settings
        if is_same and not moved(kept.beside(level), record, thresholds):
            return level
    return max(latest, default=-1) + 1


def _shortened(record: EntryRecord) -> EntryRecord:
    """The record as the file has it, of which nothing is lost when it is read back."""
    around = record.environment
    return replace(
        record,
        launches=tuple(map(_short_launch, record.launches)),
        reference=(),
        peak_mib=_short_values(record.peak_mib),
        free_mib=_short_values(record.free_mib),
        answers=tuple(shortened(answer) for answer in record.answers),
        reference_answers=(),
        environment=replace(
            around,
            clocks_mhz=_short_values(around.clocks_mhz),
            others_cores=_short_value(around.others_cores),
            load_1m=_short_value(around.load_1m),
        ),
        seconds=short(record.seconds),
    )


def _short_launch(launch: LaunchValues) -> LaunchValues:
    return LaunchValues(**_short_values(asdict(launch)))


def _short_values(values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: _short_value(value) for name, value in values.items()}


def _short_value(value: float | None) -> float | None:
    return None if value is None else short(value)


def _kept_data(kept: Kept) -> dict[str, Any]:
    answers = [answer_data(answer) for answer in kept.record.answers]
    return {
        "record": {**kept.record.to_dict(), "answers": answers},
        "nights": [night.to_dict() for night in kept.nights],
    }


def _kept_of(name: str, data: Mapping[str, Any], source: str) -> Kept:
    try:
        answers = [answer_of(answer).to_dict() for answer in data["record"]["answers"]]
        record = EntryRecord.from_dict({**data["record"], "answers": answers})
        kept = Kept(record, tuple(Night.from_dict(night) for night in data["nights"]))
        _TYPES.validate_python(asdict(kept))
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise _damaged(source, name, fault) from error
    except DAMAGED as error:
        raise _damaged(source, name, describe_error(error)) from error
    return kept


def _damaged(source: str, name: str, fault: str) -> UsageError:
    return UsageError(f"{source}: damaged baseline: entry '{name}': {fault}", _HINT)


def _lines(data: object, indent: str = "") -> Iterator[str]:
    """JSON with sorted keys in which whatever fits on a line stands on one."""
    flat = json.dumps(data, sort_keys=True, ensure_ascii=False)
    if not isinstance(data, dict | list) or (indent and len(indent) + len(flat) <= _LINE):
        yield flat
        return
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    named = sorted(data.items()) if isinstance(data, dict) else [(None, one) for one in data]
    yield opening
    for place, (name, value) in enumerate(named):
        key = "" if name is None else f"{json.dumps(name, ensure_ascii=False)}: "
        yield f"{',' * (place > 0)}\n{indent} {key}"
        yield from _lines(value, f"{indent} ")
    yield f"\n{indent}{closing}"
