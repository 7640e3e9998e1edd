"""One running server: a free port, the process, and a client once it is ready."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autofit.process import ManagedProcess, Ready, scrubbed_environment
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.server.client import Client
from autofit.trial.candidate import LaunchPlan

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """A started server; it is ready within `limit_s`, or not at all."""

    process: ManagedProcess
    client: Client
    limit_s: float

    def wait_ready(self, check_stop: Callable[[], None]) -> Ready:
        """Wait until it answers, has exited, or its limit has passed."""

        def is_ready() -> bool:
            check_stop()
            return self.client.is_ready()

        return self.process.wait_ready(is_ready, deadline_s=self.limit_s)


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def started(plan: LaunchPlan, dialect: Dialect, log_path: Path) -> Iterator[Server]:
    """Start a plan's server; it is stopped when the block is left, whatever ends it.

    Raises:
        UsageError: there is no such program, or it cannot run here.
        AutofitError: the log cannot be written, or the system refused to start it.
    """
    port = free_port()
    # The client first: its imports take their time, and a load should not be timed with them.
    with (
        Client(f"http://{HOST}:{port}", dialect) as client,
        ManagedProcess.start(
            [word.replace("{port}", str(port)) for word in plan.argv],
            env=scrubbed_environment(plan.env, also_remove=dialect.variables),
            log_path=log_path,
            grace_s=plan.limits.stop_s,
        ) as process,
    ):
        yield Server(process, client, plan.limits.load_s)
