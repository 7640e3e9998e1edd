"""The setup of a run: Ctrl-C ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from study.study_sample import header

from autofit.cli.run_setup import StopRequest
from autofit.errors import Interrupted
from autofit.study.study_folder import Study


@pytest.fixture
def study(tmp_path) -> Iterator[Study]:
    """A study that is being written."""
    with Study.create(tmp_path / "study", header(), needed_mib=0) as made:
        yield made


@pytest.fixture
def sigint() -> Iterator[None]:
    """Restore the handling of SIGINT after a test that changes it."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_the_first_ctrl_c_asks_and_the_second_stops(study):
    """Both times a hint says how to resume, and SIGINT is restored afterwards."""
    stop, notices = StopRequest(), []
    before = signal.getsignal(signal.SIGINT)

    with stop.listen(study, notices.append):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught, stop.listen(study, notices.append):
        signal.raise_signal(signal.SIGINT)

    assert stop.is_made()
    assert len(notices) == 1
    assert "--resume" in notices[0].text
    assert "--resume" in caught.value.hint
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("sigint")
def test_an_ignored_sigint_stays_ignored(study):
    """A command that a script started in the background does not react to Ctrl-C."""
    stop, notices = StopRequest(), []
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    with stop.listen(study, notices.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    assert not stop.is_made()
    assert notices == []
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
