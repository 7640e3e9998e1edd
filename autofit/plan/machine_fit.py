"""Does a command still fit here: what a machine has now against what the command asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from autofit.model.sizes.memory_estimate import MemoryEstimate
from autofit.runtime.command.argv_writer import find_unsupported
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.trial.candidate import Candidate
from autofit.yaml_files import did_you_mean

_FLAG = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"LLAMA_ARG_(?:NO_)?(\w+)")
# Values of `n_gpu_layers` that leave the placing to the runtime's own fit.
_OPEN = (None, "auto", -1)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a command does not fit any more, and what to do about it."""

    kind: str
    message: str
    hint: str

    def to_dict(self) -> dict[str, str]:
        """The reason as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Need:
    """What a device (or `host`) must give, and what it has free.

    `peak_mib` is what was in use at the peak of a proof, other programs included, `taken_mib`
    what the server itself held then; None where nobody knows.
    """

    name: str
    needed_mib: float
    free_mib: float
    peak_mib: float | None = None
    taken_mib: float | None = None

    @property
    def fits(self) -> bool:
        """Whether there is room."""
        return self.needed_mib <= self.free_mib

    def to_dict(self) -> dict[str, Any]:
        """The need as JSON data."""
        return {**asdict(self), "fits": self.fits}


def flag_reasons(
    arguments: Sequence[str], env: Mapping[str, str], help_text: HelpText
) -> Iterator[Reason]:
    """The flags and variables that a build does not know; none where it lists no flags."""
    if not help_text.flags:
        return
    words = iter(arguments)
    for word in words:
        spelling, equals, _ = word.partition("=")
        spelling = spelling.replace("_", "-") if spelling.startswith("--") else spelling
        flag = help_text.get(spelling)
        if flag is None and _FLAG.match(word):
            removed = help_text.flags.get(spelling)
            told = "has removed" if removed else "does not know"
            question = did_you_mean(spelling, help_text.flags) if removed is None else removed.text
            yield Reason(
                "flag", f"this build {told} {spelling}",
                f"{question} take it out, or use the build that the preset is for".strip(),
            )  # fmt: skip
        elif flag is not None and flag.takes_value and not equals:
            next(words, None)
    known = {flag.env for flag in help_text.flags.values() if flag.env}
    for name in env:
        found = _VARIABLE.fullmatch(name)
        if found and not {name, f"LLAMA_ARG_{found[1]}"} & known:
            yield Reason(
                "flag", f"this build does not know the variable {name}",
                "take it out, or use the build that the preset is for",
            )  # fmt: skip


def value_reasons(runtime: Runtime, candidate: Candidate) -> Iterator[Reason]:
    """What this build refuses about known settings."""
    known = {name: v for name, v in candidate.params.items() if runtime.supports(name)}
    problem = find_unsupported(runtime, Candidate(known))
    if problem is not None:
        yield Reason("value", problem.message, "change the value, or use another build")


def is_placed_by_runtime(candidate: Candidate, arguments: Sequence[str]) -> bool:
    """Whether the runtime itself decides what lies on a device, by what is free."""
    fit_off = any(
        word in ("--fit", "-fit") and value.lower() in ("off", "0", "false", "disabled")
        for word, value in pairwise(arguments)
    )
    return candidate.params.get("n_gpu_layers") in _OPEN and not fit_off


def needs(
    estimate: MemoryEstimate,
    host_available_mib: float,
    peak_mib: Mapping[str, float | None],
    taken_mib: Mapping[str, float | None],
) -> tuple[Need, ...]:
    """What each device and the host must give, beside the peaks that were measured."""

    def need(name: str, needed_mib: float, free_mib: float) -> Need:
        return Need(name, needed_mib, free_mib, peak_mib.get(name), taken_mib.get(name))

    found = [need(row.name, row.total_mib, row.usable_mib) for row in estimate.devices]
    return (*found, need("host", estimate.host.resident_mib, host_available_mib))


def memory_reasons(found: Sequence[Need]) -> Iterator[Reason]:
    """The devices without room."""
    for need in found:
        if need.fits:
            continue
        missing = need.needed_mib - need.free_mib
        where = "system RAM" if need.name == "host" else need.name
        hint = "end what else uses it, or tune again: `autofit tune MODEL`"
        yield Reason(
            "memory",
            f"{where} has {need.free_mib:,.0f} MiB free, {missing:,.0f} MiB too little for the "
            f"{need.needed_mib:,.0f} MiB that it takes",
            hint,
        )


def memory_notes(found: Sequence[Need]) -> Iterator[str]:
    """The devices where it is close: less free than was used at the measured peak."""
    for need in found:
        peak_mib = need.peak_mib if need.taken_mib is None else need.taken_mib
        if need.fits and peak_mib is not None and peak_mib > need.free_mib:
            whose = (
                "were in use, those of other programs included"
                if need.taken_mib is None
                else "were the server's"
            )
            yield (
                f"{need.name} has {need.free_mib:,.0f} MiB free; at the peak of the proof "
                f"{peak_mib:,.0f} MiB {whose}"
            )
