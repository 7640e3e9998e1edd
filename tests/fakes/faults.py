"""Failures on demand: which one strikes which launch, at which stage.

A fault is named in FAKE_FAIL (`oom-kv`, `killed:prompt`, several separated by spaces) or in
the machine's state file as `{"name": ..., "value": ..., "device": ..., "launches": [2, 3],
"when": {"n_cpu_moe": ["<", 10]}, "prompt_tokens": 2000}`; the last has it strike from prompts of
this many tokens on. The names:

| name | what happens |
| --- | --- |
| oom-weights, oom-kv, oom-recurrent, oom-compute | the allocation is refused while loading |
| oom-prompt, oom-cublas, oom-generate | memory runs out in the first large prompt, or later |
| oom-decode | a batch fails with HTTP 500, the server lives on |
| host-oom, pinned-refused, pinned-fatal | host memory; the second is only a warning |
| device-lost | not memory: the driver gives up during a prompt |
| silent, killed, segfault, illegal, abort, bus | the process ends; the value is the stage |
| reject-flag, reject-line | a flag (the value) is unknown; the context is refused with a line |
| context-reduced, ubatch-reduced | the value is applied instead of what was asked |
| device-missing | the device (the value) is not there, without a word |
| port-in-use, devices-hang | the socket cannot be bound; `--list-devices` never answers |
| slow-load, hang-load, hang-request, hang-generate, slow-stop, ignore-term | waiting (seconds) |
| grandchild | a child of ours keeps stdout and stderr open (seconds) |
| http-500, content-500, bad-json, drop | a request's answer is an error, or breaks off |
| event-500, no-slot, slot-shrunk | an error in mid-stream, a busy server, a slot that holds less |
| garbage, wrong-text, empty-text | the text is nonsense, another one, or not there |
| impossible-speed, zero-timings | the timings are nonsense |
| wrong-timings, wrong-last-event | fields (a dictionary) are replaced in them |
| wrong-event | the first event is another one (any JSON) |
| endless, drip | the body at a path (the value) never ends, or comes byte by byte |
| speed | everything takes this many times as long |
| spill | this many MiB are in host memory without a message |
| retry-pipeline, retry-prefetch | harmless lines about an allocation that is tried smaller |
| no-table, exit-status | the end leaves out the memory table, or has another status |

Stages are load, context, warmup, prompt, generate, stop.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure and when it strikes; without conditions it always does."""

    name: str
    value: Any = None
    device: str = ""
    launches: tuple[int, ...] = ()
    when: Mapping[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0

    @classmethod
    def from_text(cls, text: str) -> Fault:
        """`name` or `name:value`."""
        name, _, value = text.partition(":")
        return cls(name, value or None)

    def strikes(self, launch: int, params: Mapping[str, Any]) -> bool:
        """Return whether the fault applies to this launch with these parameters."""
        if self.launches and launch not in self.launches:
            return False
        for name, (sign, limit) in self.when.items():
            value = params.get(name)
            if value is None or not _COMPARE[sign](type(limit)(value), limit):
                return False
        return True

    def number(self, default: float) -> float:
        """The value as a number."""
        return default if self.value is None else float(self.value)


class Faults:
    """The faults that strike one launch; `asked_tokens` is the prompt that it was asked last."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._by_name = {fault.name: fault for fault in faults}
        self.asked_tokens = 0

    @classmethod
    def collect(
        cls, text: str, stored: Iterable[Mapping[str, Any]], launch: int, params: Mapping[str, Any]
    ) -> Faults:
        """Those of FAKE_FAIL and of the state file that strike."""
        found = [Fault.from_text(word) for word in text.split()]
        found += [
            Fault(
                name=item["name"],
                value=item.get("value"),
                device=item.get("device", ""),
                launches=tuple(item.get("launches", ())),
                when=item.get("when", {}),
                prompt_tokens=int(item.get("prompt_tokens", 0)),
            )
            for item in stored
        ]
        return cls(fault for fault in found if fault.strikes(launch, params))

    def get(self, name: str) -> Fault | None:
        """The fault of this name, if it strikes."""
        fault = self._by_name.get(name)
        return fault if fault and fault.prompt_tokens <= self.asked_tokens else None

    def at(self, name: str, stage: str, default: str = "") -> bool:
        """Return whether a fault applies at this stage."""
        fault = self.get(name)
        return fault is not None and str(fault.value or default) == stage
