"""One completion request: prompt forms, cache reuse, timings, stream, log lines, faults."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes import api_shape, request_log
from fakes.faults import Faults
from fakes.http_server import Reply
from fakes.launch import Launch, StoppedError
from fakes.log import Log
from fakes.replies import Replies, detokenize, piece, tokenize
from fakes.scatter import Scatter

_CONTENT_ONLY = "The model produced output that does not match the expected Content-only format"


class RequestError(Exception):
    """The request is answered with an error body."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = api_shape.error(status, kind, message, **more)


@dataclass(slots=True)
class Slot:
    """A place for one request at a time, with what its cache holds."""

    number: int
    tokens: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(slots=True)
class _Answer:
    prompt: list[int]
    cached: int
    prompt_s: float
    tokens: list[int]
    predicted_s: float
    stop_type: str
    slot: int
    texts: list[str] = field(default_factory=list)


class Completer:
    """Answers completion requests of one launch, one slot at a time."""

    def __init__(
        self,
        launch: Launch,
        log: Log,
        faults: Faults,
        replies: Replies,
        scatter: Callable[[], Scatter],
        *,
        time_scale: float,
        path: str,
        reuses_prompts: bool,
        die: Callable[[StoppedError | None, str], None],
    ) -> None:
        self.launch, self.log, self.faults, self.replies = launch, log, faults, replies
        self.scatter, self.time_scale, self.path, self.die = scatter, time_scale, path, die
        self.reuses_prompts = reuses_prompts
        self.slots = [Slot(i) for i in range(launch.settings.parallel)]
        self.order = 0
        self.task = 0
        self.active = 0
        self.totals = {"prompt": 0, "prompt_s": 0.0, "predicted": 0, "predicted_s": 0.0}
        self._memory = threading.Lock()

    @property
    def slot_context(self) -> int:
        """Tokens a slot can hold."""
        return min(self.launch.settings.slot_context, self.launch.model.context_train)

    # ---- the request

    def prompts(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """The prompts of a request as token lists.

        Raises:
            RequestError: there is none, or a token that is not in the vocabulary.
        """
        if "prompt" not in asked:
            message = "[json.exception.out_of_range.403] key 'prompt' not found"
            raise RequestError(400, "invalid_request_error", message)
        value = asked["prompt"]
        is_many = isinstance(value, list) and value and all(
            isinstance(item, list) or (isinstance(item, str) and len(value) > 1) for item in value
        )  # fmt: skip
        found = [self._tokens(item) for item in (value if is_many else [value])]
        if not all(found):
            raise RequestError(400, "invalid_request_error", '"prompt" must not be empty')
        return found

    def _tokens(self, value: Any) -> list[int]:
        if isinstance(value, str):
            return tokenize(value)
        tokens: list[int] = []
        for item in value:
            tokens += tokenize(item) if isinstance(item, str) else [int(item)]
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.launch.model.n_vocab:
            raise RequestError(400, "invalid_request_error", "Prompt contains invalid tokens")
        return tokens

    def _slot(self, asked: Mapping[str, Any], prompt: Sequence[int]) -> Slot:
        requested = int(asked.get("id_slot", -1))
        if 0 <= requested < len(self.slots):
            return self.slots[requested]
        idle = [slot for slot in self.slots if not slot.lock.locked()] or self.slots
        return max(idle, key=lambda slot: _common(slot.tokens, prompt))

    def _reused(self, slot: Slot, prompt: Sequence[int], asked: Mapping[str, Any]) -> int:
        if not asked.get("cache_prompt", self.reuses_prompts):
            return 0
        common = _common(slot.tokens, prompt)
        # Recurrent state cannot be cut back to an earlier token.
        is_recurrent = any(b.attention == "recurrent" for b in self.launch.model.blocks)
        if is_recurrent and common < len(slot.tokens):
            return 0
        return min(common, len(prompt) - 1)

    def answer(self, asked: Mapping[str, Any], prompt: list[int]) -> _Answer:
        """Process one prompt and generate; `StoppedError` and `RequestError` as they come."""
        n_ctx = self.slot_context
        slot = self._slot(asked, prompt)
        self.faults.asked_tokens = len(prompt)
        self._fail_on_request()
        with slot.lock:
            task, self.task = self.task, self.task + 1
            request_log.start(self.log, slot.number, task, n_ctx, len(prompt))
            shrunk = self.faults.get("slot-shrunk")
            n_ctx = int(shrunk.number(n_ctx // 2)) if shrunk else n_ctx
            if len(prompt) >= n_ctx:
                message = (
                    f"request ({len(prompt)} tokens) exceeds the available context size "
                    f"({n_ctx} tokens), try increasing it"
                )
                self.log.error_line(f"srv    send_error: task id = {task}, error: {message}")
                raise RequestError(
                    400,
                    "exceed_context_size_error",
                    message,
                    n_prompt_tokens=len(prompt),
                    n_ctx=n_ctx,
                )
            self.active += 1
            try:
                answer = self._compute(slot, asked, prompt, task)
            finally:
                self.active -= 1
            slot.tokens = [*prompt, *answer.tokens[:-1]]
            self.log.advance(answer.predicted_s * (1 - self.time_scale))
            request_log.end(self.log, slot.number, task, self.timings(answer), len(slot.tokens))
        return answer

    def _fail_on_request(self) -> None:
        """Faults that strike before anything is computed."""
        if self.faults.get("hang-request"):
            time.sleep(self.faults.get("hang-request").number(3600))
        if self.faults.get("http-500"):
            raise RequestError(500, "server_error", "Compute error.")
        if self.faults.get("content-500"):
            raise RequestError(500, "server_error", _CONTENT_ONLY)
        if self.faults.get("no-slot"):
            raise RequestError(503, "unavailable_error", "no slot is available")

    def _compute(
        self, slot: Slot, asked: Mapping[str, Any], prompt: list[int], task: int
    ) -> _Answer:
        n_predict = int(asked.get("n_predict", -1))
        room = self.slot_context - len(prompt)
        is_cut = n_predict < 0 or n_predict > room
        count = room if is_cut else max(1, n_predict)
        stop_type = "limit"
        cached = self._reused(slot, prompt, asked)
        is_greedy = float(asked.get("temperature", 0.8)) <= 0
        tokens = self.replies.tokens(prompt, count, int(asked.get("seed", -1)), greedy=is_greedy)
        if not asked.get("ignore_eos", False) and (ends := 24 + sum(prompt) % 300) < count:
            # The model would say it is done; whoever wants an exact length must forbid that.
            tokens, stop_type = tokens[:ends], "eos"
        new = len(prompt) - cached
        batch = self.launch.settings.batch
        request_log.prompt(self.log, slot.number, task, range(cached, len(prompt), batch))
        with self._memory:
            self.die(None, "prompt")
            prompt_s = self.launch.process_prompt(new, cached)
            self.die(None, "generate")
            streams = min(max(1, self.active), len(self.slots))
            predicted_s = self.launch.generate(len(tokens), len(prompt), streams)
            scatter = self.scatter()
            order, self.order = self.order, self.order + 1
        prompt_s = scatter.prompt_s(prompt_s, order) * self._slowness()
        predicted_s = scatter.predicted_s(predicted_s) * self._slowness()
        self.totals["prompt"] += new
        self.totals["prompt_s"] += prompt_s
        self.totals["predicted"] += len(tokens)
        self.totals["predicted_s"] += predicted_s
        self.log.advance(prompt_s * (1 - self.time_scale))
        time.sleep(prompt_s * self.time_scale)
        answer = _Answer(prompt, cached, prompt_s, tokens, predicted_s, stop_type, slot.number)
        answer.texts = self._texts(tokens)
        return answer

    def _slowness(self) -> float:
        fault = self.faults.get("speed")
        return fault.number(5.0) if fault else 1.0

    def _texts(self, tokens: list[int]) -> list[str]:
        if self.faults.get("garbage"):
            return ["�\x00�" for _ in tokens]
        if self.faults.get("wrong-text"):
            return [" wrong" for _ in tokens]
        if self.faults.get("empty-text"):
            return ["" for _ in tokens]
        return [piece(token).decode("utf-8", "replace") for token in tokens]

    # ---- answers

    def timings(self, answer: _Answer, done: int | None = None) -> dict[str, Any]:
        """The timings of an answer, or of its first tokens."""
        count = len(answer.tokens) if done is None else done
        share = (count - 1) / max(1, len(answer.tokens) - 1)
        prompt_ms, predicted_ms = answer.prompt_s * 1e3, answer.predicted_s * 1e3 * share
        if self.faults.get("impossible-speed"):
            prompt_ms, predicted_ms = prompt_ms / 1e6, predicted_ms / 1e6
        if self.faults.get("zero-timings"):
            prompt_ms = predicted_ms = 0.0
        new = len(answer.prompt) - answer.cached
        return api_shape.timings(answer.cached, new, prompt_ms, count, predicted_ms)

    def _wrong_fields(self, name: str) -> Mapping[str, Any]:
        fault = self.faults.get(name)
        return fault.value if fault else {}

    def result(self, asked: Mapping[str, Any], index: int, answer: _Answer) -> dict[str, Any]:
        """The whole answer to one prompt."""
        is_stream = bool(asked.get("stream"))
        content = "" if is_stream else "".join(answer.texts)
        count = len(answer.tokens)
        n_vocab = self.launch.model.n_vocab
        biased = [n_vocab - 2, n_vocab - 1] if asked.get("ignore_eos") else []
        whole: dict[str, Any] = {
            "index": index,
            "content": content,
            "tokens": answer.tokens if asked.get("return_tokens") and not is_stream else [],
            "id_slot": answer.slot,
            "stop": True,
            "model": self.path,
            "tokens_predicted": count,
            "tokens_evaluated": len(answer.prompt),
            "generation_settings": api_shape.generation_settings(
                asked, int(asked.get("n_predict", -1)), biased
            ),
            "prompt": detokenize(answer.prompt),
            "has_new_line": "\n" in content,
            "truncated": len(answer.prompt) + count >= self.slot_context,
            "stop_type": answer.stop_type,
            "stopping_word": "",
            "tokens_cached": len(answer.prompt) + count - 1,
            "timings": {**self.timings(answer), **self._wrong_fields("wrong-timings")},
        }
        if int(asked.get("n_probs", 0)) and not is_stream:
            whole["completion_probabilities"] = [
                self._probability(asked, answer, at) for at in range(count)
            ]
        requested = asked.get("response_fields")
        return {key: whole[key] for key in requested if key in whole} if requested else whole

    def _probability(self, asked: Mapping[str, Any], answer: _Answer, at: int) -> dict[str, Any]:
        token = answer.tokens[at]
        top = self.replies.top(answer.prompt, at, token, int(asked["n_probs"]))
        pieces = [piece(item) for item, _ in top]
        return api_shape.probability(top, pieces, sampled=bool(asked.get("post_sampling_probs")))

    def stream(self, reply: Reply, asked: Mapping[str, Any], answer: _Answer) -> None:
        """Send an answer token by token."""
        reply.start_events()
        if asked.get("return_progress"):
            self._progress(reply, answer)
        drop = self.faults.get("drop")
        hang = self.faults.get("hang-generate")
        pause = answer.predicted_s * self.time_scale / max(1, len(answer.tokens) - 1)
        for at, (token, text) in enumerate(zip(answer.tokens, answer.texts, strict=True)):
            if drop and at >= drop.number(1):
                reply.drop()
            if hang and at == 1:
                time.sleep(hang.number(3600))
            if self.faults.get("event-500") and at == 1:
                reply.event(api_shape.error(500, "server_error", "Compute error."))
                reply.end_events()
                return
            event: dict[str, Any] = {
                "index": 0,
                "content": text,
                "tokens": [token],
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": at + 1,
                "tokens_evaluated": len(answer.prompt),
            }
            if asked.get("timings_per_token"):
                event["timings"] = self.timings(answer, at + 1)
            if int(asked.get("n_probs", 0)):
                event["completion_probabilities"] = [self._probability(asked, answer, at)]
            wrong = self.faults.get("wrong-event") if at == 0 else None
            reply.event(wrong.value if wrong else event)
            time.sleep(pause if at else 0.0)
        reply.event({**self.result(asked, 0, answer), **self._wrong_fields("wrong-last-event")})
        reply.end_events()

    def _progress(self, reply: Reply, answer: _Answer) -> None:
        total = len(answer.prompt)
        for done in dict.fromkeys((answer.cached, total)):
            share = (done - answer.cached) / max(1, total - answer.cached)
            reply.event(
                {
                    "index": 0, "content": "", "tokens": [0], "stop": False, "id_slot": -1,
                    "tokens_predicted": 0, "tokens_evaluated": total,
                    "timings": api_shape.timings(
                        answer.cached, done - answer.cached, answer.prompt_s * 1e3 * share, 0, 0.0
                    ),
                    "prompt_progress": {
                        "total": total, "cache": answer.cached, "processed": done,
                        "time_ms": int(answer.prompt_s * 1e3 * share),
                    },
                }
            )  # fmt: skip


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    shorter = min(len(a), len(b))
    for at in range(shorter):
        if a[at] != b[at]:
            return at
    return shorter
