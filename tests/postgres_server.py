"""A real PostgreSQL server in a temporary folder, from Debian's package."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import psutil
import pytest

from autofit.process.managed_process import ManagedProcess

PASSWORD = "open/sesame"  # noqa: S105 - of a database that lives as long as the tests
_PREFIX = "autofit-postgres-"
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "listen_addresses": "127.0.0.1",
}


def find_programs() -> Path | None:
    """Return the folder of initdb and postgres, or None if they are not installed."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((one for one in folders if (one / "postgres").exists()), None)


class PostgresServer:
    """A server on a free port of 127.0.0.1, which ends with the tests that started it.

    PostgreSQL refuses to run as root, and then runs as another user.
    """

    def __init__(self, programs: Path) -> None:
        _remove_abandoned()
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))
        (self.folder / "owner").write_text(str(os.getpid()))
        self._as_user = _other_user(self.folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: ManagedProcess | None = None
        self._database_count = 0
        password = self.folder / "password"
        password.write_text(PASSWORD)
        self._run(
            *("initdb", "--no-sync", "--no-locale", "--encoding=UTF8", "--username=autofit"),
            *("--auth=scram-sha-256", f"--pwfile={password}", str(self.folder / "data")),
        )
        self.start()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        settings = {**_SETTINGS, "port": self.port, "unix_socket_directories": self.folder}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self._process = ManagedProcess.start(
            [
                *self._as_user,
                str(self.programs / "postgres"),
                "-D",
                f"{self.folder}/data",
                *options,
            ],
            env=dict(os.environ),
            log_path=self.folder / "server.log",
        )
        state = self._process.wait_ready(self._is_ready, deadline_s=60)
        assert state == "ready", self._process.tail()

    def stop(self, number: int = signal.SIGINT) -> None:
        """Stop the server at once and cut its connections; SIGQUIT is as after a crash."""
        if self._process is not None:
            os.kill(self._process.pid, number)
            self._process.wait(30)
            self._process.stop()
            self._process = None

    def restart(self, number: int = signal.SIGINT) -> None:
        """Stop the server, and start it again with the same data."""
        self.stop(number)
        self.start()

    def cut_connections(self) -> None:
        """End every connection of a client, as a network that fails."""
        self.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )

    def new_url(self) -> str:
        """Return the URL of a new and empty database."""
        self._database_count += 1
        name = f"fleet{self._database_count}"
        self.query(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str, password: str = PASSWORD) -> str:
        """Return the URL of a database."""
        shown = password.replace("/", "%2F")
        return f"postgresql+psycopg://autofit:{shown}@127.0.0.1:{self.port}/{database}"

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Return the rows of a statement, which is executed outside of a transaction."""
        import psycopg  # noqa: PLC0415 - most tests need no server

        with psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user="autofit",
            password=PASSWORD,
            dbname="postgres",
            autocommit=True,
        ) as connection:
            cursor = connection.execute(sql)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_ready(self) -> bool:
        ready = str(self.programs / "pg_isready")
        words = [ready, "-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres"]
        return subprocess.run(words, check=False, timeout=10).returncode == 0

    def _run(self, program: str, *words: str) -> None:
        argv = [*self._as_user, str(self.programs / program), *words]
        done = subprocess.run(
            argv, check=False, capture_output=True, text=True, timeout=60, cwd=self.folder
        )
        assert done.returncode == 0, done.stderr


def _other_user(folder: Path) -> list[str]:
    """Return the words that run a program as the folder's new owner, if this user is root."""
    if os.geteuid() != 0:
        return []
    for name in ("postgres", "daemon"):
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(folder, user.pw_uid, user.pw_gid)
        ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}")
        return ["setpriv", *ids, "--clear-groups"]
    raise AssertionError("there is no user for PostgreSQL")


def _remove_abandoned() -> None:
    """Remove the folders of servers whose tests were killed."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*"):
        try:
            is_alive = psutil.pid_exists(int((folder / "owner").read_text()))
        except (OSError, ValueError):
            continue
        if not is_alive:
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server for all tests of this process."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL: `apt-get install postgresql` installs it")
    with PostgresServer(programs) as server:
        yield server
