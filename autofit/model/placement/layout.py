"""Layouts worth a launch: the layers of each device, and the experts on the host.

| name            | rule                                                                       |
| --------------- | -------------------------------------------------------------------------- |
| balanced        | equal host expert layers per device, layers as equal as memory allows      |
| capacity        | the fewest host expert layers in total, memory used evenly                 |
| first_device    | all host expert layers in the first device's slice, from its first layer   |
| single:<device> | one device, the experts of the first layers on the host                    |
| tensor          | every device has a part of every layer, and nothing is on the host         |

A name such as `capacity:CUDA1,CUDA0` limits a rule to these devices, in this order. The first
device computes large batches on host experts, so it should have the fastest link.

In a model without experts, the dense feed-forward of layers moves instead. If even that is not
enough, whole layers stay on the host, from the first. A layout that cannot fit has `fits` False.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from autofit.model.placement.slice_costs import (
    ExpertMode,
    SliceCosts,
    apportion,
    slice_costs,
)
from autofit.model.placement.slices import SliceProblem, Slices, SliceSolver
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.model.sizes.tensor_placement import offloaded_units, used_devices
from autofit.trial.candidate import Candidate, Params, ParamValue
from autofit.trial.device import Device
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.units import MIB

SINGLE = "single:"
TENSOR = "tensor"
_UNHOSTED_MODES: tuple[ExpertMode, ...] = ("pipelined", "unpipelined")
_PART_MIB = 256.0  # of memory for each part of a tensor split
_CORRECTIONS = 4  # attempts to reduce budgets by the excess of the estimate over the solver's sum
_NARROW = 2  # units that a first device should have room for
# Above this a device can have much unused memory, so one layer can be partly on the host.
_LARGE_LAYER_MIB = 400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlice:
    """The slice of one device: its first and last layer, or None if it has only the output.

    `host_experts` are the layers with experts on the host. `partial` maps a layer to the only part
    of it that is on the host: `up_gate` or `down`.
    """

    device: str
    layers: tuple[int, int] | None
    output: bool
    host_experts: tuple[int, ...] = ()
    partial: Mapping[int, str] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """Number of units in a tensor split."""
        layers = self.layers[1] - self.layers[0] + 1 if self.layers else 0
        return layers + int(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A named placement of all layers; `params` are its settings among `PLACEMENT_PARAMS`."""

    name: str
    params: Params
    slices: tuple[DeviceSlice, ...]
    estimate: MemoryEstimate

    @property
    def fits(self) -> bool:
        """True if every device has enough memory, by the estimate."""
        return bool(self.slices) and self.estimate.fits

    @property
    def host_expert_layers(self) -> int:
        """Number of layers in slices with some or all experts on the host."""
        return sum(len(piece.host_experts) for piece in self.slices)

    def candidate(self, base: Candidate) -> Candidate:
        """Return settings with this layout instead of any other."""
        return base.with_params(**(dict.fromkeys(PLACEMENT_PARAMS) | dict(self.params)))


def plan_layouts(
    inventory: ModelInventory, base: Candidate, devices: Sequence[Device]
) -> list[Layout]:
    """Return all layouts for the devices, each with the fewest host expert layers that fit.

    `first_device` is left out if only one device has room, because it equals a single one. `base`
    has the other settings, and the names of the devices to use, out of the machine's `devices` in
    the runtime's order.

    Raises:
        UsageError: a device that does not exist, or an invalid value.
    """
    used = used_devices(base, devices)
    names = [*LAYOUTS] if len(used) > 1 else []
    names += [f"{SINGLE}{device.name}" for device in used]
    found = [plan_layout(inventory, base, used, name, None) for name in names]
    return [layout for layout in found if layout.name != "first_device" or len(layout.slices) != 1]


def plan_layout(
    inventory: ModelInventory,
    base: Candidate,
    devices: Sequence[Device],
    name: str,
    host_expert_layers: int | None,
) -> Layout:
    """Return a layout with a number of host expert layers, or None for the fewest that fit.

    The slices are computed again for each number.

    Raises:
        UsageError: a device that does not exist, or an invalid value.
        ValueError: there is no layout of that name.
    """
    used = {device.name: device for device in used_devices(base, devices)}
    rule, _, named = name.partition(":")
    order = named.split(",") if named else list(used)
    if not order or not used.keys() >= set(order) or rule not in (*_RULES, SINGLE[:-1], TENSOR):
        raise ValueError(f"there is no layout {name} for {', '.join(d.name for d in devices)}")
    ordered = tuple(used[device] for device in order)
    if rule == TENSOR:
        return _tensor_layout(inventory, base, ordered, name)
    planner = _Planner(inventory=inventory, base=base, devices=ordered, name=name)
    return planner.plan(host_expert_layers)


def _tensor_layout(
    inventory: ModelInventory, base: Candidate, devices: tuple[Device, ...], name: str
) -> Layout:
    """Return the layout with a part of every layer on each device.

    Parts are equal, because all devices wait for the slowest. If a device has no memory for that,
    they are in proportion to memory.
    """

    def with_parts(parts: Sequence[int]) -> Layout:
        params: dict[str, ParamValue] = {
            "devices": ",".join(device.name for device in devices),
            "n_gpu_layers": inventory.units,
            "split_mode": TENSOR,
            "tensor_split": ",".join(map(str, parts)),
        }
        candidate = base.with_params(**{**dict.fromkeys(PLACEMENT_PARAMS), **params})
        layers = (0, inventory.block_count - 1)
        slices = (DeviceSlice(device=d.name, layers=layers, output=True) for d in devices)
        estimate = estimate_memory(inventory, candidate, devices)
        return Layout(name=name, params=params, slices=tuple(slices), estimate=estimate)

    equal = with_parts([1] * len(devices))
    if equal.fits:
        return equal
    uneven = with_parts([max(1, round(device.usable_mib / _PART_MIB)) for device in devices])
    return uneven if uneven.fits else equal


_Rule = Callable[[SliceSolver, int | None], Slices | None]


def _capacity(solver: SliceSolver, hosted: int | None) -> Slices | None:
    return solver.minimize_hosted() if hosted is None else solver.tightest(hosted)


def _balanced(solver: SliceSolver, hosted: int | None) -> Slices | None:
    count = len(solver.problem.budgets)
    shares, targets = [1.0] * count, [len(solver.problem.fixed) / count] * count
    if hosted is not None:
        equal = solver.spread_tightest(apportion(hosted, shares), targets)
        if equal and (hosted < solver.movable_layers or solver.fits(equal)):
            return equal
        return solver.tightest(hosted)  # some device is too small for its share
    fewest = solver.minimize_hosted()
    if fewest is None:
        return None
    for total in range(len(fewest.host_layers), solver.movable_layers + 1):
        found = solver.spread(apportion(total, shares), targets)
        if found:
            return found
    return fewest  # some device is too small for an equal share


def _first_device(solver: SliceSolver, hosted: int | None) -> Slices | None:
    others = [0] * (len(solver.problem.budgets) - 1)
    if hosted is not None:
        return solver.spread_tightest([hosted, *others]) or solver.tightest(hosted)
    for total in range(solver.movable_layers + 1):
        found = solver.spread([total, *others])
        if found:
            return solver.spread_tightest([total, *others])
    return None


_RULES: dict[str, _Rule] = {
    "balanced": _balanced,
    "capacity": _capacity,
    "first_device": _first_device,
}
# The layouts of several devices.
LAYOUTS = tuple(_RULES)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """A planner of one layout: it chooses slices and host layers, and checks the estimate."""

    inventory: ModelInventory
    base: Candidate
    devices: tuple[Device, ...]
    name: str

    @property
    def rule(self) -> str:
        """The rule that the name of the layout begins with."""
        return self.name.partition(":")[0]

    def plan(self, hosted: int | None) -> Layout:
        """Return the layout with a number of host expert layers, or None for the fewest that fit.

        If it does not fit, or if the first device has room for hardly a layer, layouts without
        one device are tried too. The capacity layout is never worse than a single device.
        """
        best = self.plan_all(hosted)
        if len(self.devices) == 1:
            return best
        if hosted is not None and not best.fits and not _fits_fully_hosted(self):
            # Every number of layers leaves the first device out, so that their layouts are
            # comparable.
            fewer = replace(self, devices=self.devices[1:])
            return fewer.plan(hosted) if fewer.plan(None).fits else best
        rivals: list[Layout] = []
        if not best.fits or self._is_first_device_narrow():
            rivals.append(replace(self, devices=self.devices[1:]).plan(hosted))
            if hosted is None:
                for left_out in self.devices[1:]:
                    others = tuple(device for device in self.devices if device != left_out)
                    rivals.append(replace(self, devices=others).plan_all(None))
        if self.rule == "capacity" and hosted is None:
            rivals += [replace(self, devices=(device,)).plan_all(None) for device in self.devices]
        for rival in rivals:
            # Whole layers on the host do not make up for too few host experts.
            is_comparable = hosted is None or _units(rival) >= _units(best)
            if is_comparable and _rank(rival) < _rank(best):
                best = rival
        return best

    def _is_first_device_narrow(self) -> bool:
        problem = self._skipping(0).solver("hosted").problem
        largest = max(map(sum, zip(problem.fixed, (*problem.movable, 0), strict=True)))
        return problem.budgets[0] < problem.overheads[0][False][True] + _NARROW * largest

    def plan_all(self, hosted: int | None) -> Layout:
        """Return the layout over all devices. The first device always gets a slice."""
        costs = self._costs()
        if not hosted:
            found: Layout | None = None
            modes = _UNHOSTED_MODES[-1:] if len(self.devices) == 1 else _UNHOSTED_MODES
            for mode in modes:
                layout = self._solve(costs, mode, hosted)
                if layout and layout.fits:
                    return layout
                found = layout or found
            if hosted == 0 and found:
                return found
        solved = self._solve(costs, "hosted", hosted)
        if solved is None:
            movable = sum(1 for block in costs.blocks if costs.movable_bytes(block))
            solved = self._solve(costs, "hosted", movable)
        return solved or self._layout(costs, Slices((), ()), "hosted")

    def _costs(self) -> SliceCosts:
        """Return costs with as few first layers on the host as leave room for the rest."""
        total = self.inventory.units
        pinned = offloaded_units(self.inventory, self.base)
        if pinned < total:
            return self._skipping(total - pinned)
        if self._skipping(0).has_room:
            return self._skipping(0)
        low, high = 0, total - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._skipping(middle).has_room else (middle, high)
        return self._skipping(high) if self._skipping(high).has_room else self._skipping(0)

    def _skipping(self, skipped: int) -> SliceCosts:
        return slice_costs(self.inventory, self.base, self.devices, skipped)

    def _solve(self, costs: SliceCosts, mode: ExpertMode, hosted: int | None) -> Layout | None:
        """Solve; repeat with lower budgets while the estimate exceeds the solver's sum."""
        is_ordered = self.rule not in ("balanced", "capacity")
        solver = costs.solver(mode, is_ordered=is_ordered)
        rule = _RULES.get(self.rule, _capacity)
        best: Layout | None = None
        for _ in range(_CORRECTIONS):
            slices = rule(solver, hosted)
            if slices is None:
                break
            layout = self._layout(costs, slices, mode)
            if best is None or _least_free_mib(layout) > _least_free_mib(best):
                best = layout
            if layout.fits or not solver.fits(slices):
                break
            solver = SliceSolver(self._tighten(solver, slices, layout))
        if best and hosted is None and best.fits and mode == "hosted":
            return self._with_parts(costs, best)
        return best

    def _tighten(self, solver: SliceSolver, slices: Slices, layout: Layout) -> SliceProblem:
        """Reduce the budgets of full devices by the estimate's excess over the solver's sum."""
        rows = {row.name: row for row in layout.estimate.devices if not row.fits}
        budgets = []
        start = 0
        for index, (device, units) in enumerate(zip(self.devices, slices.units, strict=True)):
            budget, end = solver.problem.budgets[index], start + units
            row = rows.get(device.name)
            if row is not None:
                solved = solver.used_bytes(index, start, end, len(slices.hosted[index]))
                excess = row.total_mib * MIB - solved
                over = int((1 - row.free_mib) * MIB)
                budget = min(budget - over, int(device.usable_mib * MIB - excess))
            budgets.append(budget)
            start = end
        return replace(solver.problem, budgets=tuple(budgets))

    def _with_parts(self, costs: SliceCosts, layout: Layout) -> Layout:
        """Move a part of a large layer back to each device that has room for it."""
        free = {row.name: row.free_mib for row in layout.estimate.devices}
        partial: dict[int, str] = {}
        for piece in layout.slices:
            partial |= self._partial_layer(piece.host_experts, free[piece.device])
        if not partial:
            return layout
        units = {piece.device: piece.units for piece in layout.slices}
        hosted = sorted(block for piece in layout.slices for block in piece.host_experts)
        params = costs.params(
            [units.get(device.name, 0) for device in self.devices], hosted, "hosted", partial
        )
        better = self._build(params, layout.slices, partial)
        return better if better.fits else layout

    def _partial_layer(self, hosted: Sequence[int], free_mib: float) -> dict[int, str]:
        """Map the last hosted layer to the part that stays on the host, if the layer is large.

        The other part must have room. Up and gate move together: they have the same input.
        """
        if not hosted:
            return {}
        block = self.inventory.blocks[max(hosted)]
        if block.expert_bytes <= _LARGE_LAYER_MIB * MIB or not block.expert_down_bytes:
            return {}
        moved = {"down": block.expert_up_gate_bytes, "up_gate": block.expert_down_bytes}
        for part, nbytes in moved.items():
            if 0 < nbytes <= free_mib * MIB:
                return {block.index: part}
        return {}

    def _layout(self, costs: SliceCosts, slices: Slices, mode: ExpertMode) -> Layout:
        hosted = [costs.skipped + layer for layer in slices.host_layers]
        params = costs.params(slices.units or [0] * len(self.devices), hosted, mode)
        pieces = []
        start = costs.skipped
        for device, n, layers in zip(self.devices, slices.units, slices.hosted, strict=False):
            last = min(start + n, self.inventory.block_count) - 1
            if n:
                pieces.append(
                    DeviceSlice(
                        device=device.name,
                        layers=(start, last) if last >= start else None,
                        output=start + n == self.inventory.units,
                        host_experts=tuple(costs.skipped + layer for layer in layers),
                    )
                )
            start += n
        return self._build(params, tuple(pieces), {})

    def _build(
        self, params: Params, pieces: tuple[DeviceSlice, ...], partial: Mapping[int, str]
    ) -> Layout:
        candidate = self.base.with_params(**(dict.fromkeys(PLACEMENT_PARAMS) | dict(params)))
        estimate = estimate_memory(self.inventory, candidate, self.devices)
        pieces = tuple(
            replace(piece, partial={b: partial[b] for b in piece.host_experts if b in partial})
            for piece in pieces
        )
        return Layout(name=self.name, params=params, slices=pieces, estimate=estimate)


def _rank(layout: Layout) -> tuple[bool, int, int]:
    """Return a rank, lower is better: fits, fewer whole layers on the host, fewer experts."""
    return (not layout.fits, -_units(layout), layout.host_expert_layers)


# This is called for every number of host layers with the same base.
@lru_cache(maxsize=64)
def _fits_fully_hosted(planner: _Planner) -> bool:
    """Return whether a layout fits if all experts are on the host."""
    return planner.plan_all(planner.inventory.block_count).fits


def _units(layout: Layout) -> int:
    """Return the number of units on devices."""
    return int(layout.params.get("n_gpu_layers", 0))


def _least_free_mib(layout: Layout) -> float:
    return min((row.free_mib for row in layout.estimate.devices), default=0.0)
