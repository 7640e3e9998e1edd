"""The comment lines at the top of every preset: written, found again and read back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from autofit.presets.preset import Preset
from autofit.runtime.command.redaction import HIDDEN
from autofit.text_format import headroom, mib, one_line, speedup_text
from autofit.trial.workload import Request, Workload

_WORKLOAD = re.compile(
    r"tuned for: (?P<name>.*): context (?P<context>\d+), parallel (?P<parallel>\d+), "
    r"prompt\+generated tokens (?P<requests>.*); judged by "
)
_MEMORY = re.compile(r"([^\s,]+) (\d+) MiB")
_REQUEST = re.compile(r"(\d+)\+(\d+) \(weight ([-+.e\d]+)\)")
HIDDEN_NOTICE = f"{HIDDEN} stands for a value that autofit does not write down: put it in"
_FIRST = "Written by autofit "
_USED = "used at the peak: "
# The beginnings of every line, so that a later export finds the lines of an earlier one.
_BEGINNINGS = (
    *(_FIRST, "model: ", "taken from: ", "tuned for: ", "gain: ", "headroom: ", _USED),
    *("machine: ", "devices: ", "build: ", "check: ", "NOTE: "),
)


def heading(preset: Preset, notices: Sequence[str] = ()) -> list[str]:
    """Return purpose, speed and machine of a preset, as lines without comment marks.

    The check value has a part for each of machine, build and model file. A changed part shows
    which of them is different. `notices` become lines of their own.
    """
    environment = preset.environment
    devices = ", ".join(environment.devices) or "none"
    proof = "proven at full context" if preset.proven else "NOT proven at full context"
    lines = [
        f"{_FIRST}{preset.autofit_version} on {preset.made_on.isoformat()}",
        f"model: {preset.model_name}, {proof}",
        *([f"taken from: {preset.origin}"] if preset.origin else []),
        f"tuned for: {workload_line(preset.workload)}; judged by {preset.objective}",
        f"gain: {speedup_text(preset.gain, tie=preset.tie).removeprefix('Speedup ')}",
        f"headroom: {headroom(preset.free_mib)}",
        *_memory_lines(preset.taken_mib),
        f"machine: {environment.cpu}, {environment.cpu_count} CPUs, {mib(environment.memory_mib)}",
        f"devices: {devices}; driver: {environment.driver or 'none'}",
        f"build: {environment.build}",
        f"check: {environment.check_value}",
        *([f"NOTE: {HIDDEN_NOTICE}"] if preset.has_hidden_values else []),
        *(f"NOTE: {notice}" for notice in notices),
    ]
    return [one_line(line) for line in lines]


def _memory_lines(taken_mib: Mapping[str, float | None]) -> list[str]:
    """Return lines with the memory used at the peak, for a later check of the machine."""
    known = [f"{name} {math.ceil(mib)} MiB" for name, mib in taken_mib.items() if mib is not None]
    return [_USED + ", ".join(known)] if known else []


def without_heading(lines: Sequence[str], comment: re.Pattern[str]) -> list[str]:
    """Return comment lines without autofit's heading among them; `comment` matches their mark.

    The user's own comments before, after and between its lines stay.
    """
    start = len(lines)
    while start > 0 and comment.match(lines[start - 1]):
        start -= 1
    plain = [comment.sub("", line, count=1) for line in lines]
    first = next((i for i in range(start, len(lines)) if plain[i].startswith(_FIRST)), len(lines))
    after = range(first, len(lines))
    return [*lines[:first], *(lines[i] for i in after if not plain[i].startswith(_BEGINNINGS))]


def workload_line(workload: Workload) -> str:
    """Return a workload on one line."""
    requests = ", ".join(
        f"{request.prompt_tokens}+{request.predicted_tokens} (weight {request.weight:g})"
        for request in workload.requests
    )
    return (
        f"{workload.name}: context {workload.context}, parallel {workload.parallel}, "
        f"prompt+generated tokens {requests}"
    )


def heading_workload(line: str) -> Workload | None:
    """Return the workload that a line of a heading describes, or None for any other line.

    The heading does not name the text of the prompts, so the result has the shipped text.
    """
    found = _WORKLOAD.search(line)
    if found is None:
        return None
    requests = tuple(
        Request(int(prompt), int(predicted), float(weight))
        for prompt, predicted, weight in _REQUEST.findall(found["requests"])
    )
    context, parallel = int(found["context"]), int(found["parallel"])
    if not requests or not context or not parallel:
        return None
    return Workload(found["name"], context, parallel, requests)


def heading_metadata(text: str) -> dict[str, Any]:
    """Return what the heading in a file records: check value, workload and used memory."""
    metadata: dict[str, Any] = {}
    for line in text.splitlines():
        comment = line.lstrip()
        if not comment.startswith(("#", ";")):
            continue
        workload = heading_workload(comment)
        if workload is not None:
            metadata.setdefault("workload", workload)
        plain = comment.lstrip("#; ")
        if plain.startswith("check: "):
            metadata.setdefault("check", plain.removeprefix("check: ").strip())
        if plain.startswith(_USED):
            used = {name: float(number) for name, number in _MEMORY.findall(plain)}
            metadata.setdefault("taken_mib", used)
    return metadata
