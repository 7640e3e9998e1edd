"""The answers of a server: data from outside, checked before anything is computed from it.

A server can have a bug, or be another program. Numbers must be finite and within limits that no
working server exceeds, and every field must have its type; unknown fields are ignored. The
parser limits the depth of JSON, and accepts no text that cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from autofit.runtime.dialect.dialect import Dialect, Timings
from autofit.runtime.server.applied_settings import SLOT_CONTEXT, find_value
from autofit.trial.candidate import ParamValue

# A third of a year: no request takes that long.
_MAX_MS = 1e10
_MAX_TOKENS = 2**40
_MAX_TOKEN_ID = 2**31 - 1
# Every whole number below it is exact as a float.
_MAX_NUMBER = 2.0**53
# A logarithm of a probability is at most 0, except for rounding.
_MAX_LOGPROB = 1e-3


class WrongAnswerError(Exception):
    """An answer without the required form; the message says what is wrong."""


def _require_number(value: object) -> object:
    """Return a number unchanged; refuse texts and booleans, which pydantic would convert."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("not a number")  # noqa: TRY004 - pydantic reports only ValueError
    return value


_Number = BeforeValidator(_require_number)
_TokenId = Annotated[int, _Number, Field(ge=-1, le=_MAX_TOKEN_ID)]
_Count = Annotated[int, _Number, Field(ge=0, le=_MAX_TOKENS)]
_Milliseconds = Annotated[float, _Number, Field(ge=0, le=_MAX_MS, allow_inf_nan=False)]
_Logprob = Annotated[float, _Number, Field(le=_MAX_LOGPROB, allow_inf_nan=False)]
_Setting = (
    Annotated[str, Field(strict=True)]
    | Annotated[bool, Field(strict=True)]
    | Annotated[int, Field(strict=True, ge=-int(_MAX_NUMBER), le=int(_MAX_NUMBER))]
    | Annotated[float, Field(strict=True, ge=-_MAX_NUMBER, le=_MAX_NUMBER, allow_inf_nan=False)]
)


class _Answer(BaseModel):
    """A JSON object of which only some fields are read."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class TokenProbability(_Answer):
    """A probable token at a position."""

    id: _TokenId
    logprob: _Logprob


class ChosenToken(_Answer):
    """A generated token, and the most probable tokens at its position."""

    id: _TokenId = -1
    logprob: _Logprob | None = None
    top_logprobs: tuple[TokenProbability, ...] = ()


class StreamEvent(_Answer):
    """An event of a streamed answer that is no error; the last one has `stop` and timings."""

    content: Annotated[str, Field(strict=True)] = ""
    tokens: tuple[_TokenId, ...] = ()
    completion_probabilities: tuple[ChosenToken, ...] = ()
    stop: Annotated[bool, Field(strict=True)] = False
    prompt_progress: Any = None
    timings: Any = None


class ServerTimings(_Answer):
    """The counts and times of a request, measured by the server."""

    prompt_tokens: _Count
    prompt_ms: _Milliseconds
    predicted_tokens: _Count
    predicted_ms: _Milliseconds
    cached_tokens: _Count = 0


class ModelStatus(_Answer):
    """The state of a model behind a router, and the arguments that start the model."""

    value: str = ""
    args: tuple[str, ...] = ()
    failed: bool = False


class _RouterModel(_Answer):
    id: str
    status: ModelStatus = ModelStatus()


class _RouterModels(_Answer):
    data: tuple[_RouterModel, ...] = ()


_TOKENS: TypeAdapter[list[int]] = TypeAdapter(list[_TokenId])
_SETTING: TypeAdapter[ParamValue] = TypeAdapter(_Setting)
_COUNT: TypeAdapter[int] = TypeAdapter(_Count)
_EVENT = TypeAdapter(StreamEvent)
_TIMINGS = TypeAdapter(ServerTimings)
_MODELS = TypeAdapter(_RouterModels)
_Form = TypeVar("_Form")


def parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text.

    Raises:
        WrongAnswerError: the text is something else.
    """
    try:
        data = from_json(text)
    except ValueError as error:
        raise WrongAnswerError(f"not JSON ({error}): {text[:200]}") from error
    if not isinstance(data, dict):
        raise WrongAnswerError(f"not a JSON object: {text[:200]}")
    return data


def read_event(data: Mapping[str, Any]) -> StreamEvent:
    """Return a checked event.

    Raises:
        WrongAnswerError: a field has another form.
    """
    return _check(_EVENT, data, "event")


def read_error_code(event: Mapping[str, Any]) -> int | None:
    """Return the HTTP status in an error event; None if it has none."""
    error = event["error"]
    code = error.get("code") if isinstance(error, dict) else None
    is_status = isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599  # noqa: PLR2004
    return code if is_status else None


def read_timings(timings: object, keys: Timings) -> ServerTimings:
    """Return the checked timings of an answer.

    Raises:
        WrongAnswerError: one is missing or no plausible number.
    """
    if not isinstance(timings, dict):
        raise WrongAnswerError("the answer has no timings")
    found = {field: timings[key] for field, key in asdict(keys).items() if key in timings}
    return _check(_TIMINGS, found, "unreadable timings")


def read_tokens(answer: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a tokenized text.

    Raises:
        WrongAnswerError: there are none, or something else is among them.
    """
    return _check(_TOKENS, answer.get("tokens"), "tokens")


def read_models(answer: Mapping[str, Any]) -> dict[str, ModelStatus]:
    """Return the status of each model of a router, by name.

    Raises:
        WrongAnswerError: the answer is no list of models.
    """
    return {model.id: model.status for model in _check(_MODELS, answer, "models").data}


def check_props(props: Mapping[str, Any], dialect: Dialect) -> None:
    """Check the settings that a dialect reads from the props.

    Raises:
        WrongAnswerError: a value is not possible for its setting.
    """
    for name, path in dialect.applied.items():
        value = find_value(props, path)
        if value is not None:
            form: TypeAdapter[Any] = _COUNT if name == SLOT_CONTEXT else _SETTING
            _check(form, value, f"props: {path}")


def _check(form: TypeAdapter[_Form], value: object, what: str) -> _Form:
    """Return a value converted to its form, or raise WrongAnswerError with the first fault."""
    try:
        return form.validate_python(value)
    except ValidationError as error:
        # The value itself is left out of the message: it can be of any size.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = ": ".join(part for part in (what, where, first["msg"]) if part)
        raise WrongAnswerError(message) from error
