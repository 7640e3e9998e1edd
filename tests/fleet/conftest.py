"""The storages of a fleet."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from postgres_server import postgres  # noqa: F401 - a fixture


@pytest.fixture(params=["sqlite", "journal", "postgresql"])
def new_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Return a function that returns the URL of a new storage of each kind."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").new_url
    form = {"sqlite": "sqlite:///{}.db", "journal": "{}.journal"}[request.param]
    return lambda: form.format(tmp_path / f"fleet-{os.urandom(4).hex()}")
