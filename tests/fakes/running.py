"""Starts a llama-server, fake or real, waits for it, asks it, and ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
from real_llama_cpp import clean_environment, free_port


class RunningServer:
    """One server process, its log in a file; a context manager that leaves nothing behind."""

    def __init__(
        self,
        program: Path,
        model: Path,
        log_path: Path,
        words: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self.port = port or free_port()
        self.log_path = log_path
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [str(program), *words, "-m", str(model), "--port", str(self.port)]
        with log_path.open("wb") as log:
            self.process = subprocess.Popen(
                argv,
                stdout=log,
                stderr=log,
                env={**clean_environment(), **(env or {})},
                start_new_session=True,
            )
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def wait_ready(self, limit_s: float = 30) -> Self:
        """Return when /health says ok; a process that ended meanwhile is an error."""
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log()[-2000:]
            if self.health() == 200:
                return self
            time.sleep(0.02)
        raise AssertionError(self.log()[-2000:])

    def health(self) -> int | None:
        """The status of /health, None while nothing listens."""
        try:
            return self.client.get("/health").status_code
        except httpx.TransportError:
            return None

    def ended(self, limit_s: float = 30) -> int:
        """Wait for the process to end by itself; its status, negative for a signal."""
        return self.process.wait(limit_s)

    def stop(self) -> int:
        """Ask it to end; its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def log(self) -> str:
        """All it has written."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> Any:
        """GET; the JSON."""
        return self.client.get(path).json()

    def post(self, path: str, body: Any) -> httpx.Response:
        """POST; the whole response."""
        return self.client.post(path, json=body)

    def complete(self, prompt: Any, n_predict: int = 16, **more: Any) -> dict[str, Any]:
        """A greedy completion without cache, as measuring asks for it."""
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "seed": 1,
                "cache_prompt": False, "ignore_eos": True, **more}  # fmt: skip
        answer = self.post("/completion", body)
        assert answer.status_code == 200, answer.text
        return answer.json()
