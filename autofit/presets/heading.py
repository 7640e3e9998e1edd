"""The lines at the top of every preset that can hold comments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from autofit.presets.facts import PresetFacts
from autofit.text_format import gain_sentence, headroom, mib, one_line
from autofit.trial.workload import Request, Workload

_WORKLOAD = re.compile(
    r"tuned for: (?P<name>.*): context (?P<context>\d+), parallel (?P<parallel>\d+), "
    r"prompt\+generated tokens (?P<requests>.*); judged by "
)
# How the lines of a heading begin, so that a later export finds those of an earlier one.
_BEGINNINGS = (
    *("Written by autofit ", "model: ", "taken from: ", "tuned for: ", "gain: ", "headroom: "),
    *("machine: ", "devices: ", "build: ", "check: ", "NOTE: "),
)
_REQUEST = re.compile(r"(\d+)\+(\d+) \(weight ([-+.e\d]+)\)")


def heading(facts: PresetFacts) -> list[str]:
    """What the preset is for, how good it is and where: plain lines without a comment mark.

    The check value has a part each for machine, build and model file, so that a reader can
    tell which of them is no longer the same.
    """
    environment = facts.environment
    devices = ", ".join(environment.devices) or "none"
    proof = "proven at full context" if facts.proven else "NOT proven at full context"
    lines = [
        f"Written by autofit {facts.autofit_version} on {facts.made_on.isoformat()}",
        f"model: {facts.model_name}, {proof}",
        *([f"taken from: {facts.origin}"] if facts.origin else []),
        f"tuned for: {workload_line(facts.workload)}; judged by {facts.objective}",
        f"gain: {gain_sentence(facts.gain, tie=facts.tie).removeprefix('gain ')}",
        f"headroom: {headroom(facts.free_mib)}",
        f"machine: {environment.cpu}, {environment.cpu_count} CPUs, {mib(environment.memory_mib)}",
        f"devices: {devices}; driver: {environment.driver or 'none'}",
        f"build: {environment.build}",
        f"check: {environment.check_value}",
    ]
    return [one_line(line) for line in lines]


def is_heading(line: str) -> bool:
    """Whether a comment, without its mark, is a line of a heading that autofit wrote."""
    return line.startswith(_BEGINNINGS)


def without_heading(lines: Sequence[str], mark: re.Pattern[str]) -> list[str]:
    """The lines without the heading that they end with, if they do; `mark` begins a comment.

    Comments of the user's own around it stay.
    """
    start = len(lines)
    while start > 0 and mark.match(lines[start - 1]):
        start -= 1
    comments = list(lines[start:])
    plain = [mark.sub("", line, count=1) for line in comments]
    begin = next((i for i, line in enumerate(plain) if line.startswith(_BEGINNINGS[0])), None)
    if begin is None:
        return list(lines)
    own = [
        line
        for line, text in zip(comments[begin:], plain[begin:], strict=True)
        if not is_heading(text)
    ]
    return [*lines[:start], *comments[:begin], *own]


def note(text: str) -> str:
    """A line of a heading about something that the file cannot see to itself."""
    return one_line(f"NOTE: {text}")


def workload_line(workload: Workload) -> str:
    """A workload on one line."""
    requests = ", ".join(
        f"{request.prompt_tokens}+{request.predicted_tokens} (weight {request.weight:g})"
        for request in workload.requests
    )
    return (
        f"{workload.name}: context {workload.context}, parallel {workload.parallel}, "
        f"prompt+generated tokens {requests}"
    )


def heading_workload(line: str) -> Workload | None:
    """The workload that a line of a heading tells, None where it tells none.

    The text that prompts were cut from is not told: they are cut from the shipped one.
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
