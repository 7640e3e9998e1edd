"""The command line, run in the process of the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from autofit.cli.main import _run


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> Callable[..., Ended]:
    """Return a function that runs `autofit ARGUMENTS...` with folders of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AUTOFIT_KNOWLEDGE", raising=False)
    monkeypatch.setenv("AUTOFIT_LOCK_DIR", str(tmp_path / "lock"))

    def run(*words: object) -> Ended:
        capsys.readouterr()
        code = _run([str(word) for word in words])
        written = capsys.readouterr()
        assert "Traceback" not in written.err
        return Ended(code, written.out, written.err)

    return run
