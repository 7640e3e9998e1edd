"""The small model of `autofit demo`, kept in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from autofit.errors import AutofitError
from autofit.model.gguf.header import read_header
from autofit.model.synth.random_model import SynthSpec, write_model

# Small enough for two cores that other programs use too: a request takes some tenths of a second.
_SPEC = SynthSpec(
    layers=6,
    experts=16,
    used=2,
    embd=384,
    ff=128,
    heads=6,
    kv_heads=2,
    head_dim=64,
    vocab=2048,
    ctx=4096,
    type="q4_0",
    embd_type="q8_0",
    seed=1,
)


def demo_model_path() -> Path:
    """Return the path of the model, which may not exist yet."""
    return platformdirs.user_cache_path("autofit") / "autofit-demo-1.gguf"


def make_demo_model() -> Path:
    """Write the model unless the cache already has all of it, and return its path."""
    path = demo_model_path()
    try:
        read_header(path)
    except AutofitError:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"autofit-demo-1.{os.getpid()}.gguf")
        write_model(_SPEC, part)
        part.replace(path)
    return path
