"""The factory of candidates: it places a point of the search space on the devices of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.errors import UsageError
from autofit.machine.rpc_servers import split_endpoint
from autofit.memory.demand import without_free_settings
from autofit.model.placement.device_orders import device_orders
from autofit.model.placement.layout import SINGLE, TENSOR, plan_layout
from autofit.model.placement.slice_costs import find_tensor_split
from autofit.runtime.command.argv_writer import find_unsupported
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, Params
from autofit.trial.device import backend_of
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS, PLACEMENT_PARAMS
from autofit.units import MIB


@dataclass(slots=True)
class CandidateFactory:
    """A factory that converts points of a search space to candidates and caches placements."""

    task: Task
    _placements: dict[str, Params | None] = field(default_factory=dict)
    _pinned: Params | None = None

    def layout_names(self) -> tuple[str, ...]:
        """Return the space's layouts for the devices of the task. A single device has only one.

        Layouts of several devices come in each order that may matter.
        """
        devices, names = self.task.devices, self.task.space.layouts
        if not devices or not names:
            return ()
        singles = [f"{SINGLE}{device.name}" for device in devices]
        if len(devices) == 1:
            return tuple(singles)
        rules = [name for name in names if name not in ("single", TENSOR)]
        orders = device_orders(devices, is_order_chosen=self.task.chooses_devices)
        others = [",".join(device.name for device in order) for order in orders[1:]]
        ordered = [f"{rule}:{order}" for order in others for rule in rules]
        divided = (TENSOR,) if TENSOR in names and can_divide_layers(self.task) else ()
        return (*rules, *ordered, *(singles if "single" in names else ()), *divided)

    def most_host_layers(self) -> int:
        """Return the largest number of host layers.

        That is the number of layers with experts, or of all layers of a dense model.
        """
        inventory = self.task.inventory
        return len(inventory.expert_blocks) if inventory.is_moe else inventory.block_count

    def candidate_of(self, point: Point) -> Candidate | None:
        """Return a point's candidate, or None if space, runtime or devices do not allow it."""
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
    """Return whether a point prefetches or caches experts that no device computes.

    They are all on devices, or the processor computes them without op offload.
    """
    if point.get(HOST_LAYERS_AXIS) != 0 and point.get("op_offload", True):
        return False
    return any(point.get(name) for name in EXPERT_MEMORY_PARAMS)


def can_divide_layers(task: Task) -> bool:
    """Return whether every layer may be divided over all devices.

    The runtime must be able to, the devices must be local and of one kind, and the model must
    have room on them as a whole.
    """
    devices = task.devices
    usable_mib = sum(device.usable_mib for device in devices)
    return (
        task.runtime.supports("split_mode", TENSOR)
        and "split_mode" not in task.space.pinned
        and len({backend_of(device.name) for device in devices}) == 1
        and not any(split_endpoint(device.description) for device in devices)
        and task.inventory.total_bytes / MIB < usable_mib
    )


def pinned_placement(task: Task) -> Params:
    """Return the placement settings that the user did not pin: devices, layers and slices.

    Without these the runtime would use devices that the user did not name, decide itself how
    many layers to offload, and cut slices by the memory that is free at the moment.
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
    except UsageError:  # autofit's arithmetic does not cover this placement
        split = None
    return placement if split is None else {**placement, "tensor_split": split}


def reported_host_layers(
    layout: str,
    host_layers: int | None,
    candidate_of: Callable[[int], Candidate | None],
    units: int,
    *,
    fits: bool = True,
) -> int | None:
    """Convert a count of host layers to the `n_cpu_moe` value that users see.

    With several devices that is the count itself. On one device `n_cpu_moe` also counts leading
    layers without experts, and layers that are not on the device. Such layers make several
    values equivalent. The smallest of them is returned for a count that `fits`, the largest for
    another. For example, if the first three layers have no experts, the boundary is shown as 4
    that fit and 3 that do not, instead of 4 and 0.

    Args:
        layout: the name of the layout.
        host_layers: the count, or None if it is unknown.
        candidate_of: returns the candidate with a count of host layers.
        units: the model's layers and its output layer.
        fits: whether the count fits.
    """
    if host_layers is None or not layout.startswith(SINGLE):
        return host_layers
    candidate = candidate_of(host_layers)
    if candidate is None:
        return host_layers
    count = count_leading_layers(candidate, units, host_layers)
    more = None if fits else candidate_of(host_layers + 1)
    if more is None or more.params.get("n_gpu_layers") != candidate.params.get("n_gpu_layers"):
        return count
    return max(count, count_leading_layers(more, units, host_layers + 1) - 1)


def count_leading_layers(candidate: Candidate, units: int, host_layers: int) -> int:
    """Return the number of leading layers that have their experts in system RAM, on one device.

    A candidate without `n_cpu_moe` has none of them on the device.
    """
    left = max(0, units - candidate.get_int("n_gpu_layers", units))
    sent = candidate.get_int("n_cpu_moe", candidate.get_int("n_cpu_ffn", left + host_layers))
    return max(left, sent)
