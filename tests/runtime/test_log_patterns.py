"""The patterns of a dialect file: their checks, and the logs that show them."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from report_cases import report_cases
from runtime.log_corpus import all_cases

from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.dialect.log_patterns import FailurePattern

FILE = TypeAdapter(FailurePattern)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"has": "error 42"}, "must contain no digit"),
        ({"has": 'a "b"'}, "double quote"),
        ({"has": " "}, "not be blank"),
        ({"has": []}, "at least one text"),
        ({"has": "x", "match": "("}, "not a regex"),
        ({"has": "x", "kind": "crashed", "reason": "bad_value"}, "is not a reason of 'crashed'"),
        ({"has": "x", "kind": "crashed", "where": "host"}, "do not apply to 'crashed'"),
        ({"has": "x", "kind": "completed"}, "Input should be"),
    ],
)
def test_faulty_pattern_is_rejected(data: dict[str, object], fault: str):
    """Each fault of a pattern is reported."""
    with pytest.raises(ValidationError, match=fault):
        FILE.validate_python(data)


def test_extending_dialects_have_the_patterns():
    """Dialects that extend another have its log patterns and failures."""
    for name, dialect in load_all_dialects().items():
        if dialect.extends == "llama_server" or name == "llama_server":
            assert dialect.failures, name
            assert dialect.log.facts.buffer, name


def _corpus() -> str:
    logs = [case.text for case in all_cases()]
    logs += [text for case in report_cases() for text in case.files.values()]
    return "\n".join(logs)


def test_every_failure_text_is_in_the_corpus():
    """The corpus has a log for every text of a failure."""
    text = _corpus()
    failures = load_dialect("llama_server").failures

    assert [has for failure in failures for has in failure.has if has not in text] == []


def test_every_cancelling_text_is_in_the_corpus():
    """The corpus has a log for every text that cancels a failure."""
    text = _corpus()
    failures = load_dialect("llama_server").failures

    assert {c for failure in failures for c in failure.cancelled_by if c not in text} == set()
