"""`autofit explain`: what came of a server, by its log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

import click

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
    "{:.0f} MiB of a device were refused and the server went on with less: fewer prefetch slots "
    "than asked for, or none, where that is the size of one"
)
_KINDS = {"kv": "KV cache", "pool": "run-time pool"}


@click.command("explain")
@click.argument("log")
@click.option("--exit", "status", metavar="STATUS", help="How it ended: 137, -9, SIGKILL, ...")
@click.option("--dialect", default="llama_server", show_default=True, help="The runtime's kind.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(log: str, status: str | None, dialect: str, *, as_json: bool) -> None:
    """Tell what killed a llama-server by its LOG (- for stdin), and what to change.

    Reads logs of any size, plain, as JSON lines, or of a router with its children. Without
    --exit only the log is judged; with it, also an end without a last word.
    """
    from autofit.runtime.diagnosis.diagnose import diagnose, diagnosis_to_dict  # noqa: PLC0415
    from autofit.runtime.diagnosis.exit_status import parse_exit_status  # noqa: PLC0415
    from autofit.runtime.dialect.dialect_file import load_dialect  # noqa: PLC0415 - --help is quick
    from autofit.runtime.logs.log_line import read_lines  # noqa: PLC0415

    ended = None if status is None else parse_exit_status(status)
    with _opened(log) as stream:
        diagnosis = diagnose(read_lines(stream), load_dialect(dialect), exit_status=ended)
    if as_json:
        told = diagnosis_to_dict(diagnosis) | {
            "notices": list(diagnosis.log.notices),
            "expert_cache_mib": _cache_mib(diagnosis),
            "refused_mib": list(diagnosis.log.refused_mib),
        }
        click.echo(json.dumps(told, indent=2))
    else:
        for line in _lines(diagnosis):
            click.echo(line)


@contextmanager
def _opened(log: str) -> Iterator[BinaryIO]:
    if log == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(log, "rb") as stream:  # noqa: PTH123 - like any program that reads a log
            yield stream
    except OSError as error:
        raise UsageError(
            f"cannot read {log}: {error.strerror or error}", "give a log file, or - for stdin"
        ) from error


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield click.style(_headline(diagnosis), bold=True)
    rows = [("child", f"port {diagnosis.child}" if diagnosis.child else "")]
    rows += [("evidence", diagnosis.evidence)]
    rows += [("try", advice) for advice in diagnosis.advice]
    rows += [
        ("takes", f"{mib:,.0f} MiB of {device} for a cache of experts")
        for device, mib in _cache_mib(diagnosis).items()
    ]
    rows += [("notice", _REFUSED.format(mib)) for mib in _went_on_without(diagnosis)]
    rows += [("notice", notice) for notice in diagnosis.log.notices]
    previous = ""
    for name, text in rows:
        if text:
            yield f"  {name if name != previous else '':<10}{text}"
            previous = name


def _cache_mib(diagnosis: Diagnosis) -> dict[str, float]:
    """What a cache of experts takes, by device."""
    return {b.device: b.mib for b in diagnosis.log.buffers if b.kind == "cache" and b.device}


def _went_on_without(diagnosis: Diagnosis) -> list[float]:
    """Sizes of allocations that a server was refused and did not die of."""
    outcome = diagnosis.outcome
    has_died = outcome is not None and outcome.kind != "completed"
    return [] if has_died else list(dict.fromkeys(diagnosis.log.refused_mib))


def _headline(diagnosis: Diagnosis) -> str:
    """Such as `out of memory while loading: weights on CUDA0, 17833.7 MiB asked`."""
    outcome = diagnosis.outcome
    if outcome is None:
        return f"unknown: the log ends {_STAGES[diagnosis.stage]}, without saying why"
    if outcome.kind == "completed":
        return "completed: no failure in this log"
    parts = [outcome.kind.replace("_", " "), _STAGES[diagnosis.stage]]
    buffer, where = getattr(outcome, "buffer", None), getattr(outcome, "where", None)
    place = getattr(outcome, "device", None) or _PLACES.get(where or "")
    told = " on ".join(text for text in (_KINDS.get(buffer or "", buffer), place) if text)
    asked = getattr(outcome, "requested_mib", None)
    details = [told, f"{asked:.1f} MiB asked" if asked else "", diagnosis.reason or ""]
    known = ", ".join(detail.replace("_", " ") for detail in details if detail)
    return " ".join(parts) + (f": {known}" if known else "")
