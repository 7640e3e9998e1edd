"""Python processes that write a study, for tests of kills and full disks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
REPOSITORY = TESTS.parent


def python_process(code: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a Python process that can import the tests' modules."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
