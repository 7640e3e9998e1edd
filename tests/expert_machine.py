"""Simulated machines whose runtime prefetches or caches experts, with small spaces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes.machine import Quirks, RuntimeTraits
from tune_machine import TuneMachine

SLOT_MIB = 72.0  # a third of a layer's experts in the model of all tunes
_SPACE = """\
layouts: [single]
parameters:
  ubatch:
    values: [512]
  flash_attn:
    values: ["on"]
  load_mode:
    values: [none]
"""
_AXES = {
    "slots": "  prefetch_slots:\n    values: [0, 3, 4]\n",
    "env": "  prefetch_slots:\n    values: [0, 3, 4]\n",
    "weights": "  prefetch_weights:\n    values: [false, true]\n",
    "cache": "  moe_cache_mib:\n    values: [0, 400, 800]\n",
}
_WORKLOAD = """\
name: experts
context: 2048
requests:
  - {{prompt_tokens: {prompt}, predicted_tokens: {predicted}}}
"""


class ExpertMachine(TuneMachine):
    """One card with a build of a kind: `slots`, `env`, `weights` or `cache`.

    `card` and `host` are fields that differ from the usual, `traits` of the build.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        *,
        card_mib: float = 3200.0,
        prompt: int = 1500,
        predicted: int = 33,
        card: dict[str, Any] | None = None,
        host: dict[str, Any] | None = None,
        quirks: Quirks | None = None,
        **traits: Any,
    ) -> None:
        super().__init__(folder, card_mib)
        is_cache = kind == "cache"
        build: dict[str, Any] = {"has_moe_cache": is_cache, "prefetch": "" if is_cache else kind}
        devices = tuple(replace(device, **(card or {})) for device in self.machine.devices)
        self.change(
            devices=devices,
            host=replace(self.machine.host, **(host or {})),
            quirks=quirks or Quirks(),
            runtime=RuntimeTraits(**build, **traits),
        )
        self.write_build()
        self.space.write_text(_SPACE + _AXES[kind])
        self.workload.write_text(_WORKLOAD.format(prompt=prompt, predicted=predicted))
