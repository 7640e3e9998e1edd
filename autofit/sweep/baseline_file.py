"""The baseline of sweeps: earlier nights, in a small file for version control.

    {"schema": 1, "entries": {NAME: {"record": {...}, "nights": [{...}, ...]}}}

Keys are sorted, numbers are short, and each value that fits is on one line, so that a diff
shows all changes clearly. `record` is the night that was added last; `nights` are the figures of
the last 30 nights. An answer has one line for each prompt. A token is `ID=LOGPROB`, followed by
its rivals in the same form, as in `1917=-0.105;78=-2.41;12=-4.2`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autofit.errors import AutofitError, UsageError
from autofit.input_files import parse_json, read_input
from autofit.quality.recorded_answer import RecordedAnswer
from autofit.runtime.server.client import TokenChoice
from autofit.study.durable_file import storage_error, write_durably
from autofit.study.study_document import DAMAGED, describe_error
from autofit.sweep.baseline_entry import (
    BaselineEntry,
    Night,
    settings_digest,
    shorten,
)
from autofit.sweep.entry_record import NEVER_LAUNCHED, EntryRecord
from autofit.sweep.speed_verdict import changed_speeds
from autofit.sweep.verdict import Thresholds

_SCHEMA = 1
# About ten nights show how much nights vary; a month shows a trend.
_MAX_NIGHTS = 30
_LINE = 99
# Rounding can change a greedy choice only to a token that is nearly as likely, which is the
# second at that position. The third is kept in case both tie with it.
_TOKENS_PER_POSITION = 3
_LOGPROB_DIGITS = 3
_HINT = "restore it from version control, or move it away: `--update-baseline` writes a new one"
_UNWRITTEN_HINT = "make it writable, and add `--resume --update-baseline`: no launch is repeated"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entries of a baseline by name."""

    entries: Mapping[str, BaselineEntry] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read a baseline from its file.

        Raises:
            UsageError: the file does not exist, is damaged, or is from a newer autofit.
        """
        try:
            text = read_input(path).decode("utf-8")
        except FileNotFoundError as error:
            hint = "use `--update-baseline` to write one"
            raise UsageError(f"the baseline {path} does not exist", hint) from error
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "use the JSON file that `--update-baseline` has written"
            raise UsageError(f"cannot read the baseline {path}: {reason}", hint) from error
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is no baseline: it is not UTF-8", _HINT) from error
        return cls.parse(text, str(path))

    @classmethod
    def parse(cls, text: str, source: str) -> Baseline:
        """Parse the text of a baseline. `source` is its name in errors.

        Raises:
            UsageError: the text is damaged, or from a newer autofit.
        """
        try:
            data = parse_json(text)
        except ValueError as error:
            place = f"{source}:{getattr(error, 'lineno', 1)}"
            raise UsageError(f"{place}: damaged baseline: {error}", _HINT) from error
        schema = data.get("schema") if isinstance(data, dict) else None
        if not isinstance(schema, int):
            raise UsageError(f"{source} is no baseline: no schema version", _HINT)
        if schema > _SCHEMA:
            versions = f"(schema {schema}, this one knows {_SCHEMA})"
            hint = "upgrade autofit, or use a separate baseline for this version"
            raise UsageError(f"{source} is from a newer autofit {versions}", hint)
        entries = data.get("entries")
        if not isinstance(entries, dict):
            raise UsageError(f"{source}: damaged baseline: no entries", _HINT)
        return cls({name: _read_entry(name, entry, source) for name, entry in entries.items()})

    def updated(
        self,
        records: Iterable[EntryRecord],
        thresholds: Mapping[str, Thresholds] | None = None,
    ) -> Baseline:
        """Return the baseline with one more night for some entries.

        An entry that was not launched stays unchanged. For a failure only the record is added.
        """
        entries = dict(self.entries)
        for record in records:
            if record.status not in NEVER_LAUNCHED:
                limits = (thresholds or {}).get(record.name, Thresholds())
                before = entries.get(record.name)
                entries[record.name] = _add_night(before, _shorten(record), limits)
        return Baseline(entries)

    def dump(self) -> str:
        """Return the baseline as the text of its file."""
        entries = {name: _entry_data(entry) for name, entry in self.entries.items()}
        text = "".join(_json_lines({"schema": _SCHEMA, "entries": entries})) + "\n"
        # Lone surrogates, as in paths of raw bytes, are not UTF-8. JSON escapes them in this way.
        return text.encode("utf-8", "backslashreplace").decode("utf-8")

    def write(self, path: Path) -> None:
        """Replace the file in one step, so that it is never incomplete.

        Raises:
            AutofitError: the file cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_durably(path, self.dump())
        except OSError as error:
            message = storage_error(error, path).message
            raise AutofitError(message, _UNWRITTEN_HINT) from error


def _add_night(
    before: BaselineEntry | None, record: EntryRecord, thresholds: Thresholds
) -> BaselineEntry:
    # The night exists already if a sweep is resumed after its end.
    nights = tuple(one for one in before.nights if one.date != record.date) if before else ()
    if record.status != "ok":
        return BaselineEntry(_fill_failure(record, before.record) if before else record, nights)
    night = replace(Night.of(record), level=_choose_level(nights, record, thresholds))
    return BaselineEntry(record, (*nights, night)[-_MAX_NIGHTS:])


def _fill_failure(failed: EntryRecord, last: EntryRecord) -> EntryRecord:
    """Return a failed record with the last night's settings and answers, for the next try."""
    return replace(
        failed,
        winner=failed.winner or last.winner,
        boundary=failed.boundary or last.boundary,
        answers=failed.answers or last.answers,
    )


def _choose_level(nights: tuple[Night, ...], record: EntryRecord, thresholds: Thresholds) -> int:
    """Return the level of a night: the last one, an earlier one, or a new one.

    If an unusual night was accepted as a change, the next usual night so returns to the earlier
    level.
    """
    entry = BaselineEntry(record, nights)
    settings = settings_digest(record)
    latest_first = dict.fromkeys(night.level for night in reversed(nights))
    for level in latest_first:
        last = [night for night in nights if night.level == level][-1]
        if last.settings == settings and not changed_speeds(
            entry.with_current_level(level), record, thresholds
        ):
            return level
    return max(latest_first, default=-1) + 1


def _shorten(record: EntryRecord) -> EntryRecord:
    """Return the record as it is stored, so that writing and reading do not change it."""
    data = record.to_dict()
    measured = ("launches", "peak_mib", "free_mib", "environment", "seconds")
    data.update({key: _shorten_numbers(data[key]) for key in measured})
    answers = tuple(_shorten_answer(answer) for answer in record.answers)
    return replace(
        EntryRecord.from_dict({**data, "answers": ()}),
        answers=answers,
        reference=(),
        reference_answers=(),
    )


def _shorten_numbers(data: Any) -> Any:  # noqa: ANN401 - JSON data
    """Round all numbers in JSON data to five digits."""
    if isinstance(data, dict):
        return {key: _shorten_numbers(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_shorten_numbers(value) for value in data]
    return shorten(data) if isinstance(data, float) else data


def _shorten_answer(answer: RecordedAnswer) -> RecordedAnswer:
    """Return an answer with only the likeliest tokens, which is enough for comparisons."""
    choices = []
    for choice in answer.choices:
        likeliest = sorted(choice.top, key=lambda token: -choice.top[token])
        top = {
            token: round(choice.top[token], _LOGPROB_DIGITS)
            for token in likeliest[:_TOKENS_PER_POSITION]
        }
        own = None if choice.logprob is None else round(choice.logprob, _LOGPROB_DIGITS)
        choices.append(TokenChoice(choice.token_id, own, top))
    return RecordedAnswer(answer.text, tuple(answer.token_ids), tuple(choices))


def _entry_data(entry: BaselineEntry) -> dict[str, Any]:
    answers = [_answer_data(answer) for answer in entry.record.answers]
    return {
        "record": {**entry.record.to_dict(), "answers": answers},
        "nights": [night.to_dict() for night in entry.nights],
    }


def _read_entry(name: str, data: Mapping[str, Any], source: str) -> BaselineEntry:
    try:
        answers = [_read_answer(answer) for answer in data["record"]["answers"]]
        record = EntryRecord.from_dict({**data["record"], "answers": answers})
        return BaselineEntry(record, tuple(Night.from_dict(night) for night in data["nights"]))
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise _damaged(source, name, fault) from error
    except DAMAGED as error:
        raise _damaged(source, name, describe_error(error)) from error


def _damaged(source: str, name: str, fault: str) -> UsageError:
    return UsageError(f"{source}: damaged baseline: entry '{name}': {fault}", _HINT)


def _answer_data(answer: RecordedAnswer) -> dict[str, Any]:
    data: dict[str, Any] = {"text": answer.text}
    if answer.token_ids != tuple(choice.token_id for choice in answer.choices):
        data["token_ids"] = " ".join(map(str, answer.token_ids))
    if answer.choices:
        data["choices"] = " ".join(map(_choice_text, answer.choices))
    return data


def _read_answer(data: Mapping[str, Any]) -> RecordedAnswer:
    """Convert the data of `_answer_data` back to an answer.

    Raises:
        KeyError, ValueError: the data does not describe an answer.
    """
    choices = tuple(map(_read_choice, data.get("choices", "").split()))
    token_ids = tuple(choice.token_id for choice in choices)
    if "token_ids" in data:
        token_ids = tuple(int(token) for token in data["token_ids"].split())
    return RecordedAnswer(data["text"], token_ids, choices)


def _choice_text(choice: TokenChoice) -> str:
    own = "" if choice.logprob is None else f"={choice.logprob}"
    top = "".join(f";{token}={logprob}" for token, logprob in choice.top.items())
    return f"{choice.token_id}{own}{top}"


def _read_choice(text: str) -> TokenChoice:
    (token, own), *top = (part.partition("=")[::2] for part in text.split(";"))
    return TokenChoice(
        int(token),
        float(own) if own else None,
        {int(rival): float(logprob) for rival, logprob in top},
    )


def _json_lines(data: object, indent: str = "") -> Iterator[str]:
    """Yield lines of JSON with sorted keys; each value that fits is on one line."""
    flat = json.dumps(data, sort_keys=True, ensure_ascii=False)
    if not isinstance(data, dict | list | tuple) or (indent and len(indent) + len(flat) <= _LINE):
        yield flat
        return
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    named = sorted(data.items()) if isinstance(data, dict) else [(None, one) for one in data]
    yield opening
    for index, (name, value) in enumerate(named):
        key = "" if name is None else f"{json.dumps(name, ensure_ascii=False)}: "
        yield f"{',' * (index > 0)}\n{indent} {key}"
        yield from _json_lines(value, f"{indent} ")
    yield f"\n{indent}{closing}"
