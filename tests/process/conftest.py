"""The fixture by which a test starts processes and must leave none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from process_stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A place for this test's processes; none may be left at its end."""
    place = Stage(tmp_path)
    yield place
    left = place.living()
    for process in left:
        process.kill()
    assert not left
