"""Answers of any form: each is read, or refused as wrong."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.server.answers import (
    WrongAnswerError,
    check_props,
    parse_object,
    read_error_code,
    read_event,
    read_models,
    read_timings,
    read_tokens,
)
from autofit.runtime.server.applied_settings import find_unapplied, read_applied
from autofit.runtime.server.client import Answer, RequestFailure, _StreamReader, _TimeLimit
from autofit.runtime.server.request_plan import PlannedRequest
from autofit.runtime.server.send_requests import find_implausible
from autofit.trial.candidate import Candidate

DIALECT = load_dialect("llama_server")
TIMINGS = {
    "cache_n": 0, "prompt_n": 3, "prompt_ms": 20.0, "predicted_n": 2, "predicted_ms": 10.0,
}  # fmt: skip
CHOICE = {"id": 7, "logprob": -0.5, "top_logprobs": [{"id": 7, "logprob": -0.5}]}
EVENTS = [
    {"content": "ab", "tokens": [7], "stop": False, "completion_probabilities": [CHOICE]},
    {"content": "", "tokens": [8], "stop": True, "timings": TIMINGS},
]
PROPS = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 1}
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from([10**400, -(10**400), 2**63, math.nan, math.inf, -math.inf, 1e308, "error"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def positions(data) -> list[tuple]:
    """Return the path of every value in JSON data, its own first."""
    items = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    return [(), *((key, *rest) for key, value in items for rest in positions(value))]


def replaced(data, path, value):
    """Return a copy of JSON data with another value at a path."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = replaced(data[path[0]], path[1:], value)
    return copy


def read(events) -> Answer | RequestFailure:
    """Read a stream with these events, as a request does."""
    reader = _StreamReader(DIALECT.timings, _TimeLimit(math.inf, 60.0), 60.0, 1 << 20)
    try:
        return reader.read(f"data: {json.dumps(event)}\n\n".encode() for event in events)
    except WrongAnswerError as error:
        return RequestFailure("malformed", reader.stage, str(error))


@given(st.data())
def test_any_value_in_a_stream_is_a_failure_or_an_answer(data):
    """No value in any field of an event is an exception, or a number that is not finite."""
    path = data.draw(st.sampled_from(positions(EVENTS)[1:]))
    events = replaced(EVENTS, path, data.draw(ANY_JSON))

    answer = read(events)

    assert isinstance(answer, Answer | RequestFailure)
    if isinstance(answer, Answer):
        assert math.isfinite(answer.prompt_s + answer.predicted_s + answer.ttft_s)
        assert all(type(token) is int for token in answer.token_ids)
        find_implausible(answer, PlannedRequest(3, 2))
        for choice in answer.choices:
            assert math.isfinite(sum(map(math.exp, choice.top.values())))
        json.dumps(answer.text, ensure_ascii=False).encode()


@given(st.data())
def test_any_value_in_the_props_is_refused_or_compared(data):
    """Props that are not refused can be compared with the requested settings."""
    path = data.draw(st.sampled_from(positions(PROPS)[1:]))
    props = replaced(PROPS, path, data.draw(ANY_JSON))

    with suppress(WrongAnswerError):
        check_props(props, DIALECT)
        find_unapplied(Candidate({"context": 4096, "parallel": 1}), read_applied(DIALECT, props))


@given(ANY_JSON)
def test_any_other_value_is_refused_or_read(value):
    """Tokens, models, timings and error codes of any form are no other exception."""
    for check in (
        lambda: read_tokens({"tokens": value}),
        lambda: read_models({"data": value}),
        lambda: read_models({"data": [{"id": "a", "status": value}]}),
        lambda: read_timings(value, DIALECT.timings),
        lambda: parse_object(json.dumps(value)),
    ):
        with suppress(WrongAnswerError):
            check()
    assert read_error_code({"error": {"code": value}}) in {None, *range(400, 600)}


@given(st.text())
def test_any_text_is_refused_or_an_object(text):
    """A text that is no JSON object is refused."""
    with suppress(WrongAnswerError):
        assert isinstance(parse_object(text), dict)


@pytest.mark.parametrize("field", TIMINGS)
@pytest.mark.parametrize("value", [math.nan, math.inf, 10**400, -1, "5", True, None, [1], {}])
def test_impossible_timings_are_refused(field, value):
    """The message has the name of the field."""
    with pytest.raises(WrongAnswerError, match="timings"):
        read_timings({**TIMINGS, field: value}, DIALECT.timings)


@pytest.mark.parametrize(
    "data",
    [
        {"content": None},
        {"tokens": "5"},
        {"tokens": [1.5]},
        {"tokens": [[1]]},
        {"stop": "yes"},
        {"completion_probabilities": {}},
        {"completion_probabilities": [{"id": 1, "logprob": math.nan}]},
        {"completion_probabilities": [{"id": 1, "top_logprobs": [{"id": 1, "logprob": 1e300}]}]},
    ],
)
def test_wrong_fields_are_refused(data):
    """A field of another type, or a probability above 1, is wrong."""
    with pytest.raises(WrongAnswerError, match="event"):
        read_event(data)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, '{"a": "\\ud800"}', "null", ""]
)
def test_text_that_is_no_object_is_refused(text):
    """Deep nesting and half characters are not JSON objects."""
    with pytest.raises(WrongAnswerError):
        parse_object(text)
