"""Numbers of host layers as people are told them."""

from __future__ import annotations

from collections.abc import Callable

from autofit.model.placement.layout import SINGLE
from autofit.trial.candidate import Candidate


def reported_host_layers(
    layout: str,
    host_layers: int | None,
    candidate_of: Callable[[int], Candidate | None],
    units: int,
    *,
    fits: bool = True,
) -> int | None:
    """How many layers have their experts in system RAM, where so many of the devices' have.

    On one device that is what `n_cpu_moe` counts: leading layers without experts too, and
    those that are not among the `units` on the device. With several devices it is host expert
    layers in all. Of layers that have no experts, which change nothing, as few are counted
    where that many `fits`, else as many: 4 that fit stand beside 3 that do not, not beside 0,
    where the first three have none.
    """
    if host_layers is None or not layout.startswith(SINGLE):
        return host_layers
    candidate = candidate_of(host_layers)
    if candidate is None:
        return host_layers
    told = first_layers(candidate, units, host_layers)
    more = None if fits else candidate_of(host_layers + 1)
    if more is None or more.params.get("n_gpu_layers") != candidate.params.get("n_gpu_layers"):
        return told
    return max(told, first_layers(more, units, host_layers + 1) - 1)


def first_layers(candidate: Candidate, units: int, host_layers: int) -> int:
    """How many of the first layers have their experts in system RAM, on one device.

    `n_cpu_moe` does not say it where none of the device's layers is among them.
    """
    left = max(0, units - candidate.get_int("n_gpu_layers", units))
    sent = candidate.get_int("n_cpu_moe", candidate.get_int("n_cpu_ffn", left + host_layers))
    return max(left, sent)
