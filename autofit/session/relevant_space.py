"""The values of a search space that can matter on a machine; others would only cost launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autofit.machine.cpu import Cores
from autofit.model.sizes.inventory import ModelInventory
from autofit.search.cost_terms import cpu_prompt_s, upload_s
from autofit.search.space import Space
from autofit.session.search_problem import model_traffic
from autofit.trial.candidate import ParamValue
from autofit.trial.device import Device, lacks_matrix_cores
from autofit.trial.workload import Workload

# The processor may be this many times as fast as expected: two prior standard deviations.
_CPU_UNCERTAINTY = 4.0
_UBATCH = 2048


def relevant_space(
    space: Space,
    inventory: ModelInventory,
    workload: Workload,
    devices: Sequence[Device],
    cores: Cores,
) -> Space:
    """Return the space without the values that physics rules out.

    `numa` needs several memory nodes. Without flash attention, only cards without matrix cores
    may be faster. To compute large batches on the processor, it must be fast or the link slow.
    """
    if cores.nodes < 2:  # noqa: PLR2004
        space = _without(space, "numa", lambda _: True)
    if not devices:
        return _without(space, "op_offload", lambda _: True)
    if all(lacks_matrix_cores(device) is False for device in devices):
        space = _without(space, "flash_attn", lambda value: str(value) == "off")
    if not _may_cpu_be_faster(inventory, workload, devices, cores):
        space = _without(space, "op_offload", lambda _: True)
    return space


def _without(space: Space, name: str, is_useless: Callable[[ParamValue], bool]) -> Space:
    """Return the space without useless values of an axis, unless the user wrote no others."""
    axis = space.axis(name)
    if axis is None or len(axis.values) < 2:  # noqa: PLR2004
        return space
    return space.with_values(name, lambda value: not is_useless(value))


def _may_cpu_be_faster(
    inventory: ModelInventory, workload: Workload, devices: Sequence[Device], cores: Cores
) -> bool:
    """Return whether the processor may compute a batch sooner than its experts are uploaded."""
    if all(device.is_unified for device in devices):
        return False  # nothing is uploaded
    traffic = model_traffic(inventory, 1)
    tokens = min(_UBATCH, max(request.prompt_tokens for request in workload.requests))
    fastest = max((device.link_gb_s or 0.0 for device in devices), default=0.0)
    computing_s = cpu_prompt_s(traffic, cores.performance) * tokens
    return computing_s / _CPU_UNCERTAINTY < upload_s(traffic, fastest or None)
