"""What prefetch and expert caches of a winner take and gain, as facts to be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofit.model.sizes.unreported_memory import select_expert_settings
from autofit.text_format import UNKNOWN, mib, one_line, param

_SOURCES = {"estimate": " by estimate, as nothing counted it"}
_PLAINLY = 0.005  # half a per cent


def expert_cost_facts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """A fact for each setting for experts in system RAM: its MiB by device, and what it gains."""
    return [
        (one_line(f"{row['param']} {param(row['value'])}"), one_line(_text(row)))
        for row in result.get("expert_memory") or ()
    ]


def holds_for(row: Mapping[str, Any]) -> str:
    """What a boundary holds for beside layout and KV type, `512` or `512, prefetch_slots 4`."""
    ubatch = UNKNOWN if row.get("ubatch") is None else str(row["ubatch"])
    experts = select_expert_settings(row.get("params") or {})
    return ", ".join((ubatch, *(f"{name} {param(value)}" for name, value in experts.items())))


def _text(row: Mapping[str, Any]) -> str:
    ratio, launches = row.get("time_ratio"), row.get("launches") or 0
    if row.get("source") is None:
        if not launches:
            return "off; nothing with it was measured"
        tried = "the launch" if launches == 1 else f"the fastest of {launches} launches"
        return f"off: {tried} with it {_against(ratio)}"
    told = _taken(row)
    return told if ratio is None else f"{told}; the fastest without it {_against(1 / ratio)}"


def _against(ratio: float | None) -> str:
    """What another launch's time says of it, `ratio` times this one's."""
    if ratio is None:
        return "has nothing to be held against"
    if abs(ratio - 1) < _PLAINLY:
        return "took as long"
    return f"took {abs(ratio - 1):.0%} {'longer' if ratio > 1 else 'less'}"


def _taken(row: Mapping[str, Any]) -> str:
    amounts = row.get("mib") or {}
    asked, taken = row.get("slots_asked"), row.get("slots_taken")
    if not amounts:
        return "takes nothing: the runtime turned it off" if row.get("source") == "log" else (
            "takes nothing: no batch was large enough" if asked else "takes nothing"
        )  # fmt: skip
    where = ", ".join(f"{mib(amount)} on {one_line(name)}" for name, amount in amounts.items())
    fewer = f", {taken} of {asked} slots" if asked and taken is not None and taken < asked else ""
    return where + fewer + _SOURCES.get(str(row.get("source")), "")
