"""`autofit explain`: diagnose a server's log."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import select
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TYPE_CHECKING, cast

import click

from autofit.cli.say import say
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.runtime.diagnosis.diagnose import Diagnosis

_STAGES = {
    "plan": "before loading",
    "load": "while loading",
    "context": "while making the context",
    "warmup": "while warming up",
    "prompt": "while processing a prompt",
    "generate": "while generating",
    "stop": "while stopping",
}
_PLACES = {"device": "a device", "host": "host memory", "pinned": "pinned memory"}
_REFUSED = (
    "a device refused an allocation of {:.0f} MiB, and the server continued without it. If this "
    "is the size of a prefetch slot, the server has fewer prefetch slots, or none."
)
_LOG_HINT = "give the text that llama-server printed, for example `llama-server ... 2>server.log`"
# The first bytes of files that users confuse with a log.
_BINARY = {
    b"GGUF": ("a model", _LOG_HINT),
    b"\x7fELF": ("a program", _LOG_HINT),
    b"\x1f\x8b": ("compressed", "uncompress it: `zcat FILE | autofit explain -`"),
    b"\x28\xb5\x2f\xfd": ("compressed", "uncompress it: `zstdcat FILE | autofit explain -`"),
}
_EXAMINED_BYTES = 4096
_PIPE_LIMIT_S = 2.0
# Characters that no log has, and the share of them above which a file is no text.
_NOT_TEXT = re.compile("[\x00-\x07\x0e-\x1a\x1c-\x1f\ufffd]")
_BINARY_SHARE = 0.2
_BUFFERS = {"kv": "KV cache", "pool": "run-time pool"}


@click.command("explain")
@click.argument("log")
@click.option(
    "--exit", "status", metavar="STATUS", help="How the server ended: 137, -9, SIGKILL, ..."
)
@click.option("--dialect", default="llama_server", show_default=True, help="The log's dialect.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(log: str, status: str | None, dialect: str, *, as_json: bool) -> None:
    """Find out from its LOG (- for stdin) why a llama-server failed, and what to change.

    The log may have any size. It may be plain text, JSON lines, or the log of a router with its
    children. Use --exit if the server may have ended without a message.
    """
    from autofit.runtime.diagnosis.diagnose import diagnose, diagnosis_to_dict
    from autofit.runtime.diagnosis.exit_status import parse_exit_status
    from autofit.runtime.dialect.dialect_file import load_dialect
    from autofit.runtime.logs.log_line import read_lines

    exit_status = None if status is None else parse_exit_status(status)
    with _open_log(log) as stream:
        _refuse_binary(stream, log)
        diagnosis = diagnose(read_lines(stream), load_dialect(dialect), exit_status=exit_status)
    if as_json:
        document = diagnosis_to_dict(diagnosis) | {
            "notices": list(diagnosis.log.notices),
            "expert_cache_mib": _expert_cache_mib(diagnosis),
            "refused_mib": list(diagnosis.log.refused_mib),
        }
        click.echo(json.dumps(document, indent=2))
    else:
        say(_headline(diagnosis), bold=True)
        for line in _lines(diagnosis):
            say(line)


@contextmanager
def _open_log(log: str) -> Iterator[BufferedReader]:
    if log == "-":
        yield cast("BufferedReader", sys.stdin.buffer)
        return
    try:
        with _open_text(log) as stream:
            yield stream
    except OSError as error:
        raise UsageError(
            f"cannot read {log}: {error.strerror or error}", "give a log file, or - for stdin"
        ) from error


def _open_text(log: str) -> BufferedReader:
    """Open a file, or a pipe that has a writer; raise OSError for anything else."""
    # Without this flag, the system would wait for a writer of a named pipe.
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    fault = _find_fault(descriptor, log)
    if fault:
        os.close(descriptor)
        raise OSError(errno.EINVAL, fault, log)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _find_fault(descriptor: int, log: str) -> str:
    """Return the reason why an open file cannot be a log, or "" if there is none."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISDIR(mode):
        return "it is a folder"
    if (stat.S_ISCHR(mode) or stat.S_ISBLK(mode)) and not os.isatty(descriptor):
        return "it is a device, not a file"
    if stat.S_ISFIFO(os.lstat(log).st_mode):
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(_PIPE_LIMIT_S * 1000):
            return "nothing writes to this pipe"
    return ""


def _refuse_binary(stream: BufferedReader, log: str) -> None:
    """Raise UsageError if the first bytes of a log are not text. Allow a few damaged bytes."""
    name = "the input" if log == "-" else log
    try:
        start = stream.peek(_EXAMINED_BYTES)[:_EXAMINED_BYTES]
    except OSError as error:
        raise UsageError(
            f"cannot read {name}: {error.strerror or error}", "give a log file, or - for stdin"
        ) from error
    for magic, (what, hint) in _BINARY.items():
        if start.startswith(magic):
            raise UsageError(f"{name} is {what}, not a log", hint)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return
    # Rotated or cut logs may begin with zero bytes.
    text = start.lstrip(b"\0").decode("utf-8", errors="replace")
    if len(_NOT_TEXT.findall(text)) > _BINARY_SHARE * len(text):
        raise UsageError(f"{name} is not text", _LOG_HINT)


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    rows = [("child", f"port {diagnosis.child}" if diagnosis.child else "")]
    rows += [("evidence", diagnosis.evidence)]
    rows += [("try", advice) for advice in diagnosis.advice]
    rows += [
        ("memory", f"{mib:,.0f} MiB of {device} for an expert cache")
        for device, mib in _expert_cache_mib(diagnosis).items()
    ]
    rows += [("notice", _REFUSED.format(mib)) for mib in _survived_refusals_mib(diagnosis)]
    rows += [("notice", notice) for notice in diagnosis.log.notices]
    previous = ""
    for name, text in rows:
        if text:
            yield f"  {name if name != previous else '':<10}{text}"
            previous = name


def _expert_cache_mib(diagnosis: Diagnosis) -> dict[str, float]:
    """Map each device to the MiB of its expert cache."""
    return {b.device: b.mib for b in diagnosis.log.buffers if b.kind == "cache" and b.device}


def _survived_refusals_mib(diagnosis: Diagnosis) -> list[float]:
    """Return the MiB of each refused allocation that the server survived."""
    outcome = diagnosis.outcome
    has_failed = outcome is not None and outcome.kind != "completed"
    return [] if has_failed else list(dict.fromkeys(diagnosis.log.refused_mib))


def _headline(diagnosis: Diagnosis) -> str:
    """Return a line such as `out of memory while loading: weights on CUDA0, 17834 MiB`."""
    outcome = diagnosis.outcome
    if outcome is None:
        return f"unknown: the log ends {_STAGES[diagnosis.stage]}, without an error"
    if outcome.kind == "completed":
        return "completed: no failure in this log"
    buffer, where = getattr(outcome, "buffer", None), getattr(outcome, "where", None)
    place = getattr(outcome, "device", None) or _PLACES.get(where or "")
    subject = " on ".join(text for text in (_BUFFERS.get(buffer or "", buffer), place) if text)
    mib = getattr(outcome, "requested_mib", None)
    details = [subject, f"{mib:.1f} MiB requested" if mib else "", diagnosis.reason or ""]
    headline = f"{outcome.kind.replace('_', ' ')} {_STAGES[diagnosis.stage]}"
    known = ", ".join(detail.replace("_", " ") for detail in details if detail)
    return f"{headline}: {known}" if known else headline
