"""A fixture for tests that start processes and must leave none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from process_stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Yield a folder and environment for processes; none may be left at the end."""
    place = Stage(tmp_path)
    yield place
    left = place.living()
    for process in left:
        process.kill()
    assert not left
