"""Runs the command line inside the test's own process, as `autofit` would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from autofit.cli.main import _run


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> Callable[..., Ended]:
    """Runs `autofit WORDS...` with folders of its own; errors come back as exit codes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AUTOFIT_LOCK_DIR", str(tmp_path / "lock"))

    def run(*words: object) -> Ended:
        capsys.readouterr()
        code = _run([str(word) for word in words])
        told = capsys.readouterr()
        assert "Traceback" not in told.err
        return Ended(code, told.out, told.err)

    return run
