"""Python processes in which a study is written, to be killed or starved."""

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
    """Start a Python process in which the tests' modules can be imported."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
