"""The patterns of a dialect file: their checks, and the logs that show them."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError
from runtime.log_corpus import all_cases

from autofit.runtime.dialect.dialect_file import load_all_dialects, load_dialect
from autofit.runtime.dialect.log_patterns import FailurePattern

FILE = TypeAdapter(FailurePattern)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"has": "error 42"}, "must hold no digit"),
        ({"has": 'a "b"'}, "double quote"),
        ({"has": " "}, "more than spaces"),
        ({"has": []}, "at least one text"),
        ({"has": "x", "match": "("}, "not a regex"),
        ({"has": "x", "kind": "crashed", "reason": "bad_value"}, "is not a reason of 'crashed'"),
        ({"has": "x", "kind": "crashed", "where": "host"}, "do not apply to 'crashed'"),
        ({"has": "x", "kind": "completed"}, "Input should be"),
    ],
)
def test_a_faulty_pattern_is_refused(data: dict[str, object], fault: str):
    """Each fault of a pattern is told."""
    with pytest.raises(ValidationError, match=fault):
        FILE.validate_python(data)


def test_every_dialect_has_the_patterns():
    """Dialects that extend another know its log and its failures."""
    for name, dialect in load_all_dialects().items():
        if dialect.extends == "llama_server" or name == "llama_server":
            assert dialect.failures, name
            assert dialect.log.facts.buffer, name


def test_every_text_of_a_failure_is_in_the_corpus():
    """No failure is claimed to be known without a log that shows it."""
    text = "\n".join(case.text for case in all_cases())
    failures = load_dialect("llama_server").failures

    assert [has for failure in failures for has in failure.has if has not in text] == []


def test_every_text_that_cancels_a_failure_is_in_the_corpus():
    """No line is claimed to be harmless without a log that shows what follows."""
    text = "\n".join(case.text for case in all_cases())
    failures = load_dialect("llama_server").failures

    assert {c for failure in failures for c in failure.cancelled_by if c not in text} == set()
