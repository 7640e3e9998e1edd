"""How Ctrl-C ends a run that measures."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from study.study_sample import header

from autofit.cli.stopping import Stopping
from autofit.errors import Interrupted
from autofit.study.study_folder import Study


@pytest.fixture
def study(tmp_path) -> Iterator[Study]:
    """A study that is being written."""
    with Study.create(tmp_path / "study", header(), needed_mib=0) as made:
        yield made


@pytest.fixture
def sigint() -> Iterator[None]:
    """Whatever a test makes of SIGINT, it is as before afterwards."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
def test_the_first_ctrl_c_asks_and_the_second_stops(study):
    """It is told how to go on both times, and afterwards SIGINT is what it was."""
    stopping, told = Stopping(), []
    before = signal.getsignal(signal.SIGINT)

    with stopping.watched(study, told.append):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught, stopping.watched(study, told.append):
        signal.raise_signal(signal.SIGINT)

    assert stopping.is_asked()
    assert "Ctrl-C again stops at once" in told[0].text
    assert "--resume" in caught.value.hint
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.usefixtures("sigint")
def test_an_ignored_sigint_stays_ignored(study):
    """What a shell started in the background of a script goes on, whatever its terminal says."""
    stopping, told = Stopping(), []
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    with stopping.watched(study, told.append):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    assert not stopping.is_asked()
    assert told == []
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
