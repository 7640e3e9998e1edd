"""Estimates and truths of memory are remembered between studies."""

from __future__ import annotations

from pathlib import Path

from autofit.memory.store import MemoryKey, MemoryRecord, MemoryStore

KEY = MemoryKey("0011", "11434", "CUDA0")


def test_pairs_come_back_by_key(tmp_path):
    """A pair is found under its own model, build and device, by another process as well."""
    path = tmp_path / "new" / "memory.jsonl"
    assert MemoryStore(path).remember(KEY, 1000.0, 1100.0)
    assert MemoryStore(path).remember(MemoryKey("0011", "11434", "CUDA1"), 5.0, 6.0)
    assert MemoryStore(path).remember(KEY, 2000.0, 2150.0)

    records = MemoryStore(path).recall(KEY)

    assert records == (MemoryRecord(1000.0, 1100.0), MemoryRecord(2000.0, 2150.0))
    assert MemoryStore(path).recall(MemoryKey("0011", "11500", "CUDA0")) == ()


def test_torn_and_foreign_lines_are_passed_over(tmp_path):
    """A file damaged in places still gives what can be read, and takes more."""
    path = tmp_path / "memory.jsonl"
    store = MemoryStore(path)
    store.remember(KEY, 1.0, 2.0)
    with path.open("ab") as file:
        file.write(b'[1]\n{"device": "CUDA0"}\n{"model_digest": ["x"], "build": 1}\n\xff{"mod')
    store.remember(KEY, 3.0, 4.0)

    assert store.recall(KEY) == (MemoryRecord(1.0, 2.0), MemoryRecord(3.0, 4.0))


def test_file_stays_small_and_keeps_the_latest(tmp_path):
    """Beyond a megabyte only the latest pairs of each key are kept."""
    path = tmp_path / "memory.jsonl"
    store = MemoryStore(path)
    store.remember(KEY, 0.5, 0.5)
    line = path.read_bytes().replace(b"0.5", b"1.5")
    path.write_bytes(line * ((1 << 20) // len(line)))
    store.remember(KEY, 7.0, 8.0)
    store.remember(KEY, 8.0, 9.0)

    assert path.stat().st_size < 100_000
    assert store.recall(KEY)[-2:] == (MemoryRecord(7.0, 8.0), MemoryRecord(8.0, 9.0))
    assert len(store.recall(KEY)) == 50


def test_unwritable_place_forgets_quietly():
    """Where nothing can be kept, nothing is known and nothing fails."""
    store = MemoryStore(Path("/sys/kernel/autofit/memory.jsonl"))

    assert not store.remember(KEY, 1.0, 2.0)
    assert store.recall(KEY) == ()
