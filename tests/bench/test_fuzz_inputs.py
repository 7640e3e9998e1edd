"""A short run of the fuzzer for everything that autofit reads from outside."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fuzz_inputs import fuzz


@pytest.mark.parametrize("seed", [1, 2])
def test_no_mutated_input_breaks_its_reader(seed, tmp_path, monkeypatch):
    """Damaged inputs of every kind are refused with a message, quickly and in little memory."""
    monkeypatch.chdir(tmp_path)
    finds, counts = fuzz(seconds=20, seed=seed, inputs=108)

    assert not finds
    assert len(counts) == 18
