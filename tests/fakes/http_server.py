"""A small HTTP server: requests in, JSON or event streams out, one thread a connection.

The standard library's takes twice as long to import as the whole fake needs to start.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found",
            500: "Internal Server Error", 501: "Not Implemented",
            503: "Service Unavailable"}  # fmt: skip


class GoneError(Exception):
    """The other side went away, or is to be left alone."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request as it came."""

    method: str
    path: str
    body: bytes


class Reply:
    """The answer to one request; exactly one of its methods begins it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.keeps_open = True

    def _send(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise GoneError from error

    def _head(self, status: int, *fields: str) -> bytes:
        self.keeps_open = status < 400
        lines = [
            f"HTTP/1.1 {status} {_REASONS[status]}",
            "Server: llama.cpp",
            "Access-Control-Allow-Origin: ",
            *fields,
            "Keep-Alive: timeout=5, max=100" if self.keeps_open else "Connection: close",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def send(self, status: int, body: str, kind: str = "application/json") -> None:
        """A whole answer."""
        data = body.encode()
        head = self._head(
            status, f"Content-Type: {kind}; charset=utf-8", f"Content-Length: {len(data)}"
        )
        self._send(head + data)

    def json(self, value: Any, status: int = 200) -> None:
        """A whole answer in JSON."""
        self.send(status, dump(value))

    def start_events(self) -> None:
        """Begin an event stream."""
        self._send(
            self._head(
                200,
                "X-Accel-Buffering: no",
                "Content-Type: text/event-stream",
                "Transfer-Encoding: chunked",
            )
        )

    def event(self, value: Any) -> None:
        """One event of a stream."""
        data = f"data: {dump(value)}\n\n".encode()
        self._send(b"%x\r\n%s\r\n" % (len(data), data))

    def end_events(self) -> None:
        """End an event stream."""
        self._send(b"0\r\n\r\n")

    def repeat(self, data: bytes, pause_s: float) -> None:
        """Send the same data until the other side goes away."""
        self._send(
            self._head(200, "Content-Type: application/json", "Content-Length: 99999999999")
        )
        while True:
            self._send(data)
            time.sleep(pause_s)

    def drop(self) -> None:
        """Break the connection off, as a crash would."""
        self.keeps_open = False
        self._connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
        )
        self._connection.close()
        raise GoneError


def dump(value: Any) -> str:
    """JSON as the runtime writes it: no spaces, characters as they are."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _read(connection: socket.socket, pending: bytes) -> tuple[HttpRequest | None, bytes]:
    while b"\r\n\r\n" not in pending:
        more = connection.recv(65536)
        if not more:
            return None, b""
        pending += more
    head, _, rest = pending.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    method, path, _ = lines[0].split(" ", 2)
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines[1:])
    }
    length = int(fields.get("content-length", "0"))
    if fields.get("expect", "").lower() == "100-continue":
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    parts = [rest]
    have = len(rest)
    while have < length:
        more = connection.recv(1 << 20)
        if not more:
            return None, b""
        parts.append(more)
        have += len(more)
    whole = b"".join(parts)
    return HttpRequest(method, path, whole[:length]), whole[length:]


Handler = Callable[[HttpRequest, Reply], None]


class HttpServer:
    """Listens on one address; `handler` may be replaced while it runs."""

    def __init__(self, host: str, port: int, handler: Handler) -> None:
        """Bind and listen.

        Raises:
            OSError: the address is in use.
        """
        self.handler = handler
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, port))
        self._socket.listen(64)
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        pending = b""
        try:
            while True:
                request, pending = _read(connection, pending)
                if request is None:
                    break
                reply = Reply(connection)
                self.handler(request, reply)
                if not reply.keeps_open:
                    break
        except (GoneError, OSError):
            pass
        finally:
            connection.close()
