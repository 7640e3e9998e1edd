"""The Optuna storage that several machines share, opened from a URL.

A storage that goes away, such as a database that restarts, is waited for: every operation is
repeated until it succeeds, in `WaitingStorage`.
"""

from __future__ import annotations

import abc
import logging
import os
import random
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, RDBStorage, RetryHeartbeatStaleTrialCallback, get_storage
from optuna.storages._heartbeat import BaseHeartbeat
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url
from sqlalchemy.pool import NullPool

from autofit.errors import AutofitError, UsageError
from autofit.fleet.journal import JournalWithHeartbeat
from autofit.runtime.command.redaction import hide_values
from autofit.text_format import duration, one_line

HEARTBEAT_VARIABLE = "AUTOFIT_HEARTBEAT_S"
_HEARTBEAT_S = 30
# A worker that misses this many heartbeats is dead.
_MISSED_HEARTBEATS = 4
MOST_RETRIES = 1

_JOURNAL_ENDINGS = (".journal", ".log")
_FORMS = "postgresql+psycopg://USER@HOST/DATABASE, sqlite:///FILE, or a journal file: FILE.journal"
_EXTRA_HINT = 'install the driver: pip install "llama-autofit[fleet]"'
_OPEN_LIMIT_S = 15.0
_SETUP_LIMIT_S = 300.0
_LOST_RACE = (exc.IntegrityError, exc.ProgrammingError)
_CONNECT_LIMIT_S = 10
_POLL_S = 1.0
_NOTICE_INTERVAL_S = 60.0
# The settings of a connection: a cut network is noticed within half a minute.
_POSTGRESQL_ARGS = {
    "application_name": "autofit",
    "connect_timeout": _CONNECT_LIMIT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_SQLITE_BUSY_S = 60.0
_REFUSED = re.compile(
    r"authentication failed|no password supplied|does not exist|no pg_hba\.conf|permission denied"
    r"|not permitted|unable to open database|readonly database|not a database"
    r"|could not translate|name or service not known|failed to resolve",
    re.IGNORECASE,
)
# Many workers that start at once take all connections for a while.
_IS_FULL = re.compile(r"too many (clients|connections)|remaining connection slots", re.IGNORECASE)


def open_storage(url: str, *, report: Callable[[str], None]) -> WaitingStorage:
    """Open the storage at a URL, and create its tables if it is new.

    `report` gets a notice when the storage goes away and when it is back.

    Raises:
        UsageError: the URL is wrong, its driver is missing, or the storage refuses or does not
            answer.
    """
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    for library in ("sqlalchemy", "alembic"):  # they would print tracebacks of cut connections
        logging.getLogger(library).addHandler(logging.NullHandler())
    name = shown_url(url)
    waiting = Patience(name, _secrets(url), report)
    began_s = time.monotonic()
    while True:
        try:
            return WaitingStorage(_open_once(url), waiting)  # type: ignore[abstract]
        # Two workers can create the tables of a new database at once. The loser tries again.
        except (exc.SQLAlchemyError, StorageInternalError, OSError) as error:
            reason = waiting.describe(error)
            if _REFUSED.search(reason) or isinstance(error, PermissionError):
                raise UsageError(
                    f"the storage {name} cannot be used: {reason}",
                    "correct the URL of --storage; the password can also be in PGPASSWORD or "
                    "~/.pgpass" * name.startswith("postgresql"),
                ) from None
            is_busy = isinstance(error, _LOST_RACE) or bool(_IS_FULL.search(reason))
            limit_s = _SETUP_LIMIT_S if is_busy else _OPEN_LIMIT_S
            if time.monotonic() > began_s + limit_s:
                hint = "start its server, or correct the URL of --storage"
                raise UsageError(f"the storage {name} does not answer: {reason}", hint) from None
            time.sleep(random.uniform(0.1, 0.5))
        except ImportError as error:
            raise UsageError(f"no driver for {name}: {error}", _EXTRA_HINT) from None
        # The tables of another version of Optuna, or a file that is no journal.
        except (RuntimeError, ValueError, LookupError, TypeError, AssertionError) as error:
            reason = one_line(str(error))
            raise UsageError(
                f"cannot read the storage {name}: {reason}", "use a new one"
            ) from None


def shown_url(url: str) -> str:
    """Return the URL of a storage without its password and options.

    Raises:
        UsageError: it is not the URL of a storage.
    """
    if _journal_path(url) is not None:
        return url
    return _parse(url).set(query={}).render_as_string(hide_password=True)


def heartbeat_s() -> int:
    """Return the seconds between two heartbeats of a worker.

    Raises:
        UsageError: the environment variable is no whole number of seconds.
    """
    text = os.environ.get(HEARTBEAT_VARIABLE, str(_HEARTBEAT_S))
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{HEARTBEAT_VARIABLE}='{text}' must be a whole number of seconds")
    return int(text)


def grace_s() -> int:
    """Return the seconds without a heartbeat after which a worker counts as dead."""
    return heartbeat_s() * _MISSED_HEARTBEATS


def _open_once(url: str) -> BaseStorage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        heartbeat: dict[str, Any] = {
            "heartbeat_interval": heartbeat_s(),
            "grace_period": grace_s(),
            "heartbeat_stale_trial_callback": RetryHeartbeatStaleTrialCallback(MOST_RETRIES),
        }
        path = _journal_path(url)
        if path is not None:
            if not path.absolute().parent.is_dir():
                raise UsageError(f"there is no folder {path.parent} for the storage {path}")
            if path.exists() and not path.is_file():
                raise UsageError(f"the storage {path} is not a regular file", "give another file")
            return JournalWithHeartbeat(path, **heartbeat)
        parsed = _parse(url)
        is_sqlite = parsed.get_backend_name() == "sqlite"
        # Connections are closed after each operation: a server with 100 connections serves any
        # number of workers, and no connection outlives a restart of the server.
        engine: dict[str, Any] = {"poolclass": NullPool}
        engine["connect_args"] = {"timeout": _SQLITE_BUSY_S} if is_sqlite else _POSTGRESQL_ARGS
        text = parsed.render_as_string(hide_password=False)
        text = text.replace("{", "{{").replace("}", "}}")  # Optuna fills in a template
        storage = RDBStorage(text, engine_kwargs=engine, **heartbeat)
        if is_sqlite:
            _lock_whole_transactions(storage.engine)
        return get_storage(storage)


def _lock_whole_transactions(engine: sqlalchemy.Engine) -> None:
    """Let SQLite lock the database from the first statement of each transaction.

    Otherwise two workers can both read that a trial is waiting, and both begin it.
    """

    def connect(connection: Any, _record: object) -> None:  # noqa: ANN401 - sqlite3's
        connection.isolation_level = None

    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sqlalchemy.event.listen(engine, "connect", connect)
    sqlalchemy.event.listen(engine, "begin", begin)


def _journal_path(url: str) -> Path | None:
    """Return the path of a journal file, or None if the URL is one of a database."""
    return Path(url) if "://" not in url and url.endswith(_JOURNAL_ENDINGS) else None


def _parse(url: str) -> URL:
    try:
        url.encode()
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise UsageError("--storage is not the URL of a storage", f"use {_FORMS}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("postgresql+psycopg", "sqlite"):
        raise UsageError(f"'{parsed.drivername}' is not a storage for a fleet", f"use {_FORMS}")
    if not parsed.database or parsed.database == ":memory:":
        missing = "the file" if parsed.drivername == "sqlite" else "the database"
        raise UsageError(f"the URL of --storage must name {missing}", f"use {_FORMS}")
    if parsed.drivername != "sqlite" and not _has_clear_password(url):
        raise UsageError(
            "the user or password in the URL of --storage has a character that must be escaped",
            "write / as %2F, ? as %3F, # as %23 and @ as %40, or set PGPASSWORD instead",
        )
    return parsed


def _has_clear_password(url: str) -> bool:
    """Return whether it is clear where the password of a URL ends."""
    place = url.partition("://")[2]
    user, at, _ = place.partition("/")[0].rpartition("@")
    return place.count("@") == len(at) and not re.search(r"[?#\s'\"]", user)


def _secrets(url: str) -> list[str]:
    """Return the password of a URL as it may occur in messages."""
    if _journal_path(url) is not None:
        return []
    password = str(_parse(url).password or "")
    return [text for text in {password, url.partition("://")[2].rpartition("@")[0]} if text]


class Patience:
    """The waits for one storage, with a notice for each, and then one every minute."""

    def __init__(
        self,
        name: str,
        secrets: list[str],
        report: Callable[[str], None],
    ) -> None:
        self.name = name
        self.answered_since_s = time.monotonic()
        self._secrets = secrets
        self._report = report

    def describe(self, error: BaseException) -> str:
        """Return the reason of an error in one line, without the password."""
        cause = _cause(error)
        lines = str(getattr(cause, "orig", None) or cause).strip().splitlines()
        return hide_values(one_line(lines[0] if lines else type(cause).__name__), self._secrets)

    def call(self, operation: Callable[..., Any], *args: Any, **named: Any) -> Any:  # noqa: ANN401 - any operation
        """Call an operation of the storage until the storage answers."""
        began_s = time.monotonic()
        next_notice_s = 0.0
        while True:
            try:
                result = operation(*args, **named)
            except Exception as error:
                if not is_away(error):
                    raise
                waited_s = time.monotonic() - began_s
                if waited_s >= next_notice_s:
                    since = f" for {duration(waited_s)}" if next_notice_s else ""
                    reason = self.describe(error)
                    self._report(
                        f"waiting{since}: the storage {self.name} is away: {reason} (Ctrl-C stops)"
                    )
                    next_notice_s = waited_s + _NOTICE_INTERVAL_S
            else:
                if next_notice_s:
                    waited = duration(time.monotonic() - began_s)
                    self._report(f"the storage {self.name} is back after {waited}")
                    self.answered_since_s = time.monotonic()
                return result
            time.sleep(random.uniform(0.5, 1.5) * _POLL_S)


def is_away(error: BaseException) -> bool:
    """Return whether an error says that the storage does not answer now, and may answer later."""
    cause = _cause(error)
    if isinstance(cause, AutofitError):
        return False
    is_cut = isinstance(cause, exc.DBAPIError) and cause.connection_invalidated
    # Optuna repeats a query of trials in a transaction whose connection was cut.
    is_cut = is_cut or isinstance(cause, exc.PendingRollbackError)
    kinds = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError, OSError)
    return is_cut or isinstance(cause, kinds)


def _cause(error: BaseException) -> BaseException:
    return (error.__cause__ or error) if isinstance(error, StorageInternalError) else error


def _with_waits(kind: type[WaitingStorage]) -> type[WaitingStorage]:
    """Give a class each operation of Optuna's storages, as one that waits."""

    def waiting(name: str) -> Callable[..., Any]:
        def method(self: WaitingStorage, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - any operation
            return self.waits.call(getattr(self.inner, name), *args, **named)

        return method

    for interface in (BaseStorage, BaseHeartbeat):
        for name, value in vars(interface).items():
            if callable(value) and not name.startswith("__"):
                setattr(kind, name, waiting(name))
    return abc.update_abstractmethods(kind)


@_with_waits
class WaitingStorage(BaseStorage, BaseHeartbeat):
    """A storage whose operations wait while it is away.

    Attributes:
        inner: the storage itself, whose operations fail while it is away.
        waits: the waits so far.
    """

    def __init__(self, inner: BaseStorage, waits: Patience) -> None:
        self.inner = inner
        self.waits = waits
