"""Whether a running server applied what it was asked.

Some changes are the runtime's rules and expected (llama.cpp, `llama_context` and the server):
the context of a slot is padded up to 256; the batch is at most the context as asked, the
ubatch at most the batch, and ubatch 0 means the batch; `auto` may become anything; a cache of
experts is as many whole experts as its budget holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import format_value
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.outcome import Rejected

# The settings of which a server tells what it applied for each slot.
SLOT_CONTEXT = "context_per_slot"
_PAD = 256
_SYNONYMS = {
    "enabled": "on",
    "true": "on",
    "1": "on",
    "disabled": "off",
    "false": "off",
    "0": "off",
}
_SWITCHES = frozenset({"flash_attn", "kv_unified", "swa_full"})


def read_applied(dialect: Dialect, props: Mapping[str, Any]) -> dict[str, ParamValue]:
    """What the answer of a server's props endpoint tells, by the names of `applied`."""
    found: dict[str, ParamValue] = {}
    for name, path in dialect.applied.items():
        value: Any = props
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str | int | float):
            found[name] = value
    return found


def find_unapplied(
    candidate: Candidate, applied: Mapping[str, ParamValue], *, units: int | None = None
) -> Rejected | None:
    """The first setting that the server silently changed, None where all is as asked.

    `applied` has values by parameter name (`context` in all, `n_gpu_layers` the units that
    were offloaded), and `context_per_slot`; what it lacks is not compared. `units` are the
    model's layers and its output layer.
    """
    for name, asked in candidate.params.items():
        wanted = _wanted(candidate, name, asked, units)
        got = applied.get(name)
        if wanted is None or got is None or _same(name, wanted, got):
            continue
        return _rejected(name, asked, got)
    slot = applied.get(SLOT_CONTEXT)
    needed = candidate.get_int("context", 0) // max(1, candidate.get_int("parallel", 1))
    if slot is not None and int(slot) < needed:
        return _rejected("context", candidate.params["context"], f"{slot} for each slot")
    return None


def _wanted(
    candidate: Candidate, name: str, asked: ParamValue, units: int | None
) -> ParamValue | None:
    """What a server is to apply for a setting; None where that is its own choice."""
    context = candidate.get_int("context", 0)
    batch = candidate.get_int("batch", 2048)
    if asked == "auto" or (name in {"context", "parallel"} and int(asked) <= 0):
        return None
    if name == "moe_cache_mib":
        return None
    if name == "context":
        return padded_context(context, candidate.get_int("parallel", 1), _is_unified(candidate))
    most = min(batch, context) if context > 0 else batch
    if name == "batch":
        return most
    if name == "ubatch":
        return min(int(asked), most) or most
    if name == "n_gpu_layers":
        layers = candidate.get_int(name, -1)
        return None if layers < 0 or units is None else min(layers, units)
    return asked


def padded_context(context: int, parallel: int, is_unified: bool) -> int:  # noqa: FBT001
    """The tokens that a server makes room for, in all slots together.

    Each slot of a cache that is not unified gets its share, padded up to 256.
    """
    slots = 1 if is_unified else max(1, parallel)
    share = context // slots
    return -(-share // _PAD) * _PAD * slots


def _is_unified(candidate: Candidate) -> bool:
    return candidate.params.get("kv_unified") is True


def _same(name: str, wanted: ParamValue, got: ParamValue) -> bool:
    told, asked = format_value(got), format_value(wanted)
    if name in _SWITCHES:
        told, asked = _SYNONYMS.get(told, told), _SYNONYMS.get(asked, asked)
    return told == asked or (name in _SWITCHES and told == "auto")


def _rejected(name: str, asked: ParamValue, got: ParamValue) -> Rejected:
    return Rejected(
        stage="load",
        evidence=f"{name} {format_value(asked)} was asked, "
        f"the runtime applied {format_value(got)}",
        reason="not_applied",
    )
