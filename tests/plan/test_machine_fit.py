"""What a preset needs beside what is free here, in words."""

from __future__ import annotations

import pytest

from autofit.plan.machine_fit import Need, memory_notes, memory_reasons


@pytest.mark.parametrize(
    ("need", "told"),
    [
        (Need("CUDA0", 900.0, 1000.0, peak_mib=1500.0), "1,500 MiB were in use, those of other"),
        (Need("CUDA0", 900.0, 1000.0, 1500.0, taken_mib=1100.0), "1,100 MiB were the server's"),
        (Need("CUDA0", 900.0, 1000.0, 1500.0, taken_mib=950.0), None),
        (Need("CUDA0", 900.0, 1000.0), None),
        (Need("CUDA0", 1100.0, 1000.0, 1500.0, taken_mib=1100.0), None),
    ],
)
def test_a_device_is_close_by_what_the_server_itself_took(need, told):
    """Where the preset tells that; what others held then is not counted against it."""
    notes = list(memory_notes([need]))

    assert len(notes) == (told is not None)
    assert told is None or told in notes[0]
    assert len(list(memory_reasons([need]))) == (not need.fits)
