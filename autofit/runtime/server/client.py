"""The HTTP client of a running server; failed requests are values.

Only this module uses httpx. Answers are streamed, so that the client measures the time to the
first token and each stage of a request has its own time limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx

from autofit.runtime.dialect.dialect import Dialect, Timings

RequestFailureKind = Literal["http", "timed_out", "disconnected", "malformed"]


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """A request without a complete answer.

    `stage` is the stage in which it failed. `status` and `body` are the server's response, if
    there is one; `limit_s` is the time limit that was exceeded.
    """

    kind: RequestFailureKind
    stage: Literal["prompt", "generate"]
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


class Client:
    """The HTTP API of one server, at the endpoints of its dialect."""

    def __init__(self, base_url: str, dialect: Dialect) -> None:
        self._ready = dialect.ready
        self._endpoints = dialect.endpoints
        self._timings = dialect.timings
        # trust_env is off: a user's proxy must not be used for our own server.
        # Every request has its own connection: llama-server sometimes closes one that it
        # announced to keep (a router that loads and unloads, with four clients for two minutes:
        # some requests in a thousand). A request on its way then looks like a crashed server.
        self._http = httpx.Client(
            base_url=base_url,
            timeout=10.0,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._model = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def for_model(self, name: str) -> Self:
        """Return a client whose requests name a model, as a router needs it."""
        named = copy(self)
        named._model = name  # noqa: SLF001 - its own class
        return named

    def request_json(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON response to a GET, or to a POST of a body; empty if it failed."""
        try:
            answer = self._http.get(path) if body is None else self._http.post(path, json=body)
            data = answer.json() if answer.status_code == httpx.codes.OK else {}
        except (httpx.HTTPError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def is_ready(self) -> bool:
        """Return whether the server reports that it accepts requests."""
        try:
            answer = self._http.get(self._ready.path, timeout=2.0)
        except httpx.HTTPError:
            return False
        return answer.status_code == self._ready.status

    def props(self) -> dict[str, Any]:
        """Return the response of the props endpoint; empty if it failed or there is none."""
        return {} if self._endpoints.props is None else self.request_json(self._endpoints.props)

    def tokenize(self, text: str, *, begins: bool = False) -> list[int] | RequestFailure:
        """Return a text's token ids; `begins` adds the special token that opens a prompt."""
        if self._endpoints.tokenize is None:
            return RequestFailure("malformed", "prompt", "this runtime cannot tokenize")
        body = {"content": text, "add_special": begins, "parse_special": False}
        try:
            answer = self._http.post(self._endpoints.tokenize, json=body, timeout=60.0)
        except httpx.TimeoutException as error:
            return RequestFailure("timed_out", "prompt", str(error) or "no response to /tokenize")
        except httpx.HTTPError as error:
            return RequestFailure("disconnected", "prompt", _reason(error))
        try:
            tokens = answer.json()["tokens"]
            return [int(token) for token in tokens]
        except (ValueError, KeyError, TypeError):
            return RequestFailure(
                "http", "prompt", "unexpected response", answer.status_code, answer.text[:2000]
            )

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

        Args:
            prompt: token ids, or text that the server tokenizes.
            predicted_tokens: tokens to generate; an end-of-text token is ignored.
            prompt_limit_s: the most seconds until the first token.
            generate_limit_s: the most seconds between the first and the last token.
            cache_prompt: whether the server may reuse the cache of an earlier request.
            n_probs: number of the most probable tokens to report at each position.
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
        reader = _StreamReader(self._timings, prompt_limit_s, generate_limit_s)
        timeout = httpx.Timeout(10.0, read=max(0.1, prompt_limit_s), write=60.0)
        try:
            with self._http.stream(
                "POST", self._endpoints.completion, json=body, timeout=timeout
            ) as response:
                if response.status_code != httpx.codes.OK:
                    text = response.read().decode("utf-8", "replace")[:4000]
                    return RequestFailure(
                        "http", "prompt", "request refused", response.status_code, text
                    )
                return reader.read(response.iter_lines())
        except httpx.TimeoutException:
            # httpx applies the limit to the first token and between later ones.
            detail = f"no token within {prompt_limit_s:.0f} s"
            return RequestFailure("timed_out", reader.stage, detail, limit_s=prompt_limit_s)
        except httpx.HTTPError as error:
            return RequestFailure("disconnected", reader.stage, _reason(error))


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


class _StreamReader:
    """The events of a streamed answer."""

    def __init__(self, timings: Timings, prompt_limit_s: float, generate_limit_s: float) -> None:
        self._timings = timings
        self.stage: Literal["prompt", "generate"] = "prompt"
        self._began_s = time.monotonic()
        self._first_s = 0.0
        self._prompt_limit_s = prompt_limit_s
        self._generate_limit_s = generate_limit_s
        self._text: list[str] = []
        self._ids: list[int] = []
        self._choices: list[TokenChoice] = []

    def read(self, lines: Iterator[str]) -> Answer | RequestFailure:
        for line in lines:
            if not line.startswith("data:"):
                continue
            payload = line[len("data:") :].strip()
            if payload == "[DONE]":
                break
            try:
                event = json.loads(payload)
            except ValueError:
                return RequestFailure("malformed", self.stage, f"not JSON: {payload[:200]}")
            if "error" in event:
                # A failure in mid-stream is an event; the HTTP status stays 200.
                code = event["error"].get("code") if isinstance(event["error"], dict) else None
                return RequestFailure("http", self.stage, "request failed", code, payload[:4000])
            late = self._add(event)
            if late is not None:
                return late
            if event.get("stop"):
                return self._make_answer(event)
        return RequestFailure("disconnected", self.stage, "the stream ended early")

    def _add(self, event: Mapping[str, Any]) -> RequestFailure | None:
        now = time.monotonic()
        if self.stage == "prompt" and ("prompt_progress" not in event or event.get("content")):
            self._first_s = now
            self.stage = "generate"
        elif self.stage == "generate" and now - self._first_s > self._generate_limit_s:
            limit_s = self._generate_limit_s
            detail = f"not finished within {limit_s:.0f} s"
            return RequestFailure("timed_out", "generate", detail, limit_s=limit_s)
        self._text.append(str(event.get("content", "")))
        self._ids.extend(int(token) for token in event.get("tokens", ()))
        self._choices.extend(
            _make_choice(item) for item in event.get("completion_probabilities", ())
        )
        return None

    def _make_answer(self, event: Mapping[str, Any]) -> Answer | RequestFailure:
        timings, keys = event.get("timings"), self._timings
        if not isinstance(timings, dict):
            return RequestFailure("malformed", "generate", "the answer has no timings")
        try:
            prompt_s = float(timings[keys.prompt_ms]) / 1000
            return Answer(
                text="".join(self._text),
                token_ids=tuple(self._ids),
                prompt_tokens=int(timings[keys.prompt_tokens]),
                cached_tokens=int(timings.get(keys.cached_tokens, 0)),
                prompt_s=prompt_s,
                predicted_tokens=int(timings[keys.predicted_tokens]),
                predicted_s=float(timings[keys.predicted_ms]) / 1000,
                # The server's clock starts with the slot, ours before the connection.
                ttft_s=max(self._first_s - self._began_s, prompt_s),
                choices=tuple(self._choices),
            )
        except (KeyError, TypeError, ValueError) as error:
            return RequestFailure("malformed", "generate", f"unreadable timings: {error!r}")


def _make_choice(item: Mapping[str, Any]) -> TokenChoice:
    top = item.get("top_logprobs", ())
    return TokenChoice(
        token_id=int(item.get("id", -1)),
        logprob=item.get("logprob"),
        top={int(entry["id"]): float(entry["logprob"]) for entry in top},
    )
