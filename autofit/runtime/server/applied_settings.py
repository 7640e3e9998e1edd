"""The comparison of the settings that a running server applied with those of the candidate.

The runtime changes some settings by rule (llama.cpp, `llama_context` and the server), and
these changes are expected. The context of a slot is padded up to 256. The batch is at most the
requested context, the ubatch at most the batch, and ubatch 0 means the batch. `auto` may become
any value. A cache of experts holds as many whole experts as fit into its budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.discovery.found_runtime import format_value
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.outcome import Rejected

SLOT_CONTEXT = "context_per_slot"
_PAD = 256
_SWITCH_VALUES = {
    "enabled": "on",
    "true": "on",
    "1": "on",
    "disabled": "off",
    "false": "off",
    "0": "off",
}
_SWITCHES = frozenset({"flash_attn", "kv_unified", "swa_full"})


def read_applied(dialect: Dialect, props: Mapping[str, Any]) -> dict[str, ParamValue]:
    """Return the applied settings in a response of the props endpoint, by parameter name."""
    found: dict[str, ParamValue] = {}
    for name, path in dialect.applied.items():
        value = find_value(props, path)
        if isinstance(value, str | int | float):
            found[name] = value
    return found


def find_value(props: Mapping[str, Any], path: str) -> object:
    """Return the value at a path with dots; None if there is none."""
    value: object = props
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def find_unapplied(
    candidate: Candidate, applied: Mapping[str, ParamValue], *, units: int | None = None
) -> Rejected | None:
    """Return a rejection if the server silently changed a setting, or None if it did not.

    `applied` has the applied values by parameter name, and `context_per_slot`. Its `context` is
    that of all slots, its `n_gpu_layers` the number of offloaded units. Missing values are not
    compared. `units` is the number of the model's layers, including the output layer.
    """
    for name, requested in candidate.params.items():
        expected = _expected_value(candidate, name, requested, units)
        value = applied.get(name)
        if expected is not None and value is not None and not _is_same(name, expected, value):
            return _reject(name, requested, value)
    slot = applied.get(SLOT_CONTEXT)
    needed = candidate.get_int("context", 0) // max(1, candidate.get_int("parallel", 1))
    if slot is not None and int(slot) < needed:
        return _reject("context", candidate.params["context"], f"{slot} for each slot")
    return None


def _expected_value(
    candidate: Candidate, name: str, requested: ParamValue, units: int | None
) -> ParamValue | None:
    """Return the value that a server should apply, or None if it may choose."""
    if requested == "auto" or (name in {"context", "parallel"} and int(requested) <= 0):
        return None
    if name == "moe_cache_mib":
        return None
    context = candidate.get_int("context", 0)
    if name == "context":
        is_unified = candidate.params.get("kv_unified") is True
        return padded_context(context, 1 if is_unified else candidate.get_int("parallel", 1))
    batch = candidate.get_int("batch", 2048)
    most = min(batch, context) if context > 0 else batch
    if name == "batch":
        return most
    if name == "ubatch":
        return min(int(requested), most) or most
    if name == "n_gpu_layers":
        layers = candidate.get_int(name, -1)
        return None if layers < 0 or units is None else min(layers, units)
    return requested


def padded_context(context: int, caches: int) -> int:
    """Return the number of tokens that all caches of a server have memory for.

    A unified cache is one for all slots. Otherwise each slot has its own, with its share of
    the context padded up to 256.
    """
    caches = max(1, caches)
    share = context // caches
    return -(-share // _PAD) * _PAD * caches


def _is_same(name: str, expected: ParamValue, applied: ParamValue) -> bool:
    texts = [format_value(value) for value in (expected, applied)]
    if name in _SWITCHES:
        texts = [_SWITCH_VALUES.get(text, text) for text in texts]
    return texts[0] == texts[1] or (name in _SWITCHES and texts[1] == "auto")


def _reject(name: str, requested: ParamValue, applied: ParamValue) -> Rejected:
    values = f"{format_value(requested)}, the runtime applied {format_value(applied)}"
    return Rejected("load", f"requested {name} {values}", "not_applied")
