"""Exit statuses of every system in one form, in which a negative number is a signal.

A shell reports 128 + signal, Python -signal, and Windows an NTSTATUS such as 0xC0000005.
"""

from __future__ import annotations

import re
import signal
from typing import Literal

from autofit.errors import UsageError

ExitCause = Literal["killed", "memory", "illegal_instruction", "library", "crash"]

# Windows, https://learn.microsoft.com/openspecs/windows_protocols/ms-erref (NTSTATUS values).
_NTSTATUS: dict[int, tuple[str, ExitCause]] = {
    0xC0000005: ("access violation", "crash"),
    0xC0000017: ("not enough memory", "memory"),
    0xC000001D: ("illegal instruction", "illegal_instruction"),
    0xC000007B: ("a library of another kind", "library"),
    0xC0000094: ("integer division by zero", "crash"),
    0xC00000FD: ("stack overflow", "crash"),
    0xC000012D: ("commitment limit, the page file is full", "memory"),
    0xC0000135: ("a library is missing", "library"),
    0xC0000138: ("a library lacks a function", "library"),
    0xC0000139: ("a library lacks a function", "library"),
    0xC000013A: ("stopped with Ctrl-C", "killed"),
    0xC0000142: ("a library could not start", "library"),
    0xC0000374: ("heap corruption", "crash"),
    0xC0000409: ("abort", "crash"),
}
_WINDOWS_FAILURE = 0x80000000
# Signals by which people and supervisors stop a process.
_STOP_SIGNALS = {"SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"}
_SHELL_SIGNAL = 128


def parse_exit_status(text: str) -> int:
    """Return the status of `137`, `-9`, `SIGKILL`, `KILL` or `0xC0000005`.

    Raises:
        UsageError: it is none of these.
    """
    word = text.strip()
    if re.fullmatch(r"[+-]?\d+", word):
        return normalize_status(int(word))
    if re.fullmatch(r"0[xX][0-9a-fA-F]+", word):
        return normalize_status(int(word, 16))
    name = word.upper() if word.upper().startswith("SIG") else f"SIG{word.upper()}"
    try:
        return -int(signal.Signals[name])
    except KeyError:
        raise UsageError(
            f"not an exit status: {text}", "give a number (137, -9, 0xC0000005) or a signal"
        ) from None


def normalize_status(status: int) -> int:
    """Return the status with a signal as a negative number, and NTSTATUS as an unsigned one."""
    if _SHELL_SIGNAL < status <= _SHELL_SIGNAL + 64:
        return _SHELL_SIGNAL - status
    # Python on Windows reports the unsigned number, some shells the signed one.
    return status & 0xFFFFFFFF if status < -_SHELL_SIGNAL else status


def describe_status(status: int) -> str:
    """Return a text such as `exit status 1`, `SIGKILL (-9)` or `0xC0000005 (access violation)`."""
    if status < 0:
        try:
            return f"{signal.Signals(-status).name} ({status})"
        except ValueError:
            return f"signal {-status}"
    if status >= _WINDOWS_FAILURE:
        known = _NTSTATUS.get(status)
        return f"0x{status:08X}" + (f" ({known[0]})" if known else "")
    return f"exit status {status}"


def classify_exit(status: int) -> ExitCause | None:
    """Return the likely cause of an exit without a message; None for a clean exit.

    A process that gets SIGKILL without a message was usually killed by the kernel because the
    memory was full.
    """
    if status == 0:
        return None
    if status >= _WINDOWS_FAILURE:
        return _NTSTATUS.get(status, ("", "crash"))[1]
    if status == -signal.SIGKILL:
        return "memory"
    if status == -signal.SIGILL:
        return "illegal_instruction"
    if status < 0 and describe_status(status).split(" ")[0] in _STOP_SIGNALS:
        return "killed"
    return "crash"
