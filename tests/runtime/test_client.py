"""Requests to a server: answers, and all kinds of failures."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from autofit.runtime.dialect.dialect_file import load_dialect
from autofit.runtime.server.client import Answer, Client, RequestFailure

TIMINGS = {
    "cache_n": 0, "prompt_n": 3, "prompt_ms": 20.0, "predicted_n": 2, "predicted_ms": 10.0,
}  # fmt: skip
TOKEN = {"content": "ab", "tokens": [7], "stop": False}
LAST = {"content": "", "tokens": [8], "stop": True, "timings": TIMINGS}


def event(data: object) -> bytes:
    """Return an event of a stream."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


@contextmanager
def serving(answer):
    """Start a server that answers with `answer(handler)`; yield a client and the requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            requests.append((self.path, json.loads(self.rfile.read(length))))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        port = server.server_address[1]
        yield Client(f"http://127.0.0.1:{port}", load_dialect("llama_server")), requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def respond(*parts: bytes, status: int = 200, then=None):
    """Return an answer with this body; `then` is called before the connection closes."""

    def answer(handler) -> None:
        handler.send_response(status)
        handler.end_headers()
        for part in parts:
            handler.wfile.write(part)
            handler.wfile.flush()
        if then is not None:
            then()

    return answer


def complete(client, **more):
    """Send a request."""
    limits = {"prompt_limit_s": 20.0, "generate_limit_s": 20.0, **more}
    return client.complete([1, 2, 3], 2, **limits)


def test_answer_is_read_from_its_events():
    """Text and tokens are joined, and counts and times are the server's own."""
    with serving(respond(event(TOKEN), event(LAST), event("[DONE]"))) as (client, requests):
        answer = complete(client)

    assert isinstance(answer, Answer)
    assert (answer.text, answer.token_ids) == ("ab", (7, 8))
    assert (answer.prompt_tokens, answer.cached_tokens, answer.predicted_tokens) == (3, 0, 2)
    assert (answer.prompt_s, answer.predicted_s) == (0.02, 0.01)
    assert answer.ttft_s >= answer.prompt_s
    ((path, body),) = requests
    assert path == "/completion"
    assert (body["prompt"], body["n_predict"]) == ([1, 2, 3], 2)
    assert (body["cache_prompt"], body["ignore_eos"], body["temperature"]) == (False, True, 0.0)


@pytest.mark.parametrize(
    ("answer", "kind", "stage", "detail"),
    [
        (respond(b"sorry", status=503), "http", "prompt", "refused"),
        (respond(event({"error": {"code": 500, "message": "full"}})), "http", "prompt", "failed"),
        (respond(event(TOKEN), event({"error": "full"})), "http", "generate", "failed"),
        (respond(event("{not json")), "malformed", "prompt", "not JSON"),
        (respond(event(TOKEN), event("{not json")), "malformed", "generate", "not JSON"),
        (respond(), "disconnected", "prompt", "ended early"),
        (respond(event(TOKEN)), "disconnected", "generate", "ended early"),
        (respond(event({**LAST, "timings": None})), "malformed", "generate", "no timings"),
        (respond(event({**LAST, "timings": {}})), "malformed", "generate", "unreadable"),
        (
            respond(event({**LAST, "timings": {**TIMINGS, "prompt_ms": "soon"}})),
            "malformed",
            "generate",
            "unreadable",
        ),
    ],
)
def test_failed_request_is_a_value(answer, kind, stage, detail):
    """Each failure has its kind, stage and detail."""
    with serving(answer) as (client, _):
        failure = complete(client)

    assert isinstance(failure, RequestFailure)
    assert (failure.kind, failure.stage) == (kind, stage)
    assert detail in failure.detail


def test_refused_request_has_status_and_body():
    """Status and body of a refused request are kept."""
    with serving(respond(b'{"error": {"message": "too long"}}', status=400)) as (client, _):
        failure = complete(client)

    assert failure.status == 400
    assert "too long" in failure.body


@pytest.mark.parametrize(("parts", "stage"), [((), "prompt"), ((event(TOKEN),), "generate")])
def test_missing_token_is_timed_out(parts, stage):
    """A request without a token within the limit ends in the stage that hangs."""
    over = threading.Event()
    with serving(respond(*parts, then=lambda: over.wait(20))) as (client, _):
        failure = complete(client, prompt_limit_s=0.3, generate_limit_s=0.3)
        over.set()

    assert (failure.kind, failure.stage, failure.limit_s) == ("timed_out", stage, 0.3)


def test_endless_generation_is_timed_out():
    """Further tokens do not extend the time limit of the generation."""

    def answer(handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        pause = threading.Event()
        try:
            for _ in range(2000):
                handler.wfile.write(event(TOKEN))
                pause.wait(0.01)
        except OSError:
            pass  # the client has closed the connection, as it should

    with serving(answer) as (client, _):
        failure = complete(client, generate_limit_s=0.3)

    assert (failure.kind, failure.stage) == ("timed_out", "generate")
    assert failure.limit_s == 0.3


def test_unreachable_server_is_a_value():
    """On a closed port, the server is not ready, has no props, and requests fail."""
    client = Client("http://127.0.0.1:9", load_dialect("llama_server"))
    assert client.is_ready() is False
    assert client.props() == {}
    assert complete(client).kind == "disconnected"
    assert client.tokenize("text").kind == "disconnected"


@pytest.mark.parametrize(("status", "is_ready"), [(200, True), (503, False), (404, False)])
def test_ready_status_is_that_of_the_dialect(status, is_ready):
    """Only the dialect's status means that the server is ready."""
    with serving(respond(b"{}", status=status)) as (client, _):
        assert client.is_ready() is is_ready


@pytest.mark.parametrize(
    ("body", "status", "props"),
    [
        (b'{"n_ctx": 5}', 200, {"n_ctx": 5}),
        (b'{"a": 1}', 404, {}),
    ],
)
def test_failed_props_are_empty(body, status, props):
    """Props are empty if the server refuses the request."""
    with serving(respond(body, status=status)) as (client, _):
        assert client.props() == props


@pytest.mark.parametrize(
    "body",
    [
        b"[1]",
        b"not json",
        b'{"default_generation_settings": {"n_ctx": NaN}}',
        b'{"default_generation_settings": {"n_ctx": "many"}}',
        b'{"total_slots": [1]}',
        b'{"total_slots": ' + b"1" * 400 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_wrong_props_are_malformed(body):
    """Props without the form of settings are a failure."""
    with serving(respond(body)) as (client, _):
        assert client.props().kind == "malformed"


def test_text_is_tokenized():
    """The special token is requested only for the beginning of a prompt."""
    with serving(respond(b'{"tokens": [5, 6]}')) as (client, requests):
        assert client.tokenize("text") == [5, 6]
        assert client.tokenize("text", begins=True) == [5, 6]

    assert [body["add_special"] for _, body in requests] == [False, True]


@pytest.mark.parametrize("body", [b"not json", b"{}", b'{"tokens": 5}', b'{"tokens": ["x"]}'])
def test_unexpected_tokens_are_a_value(body):
    """A response of another form is malformed."""
    with serving(respond(body)) as (client, _):
        failure = client.tokenize("text")

    assert (failure.kind, failure.stage) == ("malformed", "prompt")


def test_refused_tokens_have_status_and_body():
    """Status and body of a refused request for tokens are kept."""
    with serving(respond(b"sorry", status=501)) as (client, _):
        failure = client.tokenize("text")

    assert (failure.kind, failure.status, failure.body) == ("http", 501, "sorry")


def repeat(data: bytes, *, pause_s: float):
    """Return an answer that never ends: the same data again and again."""

    def answer(handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        pause = threading.Event()
        with suppress(OSError):  # the client closes the connection, as it should
            for _ in range(int(60 / pause_s) if pause_s else 1_000_000):
                handler.wfile.write(data)
                pause.wait(pause_s) if pause_s else None

    return answer


FLOOD = repeat(b" " * 100_000, pause_s=0.0)
DRIP = repeat(b" ", pause_s=0.1)


@pytest.mark.parametrize(("answer", "kind"), [(FLOOD, "malformed"), (DRIP, "malformed")])
@pytest.mark.parametrize("send", [Client.props, complete, lambda client: client.tokenize("text")])
def test_endless_body_is_malformed(answer, kind, send):
    """A body that never ends or comes byte by byte ends in seconds, in bounded memory."""
    with serving(answer) as (client, _):
        began_s = time.monotonic()
        failure = send(client)
        assert time.monotonic() - began_s < 30

    assert (failure.kind, failure.stage) == (kind, "prompt")


@pytest.mark.parametrize("answer", [FLOOD, DRIP])
def test_endless_health_is_not_ready(answer):
    """A server whose health check never ends is not ready, and the check is short."""
    with serving(answer) as (client, _):
        began_s = time.monotonic()
        assert client.is_ready() is False
        assert time.monotonic() - began_s < 30


def test_endless_error_is_cut():
    """An error's body that never ends is read up to its limit."""

    def answer(handler) -> None:
        handler.send_response(500)
        handler.end_headers()
        with suppress(OSError):
            for _ in range(1_000_000):
                handler.wfile.write(b"x" * 1000)

    with serving(answer) as (client, _):
        failure = complete(client)

    assert (failure.kind, failure.status, len(failure.body)) == ("http", 500, 4000)


@pytest.mark.parametrize(
    "data",
    [b"HTTP/1.1 200 OK\r\n" + b"X" * 200, b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000],
)
def test_headers_that_drip_are_a_value(data):
    """Headers that come byte by byte, or are too long, end the request in seconds."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            pause = threading.Event()
            with connection, suppress(OSError):
                for at in range(0, len(data), 20):
                    connection.sendall(data[at : at + 20])
                    pause.wait(0.05 if len(data) > 1000 else 1.0)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        failure = complete(Client(url, load_dialect("llama_server")), prompt_limit_s=60.0)

    assert failure.kind in {"malformed", "disconnected"}


def test_proxy_is_not_used(monkeypatch):
    """Requests to our own server ignore the user's proxy."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serving(respond(b"{}")) as (client, _):
        assert client.is_ready()


def test_closed_connection_does_not_fail_a_request():
    """No request is sent on a connection that the server closes after offering to keep it."""

    def answer(handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.close_connection = hasattr(handler, "has_answered")
        if handler.close_connection:
            return
        handler.has_answered = True
        body = event({**LAST, "status": "ok"}).removeprefix(b"data: ") * (handler.command == "GET")
        body = body or event(TOKEN) + event(LAST)
        handler.send_response(200)
        handler.send_header("Connection", "keep-alive")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    with serving(answer) as (client, _):
        assert client.is_ready()
        assert client.props()["status"] == "ok"
        assert isinstance(complete(client), Answer)
        assert isinstance(complete(client), Answer)
        assert client.request_json("/models")["status"] == "ok"
