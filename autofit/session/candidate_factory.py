"""Candidates of a task: a point of its search space, laid out on its devices."""

from __future__ import annotations

from dataclasses import dataclass, field

from autofit.errors import UsageError
from autofit.memory.demand import without_free_settings
from autofit.model.placement.layout import SINGLE, plan_layout
from autofit.model.placement.slice_costs import find_tensor_split
from autofit.runtime.command.argv_writer import find_unsupported
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, Params
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS, PLACEMENT_PARAMS


@dataclass(slots=True)
class CandidateFactory:
    """Turns points of a task's search space into candidates, and remembers their placements."""

    task: Task
    _placements: dict[str, Params | None] = field(default_factory=dict)
    _pinned: Params | None = None

    def layout_names(self) -> tuple[str, ...]:
        """Return the space's layouts for the devices of the task; one device has one layout."""
        devices, names = self.task.devices, self.task.space.layouts
        if not devices or not names:
            return ()
        singles = [f"{SINGLE}{device.name}" for device in devices]
        if len(devices) == 1:
            return tuple(singles)
        shared = [name for name in names if name != "single"]
        return (*shared, *(singles if "single" in names else ()))

    def most_host_layers(self) -> int:
        """Return how many layers can have their experts in system RAM, or in a dense model lie."""
        inventory = self.task.inventory
        return len(inventory.expert_blocks) if inventory.is_moe else inventory.block_count

    def candidate_of(self, point: Point) -> Candidate | None:
        """Return a point's candidate; None where space, runtime or devices do not allow it."""
        task = self.task
        if not task.space.allows(point) or _has_nothing_to_fetch(point):
            return None
        known = {
            name: value
            for name, value in task.space.params_of(point).items()
            if task.runtime.supports(name)
        }
        candidate = Candidate({**task.task_params, **known})
        if LAYOUT_AXIS not in point:
            if self._pinned is None:
                self._pinned = pinned_placement(task)
            candidate = candidate.with_params(**self._pinned)
        else:
            placement = self._place(
                candidate, str(point[LAYOUT_AXIS]), int(point[HOST_LAYERS_AXIS])
            )
            if placement is None:
                return None
            candidate = candidate.with_params(**placement)
        return None if find_unsupported(task.runtime, candidate) else candidate

    def _place(self, candidate: Candidate, layout: str, host_layers: int) -> Params | None:
        base = without_free_settings(candidate, devices_only=True)
        key = f"{base.key} {layout} {host_layers}"
        if key not in self._placements:
            devices = self.task.devices
            placed = plan_layout(self.task.inventory, base, devices, layout, host_layers)
            is_as_asked = placed.slices and placed.host_expert_layers == host_layers
            self._placements[key] = placed.params if is_as_asked else None
        return self._placements[key]


def _has_nothing_to_fetch(point: Point) -> bool:
    """Return whether a point prefetches or caches experts that are all on devices."""
    if point.get(HOST_LAYERS_AXIS) != 0:
        return False
    return any(point.get(name) for name in EXPERT_MEMORY_PARAMS)


def pinned_placement(task: Task) -> Params:
    """Return what a placement that the user pinned leaves open: devices, layers and slices.

    Without these the runtime would use devices that the user did not name, offload as it
    chooses, and cut slices by the memory that happens to be free.
    """
    pinned = task.space.pinned
    if not task.devices or not set(PLACEMENT_PARAMS) & set(pinned):
        return {}
    placement: Params = {
        "devices": ",".join(device.name for device in task.devices),
        "n_gpu_layers": task.inventory.units,
    }
    placement = {
        name: pinned.get(name, value)
        for name, value in placement.items()
        if task.runtime.supports(name)
    }
    if "tensor_split" in pinned or not task.runtime.supports("tensor_split"):
        return placement
    point = next(task.space.points(), {})
    params = {**task.task_params, **task.space.params_of(point), **placement}
    try:
        split = find_tensor_split(task.inventory, Candidate(params), task.devices)
    except UsageError:  # a placement that is beyond our arithmetic
        split = None
    return placement if split is None else {**placement, "tensor_split": split}
