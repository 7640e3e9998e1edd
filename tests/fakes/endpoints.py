"""The HTTP endpoints of the fake llama-server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from fakes import api_shape
from fakes.completion import Completer, RequestError
from fakes.faults import Faults
from fakes.http_server import HttpRequest, Reply
from fakes.launch import StoppedError
from fakes.replies import detokenize, piece, tokenize


def while_loading(request: HttpRequest, reply: Reply) -> None:
    """Every endpoint answers the same until the model is there."""
    reply.json(api_shape.error(503, "unavailable_error", "Loading model"), 503)


class Endpoints:
    """Routes of a server that is ready."""

    def __init__(
        self,
        completer: Completer,
        faults: Faults,
        build: str,
        *,
        has_metrics: bool,
        end: Callable[[StoppedError], None],
    ) -> None:
        self.completer, self.faults, self.build = completer, faults, build
        self.has_metrics, self.end = has_metrics, end
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, Reply], None]] = {
            ("GET", "/health"): lambda _, reply: reply.json({"status": "ok"}),
            ("GET", "/v1/health"): lambda _, reply: reply.json({"status": "ok"}),
            ("GET", "/props"): self.props,
            ("GET", "/slots"): self.slots,
            ("GET", "/models"): self.models,
            ("GET", "/v1/models"): self.models,
            ("GET", "/metrics"): self.metrics,
            ("POST", "/completion"): self.completion,
            ("POST", "/completions"): self.completion,
            ("POST", "/v1/completions"): self.openai_completion,
            ("POST", "/v1/chat/completions"): self.chat,
            ("POST", "/apply-template"): self.template,
            ("POST", "/tokenize"): self.tokenize,
            ("POST", "/detokenize"): self.detokenize,
        }

    def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer one request."""
        path = request.path.partition("?")[0]
        route = self._routes.get((request.method, path))
        for name, data, pause_s in (("endless", b" " * 65536, 0.0), ("drip", b" ", 0.1)):
            fault = self.faults.get(name)
            if fault is not None and fault.value == path:
                reply.repeat(data, pause_s)
        try:
            if route is None:
                self._unknown(request.method, path, reply)
            else:
                route(request, reply)
        except RequestError as error:
            reply.json(error.body, error.status)
        except (TypeError, ValueError, KeyError) as error:
            what = f"[json.exception.type_error.302] {error}"
            reply.json(api_shape.error(400, "invalid_request_error", what), 400)
        except StoppedError as stopped:
            self.end(stopped)  # returns only where the server lives on
            reply.json(api_shape.error(500, "server_error", "Compute error."), 500)

    def _unknown(self, method: str, path: str, reply: Reply) -> None:
        if (method, path) == ("POST", "/props"):
            raise RequestError(
                501,
                "not_supported_error",
                "This server does not support changing global properties. Start it with `--props`",
            )
        body = {"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}
        reply.json(body, 404)

    @staticmethod
    def _json(request: HttpRequest) -> Mapping[str, Any]:
        try:
            return json.loads(request.body)
        except ValueError as error:
            raise RequestError(
                400,
                "invalid_request_error",
                f"[json.exception.parse_error.101] parse error: {error}",
            ) from error

    def props(self, _: HttpRequest, reply: Reply) -> None:
        """GET /props."""
        completer = self.completer
        reply.json(
            api_shape.props(
                completer.slot_context, len(completer.slots), completer.path, self.build,
                has_metrics=self.has_metrics,
            )
        )  # fmt: skip

    def slots(self, _: HttpRequest, reply: Reply) -> None:
        """GET /slots."""
        completer = self.completer
        reply.json(
            [
                {"id": slot.number, "n_ctx": completer.slot_context, "speculative": False,
                 "is_processing": slot.lock.locked()}
                for slot in completer.slots
            ]
        )  # fmt: skip

    def models(self, _: HttpRequest, reply: Reply) -> None:
        """GET /v1/models."""
        completer = self.completer
        model = completer.launch.model
        reply.json(api_shape.models(completer.path, model, completer.slot_context))

    def metrics(self, _: HttpRequest, reply: Reply) -> None:
        """GET /metrics, where it was switched on."""
        if not self.has_metrics:
            raise RequestError(
                501,
                "not_supported_error",
                "This server does not support metrics endpoint. Start it with `--metrics`",
            )
        totals = self.completer.totals
        rows = (
            ("prompt_tokens_total", totals["prompt"]),
            ("prompt_seconds_total", totals["prompt_s"]),
            ("tokens_predicted_total", totals["predicted"]),
            ("tokens_predicted_seconds_total", totals["predicted_s"]),
            ("requests_processing", self.completer.active),
        )
        text = "".join(
            f"# TYPE llamacpp:{name} counter\nllamacpp:{name} {n}\n" for name, n in rows
        )
        reply.send(200, text, "text/plain; version=0.0.4")

    def completion(self, request: HttpRequest, reply: Reply) -> None:
        """POST /completion."""
        asked = self._json(request)
        prompts = self.completer.prompts(asked)
        if asked.get("stream"):
            self.completer.stream(reply, asked, self.completer.answer(asked, prompts[0]))
            return
        results = [
            self.completer.result(asked, index, self.completer.answer(asked, prompt))
            for index, prompt in enumerate(prompts)
        ]
        if self.faults.get("drop"):
            reply.drop()
        if self.faults.get("bad-json"):
            reply.send(200, '{"index":0,"content":"')
            return
        is_list = isinstance(asked["prompt"], list) and len(prompts) > 1
        reply.json(results if is_list else results[0])

    def openai_completion(self, request: HttpRequest, reply: Reply) -> None:
        """POST /v1/completions."""
        asked = self._json(request)
        tokens = self.completer.prompts(asked)[0]
        reply.json(self._openai(asked, tokens, "text_completion", "cmpl"))

    def chat(self, request: HttpRequest, reply: Reply) -> None:
        """POST /v1/chat/completions."""
        asked = self._json(request)
        tokens = tokenize(_conversation(asked))
        reply.json(self._openai(asked, tokens, "chat.completion", "chatcmpl"))

    def _openai(
        self, asked: Mapping[str, Any], tokens: list[int], kind: str, prefix: str
    ) -> dict[str, Any]:
        own = {**asked, "n_predict": asked.get("max_tokens", -1)}
        answer = self.completer.answer(own, tokens)
        text = "".join(answer.texts)
        choice: dict[str, Any] = {"finish_reason": "length", "index": 0}
        if kind == "text_completion":
            choice |= {"text": text, "logprobs": None}
        else:
            choice["message"] = {"role": "assistant", "content": text}
        count = len(answer.tokens)
        return {
            "choices": [choice],
            "created": 1795980173,
            "model": self.completer.path,
            "system_fingerprint": self.build,
            "object": kind,
            "usage": {
                "completion_tokens": count,
                "prompt_tokens": len(tokens),
                "total_tokens": count + len(tokens),
                "prompt_tokens_details": {"cached_tokens": answer.cached},
            },
            "id": f"{prefix}-fake",
            "timings": self.completer.timings(answer),
        }

    def template(self, request: HttpRequest, reply: Reply) -> None:
        """POST /apply-template."""
        reply.json({"prompt": _conversation(self._json(request))})

    def tokenize(self, request: HttpRequest, reply: Reply) -> None:
        """POST /tokenize."""
        asked = self._json(request)
        tokens = tokenize(str(asked.get("content", "")))
        if asked.get("with_pieces"):
            reply.json(
                {"tokens": [{"id": t, "piece": piece(t).decode("utf-8", "replace")}
                            for t in tokens]}
            )  # fmt: skip
            return
        reply.json({"tokens": tokens})

    def detokenize(self, request: HttpRequest, reply: Reply) -> None:
        """POST /detokenize."""
        reply.json({"content": detokenize(self._json(request).get("tokens", []))})


def _conversation(asked: Mapping[str, Any]) -> str:
    turns = "".join(
        f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n"
        for turn in asked.get("messages", [])
    )
    return f"{turns}<|im_start|>assistant\n"
