"""Tensor overrides: which tensors a rule sends to which buffer, and rules for given blocks.

llama.cpp searches each rule's expression anywhere in a tensor's name and takes the first that
matches, in the order of the command line: `--override-tensor`, `--n-cpu-moe`, `--n-cpu-ffn`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofit.errors import UsageError
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device

CPU_BUFFER = "CPU"
# Matches no tensor: any rule at all switches pipeline parallelism off.
NO_PIPELINE_RULE = f"^$={CPU_BUFFER}"

_EXPERT_PARTS = {
    "all": "up|down|gate|gate_up",
    "up_gate": "up|gate|gate_up",
    "down": "down",
}
_REMOTE_BUFFER = re.compile(r"RPC(?P<index>\d+)\[(?P<endpoint>.+)\]")


@dataclass(frozen=True, slots=True)
class Override:
    """One rule: tensors whose name matches go to the buffer."""

    pattern: re.Pattern[str]
    buffer: str


def overrides_of(candidate: Candidate) -> tuple[Override, ...]:
    """The rules of a candidate in the order in which the runtime tries them.

    Raises:
        UsageError: a rule without a buffer, or an expression that cannot be compiled.
    """
    rules = [_parse(rule) for rule in candidate.get_str("override_tensor", "").split(",") if rule]
    # The runtime has a rule for each block. They have one buffer, so one rule says the same.
    for name, pattern in (("n_cpu_moe", expert_pattern), ("n_cpu_ffn", dense_pattern)):
        count = candidate.get_int(name, 0)
        if count > 0:
            rules.append(_compiled(pattern(range(count)), CPU_BUFFER))
    return tuple(rules)


def _parse(rule: str) -> Override:
    pattern, separator, buffer = rule.partition("=")
    if not separator or not pattern or not buffer:
        raise UsageError(
            f"override_tensor: '{rule}' is no rule",
            r"rules are EXPRESSION=BUFFER joined by commas, as in `blk\.0\.attn_q=CPU`",
        )
    return _compiled(pattern, buffer)


def _compiled(pattern: str, buffer: str) -> Override:
    try:
        return Override(re.compile(pattern), buffer)
    except re.error as error:
        raise UsageError(
            f"override_tensor: '{pattern}' is no regular expression: {error}",
            "quote dots with a backslash; a comma ends a rule",
        ) from error


def device_of_buffer(buffer: str, devices: Sequence[Device]) -> int:
    """The index of the device that a buffer lies on, -1 for the host.

    A remote device `RPC1` has the buffer `RPC0[host:port]`: its index there is the server's.

    Raises:
        UsageError: no such buffer; the hint lists those there are.
    """
    if buffer == CPU_BUFFER:
        return -1
    for index, device in enumerate(devices):
        if device.name == buffer:
            return index
    remote = _REMOTE_BUFFER.fullmatch(buffer)
    if remote:
        served = [
            i for i, device in enumerate(devices) if remote["endpoint"] in device.description
        ]
        if int(remote["index"]) < len(served):
            return served[int(remote["index"])]
    raise UsageError(
        f"override_tensor: there is no buffer '{buffer}'",
        f"known: {', '.join([CPU_BUFFER, *(device.name for device in devices)])}",
    )


def expert_pattern(blocks: Iterable[int], partial: Mapping[int, str] | None = None) -> str:
    """One expression for the experts of some blocks.

    Of the blocks in `partial`, only the part named there: `up_gate` or `down`.
    """
    by_part: dict[str, list[int]] = {}
    for block in blocks:
        by_part.setdefault((partial or {}).get(block, "all"), []).append(block)
    pieces = [
        rf"{_alternatives(by_part[part])}\.ffn_({names})"
        for part, names in _EXPERT_PARTS.items()
        if part in by_part
    ]
    together = pieces[0] if len(pieces) == 1 else f"({'|'.join(pieces)})"
    return rf"blk\.{together}_(ch|)exps"


def dense_pattern(blocks: Iterable[int]) -> str:
    """One expression for the dense feed-forward tensors of some blocks."""
    return rf"blk\.{_alternatives(blocks)}\.ffn_(up|down|gate)\."


def _alternatives(blocks: Iterable[int]) -> str:
    numbers = [str(block) for block in sorted(blocks)]
    return numbers[0] if len(numbers) == 1 else f"({'|'.join(numbers)})"
