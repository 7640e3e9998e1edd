"""Prints how fast a large model's header is read, and how fast a model is written.

Run it as `python benchmarks/bench_header.py [FOLDER]`; the folder gets a model of 2 GB
for a moment. A header of 152,000 tokens should be read in 0.5 s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from autofit.model.gguf.header import read_header
from autofit.model.sizes.inventory import read_inventory
from autofit.model.synth.random_model import SynthSpec, write_model

LARGE = SynthSpec(
    layers=94,
    experts=128,
    used=8,
    embd=4096,
    ff=1536,
    heads=64,
    kv_heads=4,
    head_dim=128,
    vocab=152_000,
    ctx=40960,
    header_only=True,
)
WRITTEN = SynthSpec(layers=4, experts=256, used=8, embd=2048, ff=512, heads=16, head_dim=128)


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        path = Path(folder) / "large.gguf"
        write_model(LARGE, path)
        for call in (read_header, read_inventory):
            times = [seconds(lambda call=call: call(path)) for _ in range(5)]
            print(
                f"{call.__name__}, 152,000 tokens, 94 layers: {median(times):.3f} s (median of 5)"
            )
        path.unlink()
        for type_ in ("f16", "q8_0", "q4_k"):
            spec = replace(WRITTEN, type=type_)
            taken = seconds(lambda spec=spec: write_model(spec, path))
            size = path.stat().st_size / 1e9
            print(f"synth {type_}: {size:.2f} GB in {taken:.2f} s, {size / taken:.2f} GB/s")
            path.unlink()


if __name__ == "__main__":
    main()
