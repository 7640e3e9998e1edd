"""The memory that a preset needs is compared with the free memory."""

from __future__ import annotations

import pytest

from autofit.presets.verify.machine_check import MemoryNeed, memory_notes, memory_reasons


@pytest.mark.parametrize(
    ("need", "used_by"),
    [
        (MemoryNeed("CUDA0", 900.0, 1000.0, peak_mib=1500.0), "programs used 1,500 MiB"),
        (
            MemoryNeed("CUDA0", 900.0, 1000.0, 1500.0, taken_mib=1100.0),
            "the server used 1,100 MiB",
        ),
        (MemoryNeed("CUDA0", 900.0, 1000.0, 1500.0, taken_mib=950.0), None),
        (MemoryNeed("CUDA0", 900.0, 1000.0), None),
        (MemoryNeed("CUDA0", 900.0, 1000.0, 1500.0, source="measured"), None),
        (MemoryNeed("CUDA0", 1100.0, 1000.0, 1500.0, taken_mib=1100.0), None),
    ],
)
def test_note_compares_free_memory_with_the_use_of_the_server(need, used_by):
    """The use of other programs counts only where the preset does not know the server's."""
    notes = list(memory_notes([need]))

    assert len(notes) == (used_by is not None)
    assert used_by is None or used_by in notes[0]
    assert len(list(memory_reasons([need]))) == (not need.fits)
