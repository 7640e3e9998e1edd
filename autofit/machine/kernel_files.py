"""Small text files of the Linux kernel below /proc and /sys."""

from __future__ import annotations

from pathlib import Path

from autofit.units import MIB

# The digits of 64 bits.
_MOST_DIGITS = 20


def read_text(path: Path) -> str:
    """Return the stripped text of a file, or an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:  # missing, not permitted, or a sensor of a sleeping device
        return ""


def read_number(path: Path) -> int | None:
    """Return the only number in a file, or None if there is none."""
    return to_number(read_text(path))


def to_number(text: str) -> int | None:
    """Return the number that a text consists of, or None if it is something else."""
    return int(text) if len(text) <= _MOST_DIGITS and text.isdecimal() else None


def read_mib(path: Path) -> float | None:
    """Return a file's number of bytes in MiB, or None if there is none."""
    number = read_number(path)
    return None if number is None else number / MIB


def read_fields(text: str, separator: str) -> dict[str, str]:
    """Return the values by name from lines that have a name, a separator and a value."""
    parts = (line.partition(separator) for line in text.splitlines())
    return {name: value.strip() for name, found, value in parts if found}
