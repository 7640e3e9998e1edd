"""The HTTP client of a running server; a failed request is returned, not raised.

Only this module uses httpcore. Answers are streamed, so that the client measures the time to the
first token and each stage of a request has its own time limit. A request has a deadline as a
whole, and an answer a limit in bytes, because a faulty server can send forever.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpcore

from autofit.runtime.dialect.dialect import Dialect, Timings
from autofit.runtime.server.answers import (
    ChosenToken,
    StreamEvent,
    WrongAnswerError,
    check_props,
    parse_object,
    read_error_code,
    read_event,
    read_timings,
    read_tokens,
)

RequestFailureKind = Literal["http", "timed_out", "disconnected", "malformed"]
RequestStage = Literal["prompt", "generate"]

_OK = 200
_CONNECT_LIMIT_S = 10.0
_READY_LIMIT_S = 2.0
_JSON_LIMIT_S = 10.0
_TOKENIZE_LIMIT_S = 60.0
# A server sends the headers, a body or an event at once. One that sends single bytes is faulty,
# and would otherwise use up the time limit of a stage.
_PART_LIMIT_S = 5.0
_WRITE_BYTES = 1 << 16
_READY_BYTES = 1 << 20
_ERROR_BYTES = 1 << 16
_ERROR_CHARACTERS = 4000
# Chat templates and lists of models have some hundred KiB.
_JSON_BYTES = 16 << 20
# An event has the probabilities of some tokens; the last one repeats the prompt as text.
_EVENTS_BYTES = 32 << 20
_TOKEN_EVENT_BYTES = 1 << 14
_PROMPT_TOKEN_BYTES = 64
# An id has at most six digits, a comma and a space.
_TOKEN_ID_BYTES = 16
_DISCONNECTED = (httpcore.NetworkError, httpcore.ProtocolError)


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without a complete answer.

    `stage` is the stage in which it failed. `status` and `body` are the server's response, if
    there is one; `limit_s` is the time limit that was exceeded.
    """

    kind: RequestFailureKind
    stage: RequestStage
    detail: str
    status: int | None = None
    body: str = ""
    limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A generated token, and the log probabilities of the most probable tokens instead of it."""

    token_id: int
    logprob: float | None
    top: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer; prompt and generation times are the server's own."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    prompt_s: float
    predicted_tokens: int
    predicted_s: float
    ttft_s: float
    choices: tuple[TokenChoice, ...] = ()


@dataclass(slots=True)
class _TimeLimit:
    """The time that a request may still take.

    Attributes:
        ends_s: the time on the monotonic clock at which the request ends.
        read_s: the most seconds without data.
        part_began_s: the time of the first byte of a part that is not complete, or None.
        is_one_part: whether everything that arrives belongs to one part.
    """

    ends_s: float
    read_s: float
    part_began_s: float | None = None
    is_one_part: bool = True

    def left_s(self) -> float:
        """Return the seconds that the next operation may take.

        Raises:
            httpcore.ReadTimeout: no time is left.
            WrongAnswerError: the part under way should be complete.
        """
        now_s = time.monotonic()
        if now_s >= self.ends_s:
            raise httpcore.ReadTimeout
        left_s = min(self.read_s, self.ends_s - now_s)
        if self.part_began_s is None:
            return left_s
        part_s = self.part_began_s + _PART_LIMIT_S - now_s
        if part_s <= 0:
            raise WrongAnswerError(
                f"an answer was begun, but not completed within {_PART_LIMIT_S:.0f} s"
            )
        return min(left_s, part_s)

    def note_part(self, is_under_way: bool) -> None:  # noqa: FBT001 - the new state
        """Record whether a part has begun and is not complete."""
        if not is_under_way:
            self.part_began_s = None
        elif self.part_began_s is None:
            self.part_began_s = time.monotonic()


class _LimitedStream(httpcore.NetworkStream):
    """A connection whose reads and writes end with the request's time limit."""

    def __init__(self, stream: httpcore.NetworkStream, limit: _TimeLimit) -> None:
        self._stream = stream
        self._limit = limit

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        while True:
            left_s = self._limit.left_s()
            try:
                data = self._stream.read(max_bytes, left_s)
            except httpcore.ReadTimeout:
                if self._limit.part_began_s is None or left_s >= self._limit.read_s:
                    raise
                continue  # `left_s` raises the error of the limit that is over
            if self._limit.is_one_part:
                self._limit.note_part(is_under_way=True)
            return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        for start in range(0, len(buffer), _WRITE_BYTES):
            self._stream.write(buffer[start : start + _WRITE_BYTES], self._limit.left_s())

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


class _LimitedBackend(httpcore.SyncBackend):
    """Connections with the time limit of one request."""

    def __init__(self, limit: _TimeLimit) -> None:
        super().__init__()
        self._limit = limit

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        del timeout
        left_s = min(_CONNECT_LIMIT_S, self._limit.left_s())
        stream = super().connect_tcp(host, port, left_s, local_address, socket_options)
        return _LimitedStream(stream, self._limit)


class Client:
    """The HTTP API of one server, at the endpoints of its dialect.

    Every request has its own connection, because llama-server sometimes closes a connection that
    it announced to keep. A request under way then looks like a crashed server. (With a router that
    loads and unloads models, four clients lost some requests in a thousand within two minutes.)
    The user's proxy is not used.
    """

    def __init__(self, base_url: str, dialect: Dialect) -> None:
        self._base_url = base_url
        self._dialect = dialect
        self._endpoints = dialect.endpoints
        self._model = ""

    def for_model(self, name: str) -> Self:
        """Return a client whose requests name a model, as a router needs it."""
        named = copy(self)
        named._model = name  # noqa: SLF001 - its own class
        return named

    def request_json(
        self, path: str, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | RequestFailure:
        """Return the JSON object in the response to a GET, or to a POST of a body."""
        return self._request_json(path, body, _JSON_LIMIT_S, _JSON_BYTES)

    def is_ready(self) -> bool:
        """Return whether the server reports that it accepts requests."""
        ready = self._dialect.ready
        try:
            status, _ = self._request(ready.path, None, _READY_LIMIT_S, _READY_BYTES)
        except (httpcore.TimeoutException, WrongAnswerError, *_DISCONNECTED):
            return False
        return status == ready.status

    def props(self, query: str = "") -> dict[str, Any] | RequestFailure:
        """Return the response of the props endpoint; empty if there is none.

        A response that is not JSON, or whose settings cannot be read, is malformed. If the server
        refuses the request or is too late, the applied settings are unknown, and the result is
        empty.
        """
        if self._endpoints.props is None:
            return {}
        props = self.request_json(self._endpoints.props + query)
        if isinstance(props, RequestFailure):
            return props if props.kind == "malformed" else {}
        try:
            check_props(props, self._dialect)
        except WrongAnswerError as error:
            return RequestFailure("malformed", "prompt", str(error))
        return props

    def tokenize(self, text: str, *, begins: bool = False) -> list[int] | RequestFailure:
        """Return a text's token ids; `begins` adds the special token that opens a prompt."""
        if self._endpoints.tokenize is None:
            return RequestFailure("malformed", "prompt", "this runtime cannot tokenize")
        body = {"content": text, "add_special": begins, "parse_special": False}
        limit_bytes = _READY_BYTES + _TOKEN_ID_BYTES * len(text.encode("utf-8", "replace"))
        data = self._request_json(self._endpoints.tokenize, body, _TOKENIZE_LIMIT_S, limit_bytes)
        if isinstance(data, RequestFailure):
            return data
        try:
            return read_tokens(data)
        except WrongAnswerError as error:
            return RequestFailure("malformed", "prompt", str(error))

    def complete(
        self,
        prompt: Sequence[int] | str,
        predicted_tokens: int,
        *,
        prompt_limit_s: float,
        generate_limit_s: float,
        cache_prompt: bool = False,
        n_probs: int = 0,
    ) -> Answer | RequestFailure:
        """Send a request with greedy sampling and wait for its last token.

        A text prompt is tokenized by the server. An end-of-text token does not end the answer.
        `prompt_limit_s` are the most seconds until the first token, `generate_limit_s` those from
        the first to the last. With `cache_prompt` the server may reuse the cache of an earlier
        request. `n_probs` is the number of the most probable tokens to report at each position.
        """
        body: dict[str, Any] = {
            "prompt": list(prompt) if not isinstance(prompt, str) else prompt,
            "n_predict": predicted_tokens,
            "stream": True,
            "cache_prompt": cache_prompt,
            "ignore_eos": True,
            "temperature": 0.0,
            "seed": 1,
            "return_tokens": True,
        }
        if self._model:
            body["model"] = self._model
        if n_probs:
            body["n_probs"] = n_probs
        prompt_limit_s = max(0.1, prompt_limit_s)
        limit = _TimeLimit(time.monotonic() + prompt_limit_s, prompt_limit_s)
        reader = _StreamReader(
            self._dialect.timings,
            limit,
            generate_limit_s,
            _EVENTS_BYTES
            + _TOKEN_EVENT_BYTES * predicted_tokens
            + _PROMPT_TOKEN_BYTES * len(prompt),
        )
        try:
            with self._open(self._endpoints.completion, body, limit) as response:
                if response.status != _OK:
                    text = _read_text(response, _ERROR_BYTES, is_cut=True)[:_ERROR_CHARACTERS]
                    return RequestFailure(
                        "http", "prompt", "request refused", response.status, text
                    )
                limit.is_one_part = False
                limit.note_part(is_under_way=False)
                return reader.read(response.iter_stream())
        except httpcore.TimeoutException:
            return reader.timed_out(prompt_limit_s)
        except WrongAnswerError as error:
            return RequestFailure("malformed", reader.stage, str(error))
        except _DISCONNECTED as error:
            return RequestFailure("disconnected", reader.stage, _reason(error))

    def _request_json(
        self, path: str, body: Mapping[str, Any] | None, limit_s: float, limit_bytes: int
    ) -> dict[str, Any] | RequestFailure:
        try:
            status, text = self._request(path, body, limit_s, limit_bytes)
            if status != _OK:
                cut = text[:_ERROR_CHARACTERS]
                return RequestFailure("http", "prompt", "request refused", status, cut)
            return parse_object(text)
        except httpcore.TimeoutException:
            detail = f"no response to {path} within {limit_s:.0f} s"
            return RequestFailure("timed_out", "prompt", detail, limit_s=limit_s)
        except WrongAnswerError as error:
            return RequestFailure("malformed", "prompt", f"{path}: {error}")
        except _DISCONNECTED as error:
            return RequestFailure("disconnected", "prompt", _reason(error))

    def _request(
        self, path: str, body: Mapping[str, Any] | None, limit_s: float, limit_bytes: int
    ) -> tuple[int, str]:
        """Return the status and the whole body of a response."""
        limit = _TimeLimit(time.monotonic() + limit_s, limit_s)
        with self._open(path, body, limit) as response:
            return response.status, _read_text(response, limit_bytes)

    @contextmanager
    def _open(
        self, path: str, body: Mapping[str, Any] | None, limit: _TimeLimit
    ) -> Iterator[httpcore.Response]:
        """Send a request on a connection of its own, and yield its response."""
        url = httpcore.URL(self._base_url + path)
        headers: dict[bytes | str, bytes | str] = {"Accept": "*/*", "User-Agent": "autofit"}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body, separators=(",", ":")).encode()
        with (
            httpcore.HTTPConnection(url.origin, network_backend=_LimitedBackend(limit)) as http,
            http.stream(
                "GET" if body is None else "POST", url, headers=headers, content=content
            ) as response,
        ):
            yield response


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _read_text(response: httpcore.Response, limit_bytes: int, *, is_cut: bool = False) -> str:
    """Return the body of a response as text. With `is_cut`, shorten a body that is too large."""
    data = bytearray()
    for chunk in response.iter_stream():
        data += chunk
        if len(data) > limit_bytes:
            if is_cut:
                break
            raise WrongAnswerError(f"the answer is larger than {limit_bytes} bytes")
    return data[:limit_bytes].decode("utf-8", "replace")


class _StreamReader:
    """The events of a streamed answer."""

    def __init__(
        self, timings: Timings, limit: _TimeLimit, generate_limit_s: float, limit_bytes: int
    ) -> None:
        self._timings = timings
        self.stage: RequestStage = "prompt"
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._began_s = time.monotonic()
        self._first_s = 0.0
        self._generate_limit_s = generate_limit_s
        self._text: list[str] = []
        self._ids: list[int] = []
        self._choices: list[TokenChoice] = []

    def read(self, chunks: Iterable[bytes]) -> Answer | RequestFailure:
        """Return the answer in a stream.

        Raises:
            WrongAnswerError: an event has another form, or there is too much data.
        """
        for line in self._split_lines(chunks):
            if not line.startswith("data:"):
                continue
            payload = line[len("data:") :].strip()
            if payload == "[DONE]":
                break
            data = parse_object(payload)
            if "error" in data:
                # A failure in mid-stream is an event; the HTTP status stays 200.
                code, body = read_error_code(data), payload[:_ERROR_CHARACTERS]
                return RequestFailure("http", self.stage, "request failed", code, body)
            event = read_event(data)
            self._note_stage(event)
            if self.stage == "generate" and time.monotonic() > self._limit.ends_s:
                raise httpcore.ReadTimeout
            self._add(event)
            if event.stop:
                return self._make_answer(event)
        return RequestFailure("disconnected", self.stage, "the stream ended early")

    def timed_out(self, prompt_limit_s: float) -> RequestFailure:
        """Return the failure of a request that exceeded one of its time limits."""
        if self.stage == "generate" and time.monotonic() >= self._limit.ends_s:
            limit_s = self._generate_limit_s
            detail = f"not finished within {limit_s:.0f} s"
            return RequestFailure("timed_out", "generate", detail, limit_s=limit_s)
        detail = f"no token within {prompt_limit_s:.0f} s"
        return RequestFailure("timed_out", self.stage, detail, limit_s=prompt_limit_s)

    def _split_lines(self, chunks: Iterable[bytes]) -> Iterator[str]:
        size, pending = 0, bytearray()
        for chunk in chunks:
            size += len(chunk)
            if size > self._limit_bytes:
                raise WrongAnswerError(f"the answer is larger than {self._limit_bytes} bytes")
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                yield (pending + end).decode("utf-8", "replace")
                pending.clear()
            pending += rest
            if ends:
                self._limit.note_part(is_under_way=False)
            self._limit.note_part(is_under_way=bool(pending))
        if pending:
            yield pending.decode("utf-8", "replace")

    def _note_stage(self, event: StreamEvent) -> None:
        if self.stage == "prompt" and (event.prompt_progress is None or event.content):
            self._first_s = time.monotonic()
            self.stage = "generate"
            self._limit.ends_s = self._first_s + self._generate_limit_s

    def _add(self, event: StreamEvent) -> None:
        if event.content:
            self._text.append(event.content)
        self._ids.extend(event.tokens)
        self._choices.extend(_make_choice(token) for token in event.completion_probabilities)

    def _make_answer(self, event: StreamEvent) -> Answer:
        timings = read_timings(event.timings, self._timings)
        prompt_s = timings.prompt_ms / 1000
        return Answer(
            text="".join(self._text),
            token_ids=tuple(self._ids),
            prompt_tokens=timings.prompt_tokens,
            cached_tokens=timings.cached_tokens,
            prompt_s=prompt_s,
            predicted_tokens=timings.predicted_tokens,
            predicted_s=timings.predicted_ms / 1000,
            # The server's clock starts with the slot, ours before the connection.
            ttft_s=max(self._first_s - self._began_s, prompt_s),
            choices=tuple(self._choices),
        )


def _make_choice(token: ChosenToken) -> TokenChoice:
    return TokenChoice(
        token_id=token.id,
        logprob=token.logprob,
        top={entry.id: entry.logprob for entry in token.top_logprobs},
    )
