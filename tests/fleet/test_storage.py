"""The storage of a fleet: its URLs, its heartbeats, and waits while it is away."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
import warnings

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState, create_trial
from postgres_server import PASSWORD
from process_stage import wait_for

from autofit.errors import UsageError
from autofit.fleet.storage import HEARTBEAT_VARIABLE, open_storage, shown_url
from autofit.runtime.command.redaction import redact_command

pytestmark = pytest.mark.timeout(120)


def _open(url, notices=None, **options):
    return open_storage(url, report=(notices if notices is not None else []).append, **options)


def test_trial_of_a_dead_worker_is_queued_once_more(new_url, monkeypatch):
    """A trial without heartbeats fails, and waits again once; one with heartbeats goes on."""
    monkeypatch.setenv(HEARTBEAT_VARIABLE, "1")
    storage = _open(new_url())
    study = optuna.create_study(study_name="night", storage=storage)
    for entry in ("alive", "dies"):
        study.add_trial(create_trial(state=TrialState.WAITING, user_attrs={"entry": entry}))
    alive, dies = (trial._trial_id for trial in study.trials)
    for waiting in (1, 0):
        for trial_id in (alive, dies):
            storage.record_heartbeat(trial_id)
            storage.set_trial_state_values(trial_id, TrialState.RUNNING)

        def is_dead(trial_id=dies):
            storage.record_heartbeat(alive)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                optuna.storages.fail_stale_trials(study)
            return storage.get_trial(trial_id).state == TrialState.FAIL

        wait_for(is_dead, 30)
        again = study.get_trials(states=[TrialState.WAITING])
        assert [one.user_attrs["entry"] for one in again] == ["dies"] * waiting
        dies = again[0]._trial_id if again else dies
    assert storage.get_trial(alive).state == TrialState.RUNNING


def test_storage_that_restarts_is_waited_for(postgres, new_pg_study):
    """An operation during a restart of the server succeeds later, with two notices."""
    study, notices = new_pg_study
    postgres.stop(signal.SIGQUIT)
    done = threading.Event()
    worker = threading.Thread(target=lambda: (study.set_user_attr("a", 1), done.set()))
    worker.start()
    try:
        wait_for(lambda: notices, 30)
    finally:
        postgres.start()
    assert done.wait(30)
    worker.join()
    assert study.user_attrs == {"a": 1}
    assert len(notices) == 2
    assert PASSWORD not in "".join(notices)


def test_cut_connections_lose_nothing(postgres, new_pg_study):
    """Operations succeed although all connections are cut again and again."""
    study, _ = new_pg_study
    ends = threading.Event()

    def cut():
        while not ends.wait(0.05):
            postgres.cut_connections()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for number in range(8):
            study.set_user_attr(f"a{number}", number)
    finally:
        ends.set()
        cutter.join()
    assert len(study.user_attrs) == 8


@pytest.mark.parametrize("table", ["trials", "trial_params"])
def test_query_that_is_cut_in_its_middle_is_repeated(postgres, new_pg_study, table):
    """All trials are read although the connection is cut between two statements of a query."""
    study, _ = new_pg_study
    for _ in range(2):
        study.add_trial(create_trial(state=TrialState.RUNNING))
    cuts = []

    def cut(_connection, _cursor, statement, *_):
        if f"FROM {table}" in statement and not cuts:
            cuts.append(statement)
            postgres.cut_connections()

    engine = study._storage.inner._backend.engine
    sqlalchemy.event.listen(engine, "before_cursor_execute", cut)
    assert len(study.get_trials()) == 2
    assert cuts


def test_stop_ends_a_wait(postgres):
    """Ctrl-C ends the wait for a storage that is away."""

    def stop(text: str) -> None:
        raise KeyboardInterrupt(text)

    storage = open_storage(postgres.new_url(), report=stop)
    postgres.stop()
    try:
        with pytest.raises(KeyboardInterrupt, match="is away"):
            storage.get_all_studies()
    finally:
        postgres.start()


@pytest.fixture
def new_pg_study(postgres):
    """A study in a new database, and the notices about its storage."""
    notices: list[str] = []
    storage = _open(postgres.new_url(), notices)
    return optuna.create_study(study_name="night", storage=storage), notices


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:pw@h/db",
        "redis://h/0",
        "http://u:pw@h/db",
        "postgresql://u:pw@h",
        "postgresql+psycopg://u:p/w@h/db",
        "postgresql+psycopg://u:p#w@h/db",
        "postgresql+psycopg://u:p@w@h/db",
        "sqlite://",
        "night",
        "",
        "/no/such/folder/night.journal",
        "sqlite:////no/such/folder/night.db",
        "sqlite:///\udcff.db",
    ],
)
def test_wrong_url_is_refused(url):
    """A URL that is no storage is a usage error whose text has no password."""
    with pytest.raises(UsageError) as caught:
        _open(url)
    shown = "".join(traceback.format_exception(caught.value))
    message = f"{caught.value.message} {caught.value.hint}"
    assert "pw" not in message
    assert "p/w" not in message
    assert "Traceback" in shown


@pytest.mark.parametrize("text", [None, "no\njournal\n", "[]\n", "null\n", '{"op_code": 99}\n'])
def test_a_file_that_is_no_journal_is_refused(text, tmp_path):
    """A damaged journal is a usage error, and a pipe in its place is not waited for."""
    path = tmp_path / "night.journal"
    os.mkfifo(path) if text is None else path.write_text(text)
    with pytest.raises(UsageError) as caught:
        _open(str(path))
    assert str(path) in caught.value.message


def test_wrong_password_is_refused(postgres):
    """A wrong password and a missing database are usage errors without the password."""
    for url in (postgres.url("postgres", "secret-word"), postgres.url("nowhere")):
        with pytest.raises(UsageError) as caught:
            _open(url)
        shown = f"{caught.value.message} {caught.value.hint}"
        assert "secret-word" not in shown
        assert PASSWORD not in shown


def test_unreachable_server_is_refused(monkeypatch):
    """A server that does not answer is a usage error after some seconds."""
    monkeypatch.setattr("autofit.fleet.storage._OPEN_LIMIT_S", 0.5)
    with pytest.raises(UsageError, match="does not answer"):
        _open("postgresql+psycopg://u:pw@127.0.0.1:1/db")


def test_missing_driver_names_the_extra(monkeypatch):
    """Without psycopg the hint names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError) as caught:
        _open("postgresql+psycopg://u:pw@127.0.0.1:1/db")
    assert "llama-autofit[fleet]" in caught.value.hint


def test_file_that_is_no_storage_is_refused(tmp_path):
    """A file with other content is neither a journal nor a database, and stays as it is."""
    for name, form in (("server.log", "{}"), ("data.db", "sqlite:///{}")):
        path = tmp_path / name
        path.write_text("load_tensors: offloaded 12 layers\nmain: server is listening\n" * 100)
        before = path.read_bytes()
        with pytest.raises(UsageError):
            _open(form.format(path))
        assert path.read_bytes() == before


def test_password_is_not_shown():
    """Neither the shown URL nor the recorded command has the password of a storage."""
    url = "postgresql://user:open%2Fsesame@host:5432/fleet?sslmode=require&password=other"
    assert shown_url(url) == "postgresql+psycopg://user:***@host:5432/fleet"
    for words in (["--storage", url], [f"--storage={url}"]):
        shown = " ".join(redact_command(["sweep", "a.yaml", *words]))
        assert "sesame" not in shown
        assert "other" not in shown


def test_url_keeps_special_characters(postgres):
    """Braces in a password are no template."""
    postgres.query("CREATE USER odd SUPERUSER PASSWORD '{x}%y'")
    url = f"postgresql+psycopg://odd:%7Bx%7D%25y@127.0.0.1:{postgres.port}/postgres"
    assert _open(url).get_all_studies() == []


def test_heartbeat_must_be_seconds(monkeypatch, tmp_path):
    """A heartbeat that is no number of seconds is a usage error."""
    monkeypatch.setenv(HEARTBEAT_VARIABLE, "soon")
    with pytest.raises(UsageError):
        _open(f"sqlite:///{tmp_path / 'a.db'}")
