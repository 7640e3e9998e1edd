"""How layers are shared among devices where a user has fixed how many keep their experts out.

llama.cpp shares them by free memory then, which differs from start to start and counts the
moved experts as if they were still there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from autofit.model.placement.placed_layers import HOST, offloaded_units, place, used_devices
from autofit.model.placement.slice_cost import slice_costs
from autofit.model.placement.slices import SliceSolver
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.trial.candidate import Candidate
from autofit.trial.device import Device
from autofit.trial.parameter_groups import PLACEMENT_PARAMS


def pinned_split(
    inventory: ModelInventory, candidate: Candidate, devices: Sequence[Device]
) -> str | None:
    """The `tensor_split` of a candidate that says all else of where layers lie.

    Units that add up to those on devices, so that they lie exactly so. Cut by what each device
    has room for; as llama.cpp would by itself where that does not fit. None where one device is
    all there is, or layers are not split.

    Raises:
        UsageError: a device that is not there, or a setting's value that is none.
    """
    used = used_devices(candidate, devices)
    is_split = candidate.get_str("split_mode", "layer") == "layer"
    if len(used) <= 1 or not is_split or "tensor_split" in candidate.params:
        return None
    placed = Counter(place(inventory, candidate, devices).units)
    own = ",".join(str(placed[index]) for index in range(len(used)))
    cut = _cut(inventory, candidate, used)
    if cut is None or placed[HOST] == inventory.units:
        return own
    splits = [candidate.with_params(tensor_split=split) for split in (cut, own)]
    free = [
        min(row.free_mib for row in estimate_memory(inventory, one, devices).devices)
        for one in splits
    ]
    return cut if free[0] >= 1 or free[0] >= free[1] else own


def _cut(inventory: ModelInventory, candidate: Candidate, used: tuple[Device, ...]) -> str | None:
    """The slices with memory used most evenly; None where the solver cannot know them."""
    if "override_tensor" in candidate.params:
        return None
    base = candidate.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
    skipped = inventory.units - offloaded_units(inventory, candidate)
    if skipped >= inventory.block_count:
        return None
    moved = candidate.get_int("n_cpu_moe" if inventory.is_moe else "n_cpu_ffn", 0)
    costs = slice_costs(inventory, base, used, skipped)
    problem = costs.solver("hosted" if moved else "pipelined").problem
    kept = [
        amount if block.index >= moved else 0
        for block, amount in zip(costs.blocks, problem.movable, strict=True)
    ]
    fixed = [have + more for have, more in zip(problem.fixed, (*kept, 0), strict=True)]
    solver = SliceSolver(replace(problem, fixed=tuple(fixed), movable=(0,) * len(kept)))
    slices = solver.fewest()
    return ",".join(str(units) for units in slices.units) if slices else None
