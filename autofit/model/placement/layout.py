"""Layouts worth measuring: which device gets which layers, and which experts go to the host.

| name            | rule                                                                      |
| --------------- | ------------------------------------------------------------------------- |
| balanced        | equal host expert layers per device, layers as equal as memory allows     |
| capacity        | the fewest host expert layers in all, memory used evenly                  |
| first_device    | all host expert layers in the first device's slice, the first ones        |
| single:<device> | one device, the first layers' experts on the host                         |

A model without experts moves the dense feed-forward of layers instead. Where even that is not
enough, the first layers stay with the host whole. A layout that cannot fit says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from autofit.model.placement.partial_layer import partial_layers
from autofit.model.placement.placed_layers import offloaded_units, used_devices
from autofit.model.placement.slice_cost import (
    Keeping,
    SliceCosts,
    shared_out,
    slice_costs,
)
from autofit.model.placement.slices import SliceProblem, Slices, SliceSolver
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.trial.candidate import Candidate, Params
from autofit.trial.device import Device
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.units import MIB

_CORRECTIONS = 4  # how often budgets are tightened by what the estimate finds above them
_NARROW = 2  # units that a first device should have room for
SINGLE = "single:"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlice:
    """The slice of one device: first and last layer, None where it has only the output.

    `host_experts` are the layers whose experts are on the host; of those in `partial`, only
    the part named there: `up_gate` or `down`.
    """

    device: str
    layers: tuple[int, int] | None
    output: bool
    host_experts: tuple[int, ...] = ()
    partial: Mapping[int, str] = field(default_factory=dict)

    @property
    def units(self) -> int:
        """What it counts for in a tensor split."""
        layers = self.layers[1] - self.layers[0] + 1 if self.layers else 0
        return layers + int(self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A named way to lie on devices: `params` are all settings of `PLACEMENT_PARAMS` it has."""

    name: str
    params: Params
    slices: tuple[DeviceSlice, ...]
    estimate: MemoryEstimate

    @property
    def fits(self) -> bool:
        """Whether every device has room, by the estimate."""
        return bool(self.slices) and self.estimate.fits

    @property
    def host_expert_layers(self) -> int:
        """How many layers of slices have experts on the host, in part or whole."""
        return sum(len(piece.host_experts) for piece in self.slices)

    def candidate(self, base: Candidate) -> Candidate:
        """The settings with this layout's in place of any other's."""
        cleared = base.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
        return cleared.with_params(**self.params)


def layouts(
    inventory: ModelInventory,
    base: Candidate,
    devices: Sequence[Device],
    *,
    speeds: Mapping[str, float] | None = None,
) -> list[Layout]:
    """All layouts for the devices, each with the fewest host expert layers that fit.

    Without `first_device` where only one device has room: it would be a single one's.

    Args:
        inventory: the model.
        base: the other settings; its `devices` are those used.
        devices: those of the machine, in the runtime's order.
        speeds: by device name, in any unit: the balanced layout gives faster ones more.

    Raises:
        UsageError: a device that is not there, or a setting's value that is none.
    """
    used = used_devices(base, devices)
    names = ["balanced", "capacity", "first_device"] if len(used) > 1 else []
    names += [f"{SINGLE}{device.name}" for device in used]
    found = [layout_with(inventory, base, used, name, None, speeds=speeds) for name in names]
    return [layout for layout in found if layout.name != "first_device" or len(layout.slices) != 1]


def layout_with(
    inventory: ModelInventory,
    base: Candidate,
    devices: Sequence[Device],
    name: str,
    host_expert_layers: int | None,
    *,
    speeds: Mapping[str, float] | None = None,
) -> Layout:
    """The layout with so many host expert layers, None for the fewest that fit.

    Slices are cut anew for each number. What does not fit has `fits` False.

    Raises:
        UsageError: a device that is not there, or a setting's value that is none.
        ValueError: no layout of that name.
    """
    used = used_devices(base, devices)
    if name.startswith(SINGLE):
        used = tuple(device for device in used if device.name == name.removeprefix(SINGLE))
    if not used or (name not in _RULES and not name.startswith(SINGLE)):
        raise ValueError(f"no layout {name} for {', '.join(d.name for d in devices)}")
    planner = _Planner(
        inventory=inventory,
        base=base,
        devices=used,
        name=name,
        shares=tuple((speeds or {}).get(device.name, 1.0) for device in used),
    )
    return planner.plan(host_expert_layers)


_Rule = Callable[[SliceSolver, int | None, Sequence[float]], Slices | None]


def _capacity(solver: SliceSolver, hosted: int | None, _: Sequence[float]) -> Slices | None:
    return solver.fewest() if hosted is None else solver.fewest_within(hosted)


def _balanced(solver: SliceSolver, hosted: int | None, shares: Sequence[float]) -> Slices | None:
    units = len(solver.problem.fixed)
    targets = [units * share / sum(shares) for share in shares]
    if hosted is not None:
        equal = solver.spread_tightly(shared_out(hosted, shares), targets)
        if equal and (hosted < solver.movable_layers or solver.fits(equal)):
            return equal
        return solver.fewest_within(hosted)  # some device is too small for its share
    fewest = solver.fewest()
    if fewest is None:
        return None
    for total in range(len(fewest.host_layers), solver.movable_layers + 1):
        found = solver.spread(shared_out(total, shares), targets)
        if found:
            return found
    return fewest  # some device is too small for an equal share


def _first_device(solver: SliceSolver, hosted: int | None, _: Sequence[float]) -> Slices | None:
    others = [0] * (len(solver.problem.budgets) - 1)
    if hosted is not None:
        return solver.spread_tightly([hosted, *others]) or solver.fewest_within(hosted)
    for total in range(solver.movable_layers + 1):
        found = solver.spread([total, *others])
        if found:
            return solver.spread_tightly([total, *others])
    return None


_RULES: dict[str, _Rule] = {
    "balanced": _balanced,
    "capacity": _capacity,
    "first_device": _first_device,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Plans one layout: chooses what stays on the host, cuts, and checks by the estimate."""

    inventory: ModelInventory
    base: Candidate
    devices: tuple[Device, ...]
    name: str
    shares: tuple[float, ...]

    def plan(self, hosted: int | None) -> Layout:
        """With so many host expert layers, None for the fewest that fit.

        Where it does not fit, or the first device can hardly hold a layer, it is tried without
        each device; the capacity layout is never worse than any one device alone.
        """
        best = self.with_all(hosted)
        if len(self.devices) == 1:
            return best
        if hosted is not None and not best.fits and not _holds_all(self):
            # The first device is left out for every number alike, so that they compare.
            fewer = self._using(self.devices[1:])
            return fewer.plan(hosted) if fewer.plan(None).fits else best
        rivals: list[Layout] = []
        if not best.fits or self._is_narrow(self._skipping(0)):
            rivals.append(self._using(self.devices[1:]).plan(hosted))
            if hosted is None:
                count = len(self.devices)
                rivals += [self._without(index).with_all(None) for index in range(1, count)]
        if self.name == "capacity" and hosted is None:
            rivals += [self._using((device,)).with_all(None) for device in self.devices]
        for rival in rivals:
            # Other layers kept off the devices whole do not make up for too few host experts.
            is_alike = hosted is None or _units(rival) >= _units(best)
            if is_alike and _rank(rival) < _rank(best):
                best = rival
        return best

    def _without(self, index: int) -> _Planner:
        return self._using(self.devices[:index] + self.devices[index + 1 :])

    def _using(self, devices: tuple[Device, ...]) -> _Planner:
        shares = dict(zip(self.devices, self.shares, strict=True))
        return replace(self, devices=devices, shares=tuple(shares[d] for d in devices))

    def _is_narrow(self, costs: SliceCosts) -> bool:
        problem = costs.solver("hosted").problem
        largest = max(map(sum, zip(problem.fixed, (*problem.movable, 0), strict=True)))
        return problem.budgets[0] < problem.overheads[0][False][True] + _NARROW * largest

    def with_all(self, hosted: int | None) -> Layout:
        """The layout over all devices, the first of which always has a slice."""
        costs = self._costs()
        if not hosted:
            found = [
                layout
                for keeping in (("pipelined", "whole") if len(self.devices) > 1 else ("whole",))
                if (layout := self._solved(costs, keeping, hosted)) is not None
            ]
            fitting = [layout for layout in found if layout.fits]
            if fitting:
                return fitting[0]
            if hosted == 0 and found:
                return found[-1]
        solved = self._solved(costs, "hosted", hosted)
        if solved is None:
            movable = sum(1 for block in costs.blocks if costs.movable_bytes(block))
            solved = self._solved(costs, "hosted", movable)
        return solved or self._layout(costs, Slices((), ()), "hosted")

    def _costs(self) -> SliceCosts:
        """With as few first layers on the host as leaves room for the others."""
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

    def _solved(self, costs: SliceCosts, keeping: Keeping, hosted: int | None) -> Layout | None:
        """Solve, and again with tighter budgets while the estimate finds more than thought."""
        is_ordered = self.name not in ("balanced", "capacity")
        solver = costs.solver(keeping, is_ordered=is_ordered)
        rule = _RULES.get(self.name, _capacity)
        best: Layout | None = None
        for _ in range(_CORRECTIONS):
            slices = rule(solver, hosted, self.shares)
            if slices is None:
                break
            layout = self._layout(costs, slices, keeping)
            if best is None or _least_free_mib(layout) > _least_free_mib(best):
                best = layout
            if layout.fits or not solver.fits(slices):
                break
            solver = SliceSolver(self._tightened(solver, slices, layout))
        if best and hosted is None and best.fits and keeping == "hosted":
            return self._with_parts(costs, best)
        return best

    def _tightened(self, solver: SliceSolver, slices: Slices, layout: Layout) -> SliceProblem:
        """With what the estimate finds above the solver's sum taken from full devices."""
        rows = {row.name: row for row in layout.estimate.devices if not row.fits}
        budgets = []
        start = 0
        for index, (device, units) in enumerate(zip(self.devices, slices.units, strict=True)):
            budget, end = solver.problem.budgets[index], start + units
            row = rows.get(device.name)
            if row is not None:
                thought = solver.used_bytes(index, start, end, len(slices.hosted[index]))
                unseen = row.total_mib * MIB - thought
                over = int((1 - row.free_mib) * MIB)
                budget = min(budget - over, int(device.usable_mib * MIB - unseen))
            budgets.append(budget)
            start = end
        return replace(solver.problem, budgets=tuple(budgets))

    def _with_parts(self, costs: SliceCosts, layout: Layout) -> Layout:
        """Large layers back in part where a device has room for it."""
        free = {row.name: row.free_mib for row in layout.estimate.devices}
        partial: dict[int, str] = {}
        for piece in layout.slices:
            partial |= partial_layers(self.inventory, piece.host_experts, free[piece.device])
        if not partial:
            return layout
        units = {piece.device: piece.units for piece in layout.slices}
        hosted = sorted(block for piece in layout.slices for block in piece.host_experts)
        params = costs.params(
            [units.get(device.name, 0) for device in self.devices], hosted, "hosted", partial
        )
        better = self._estimated(params, layout.slices, partial)
        return better if better.fits else layout

    def _layout(self, costs: SliceCosts, slices: Slices, keeping: Keeping) -> Layout:
        hosted = [costs.skipped + layer for layer in slices.host_layers]
        params = costs.params(slices.units or [0] * len(self.devices), hosted, keeping)
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
        return self._estimated(params, tuple(pieces), {})

    def _estimated(
        self, params: Params, pieces: tuple[DeviceSlice, ...], partial: Mapping[int, str]
    ) -> Layout:
        cleared = self.base.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
        estimate = estimate_memory(self.inventory, cleared.with_params(**params), self.devices)
        pieces = tuple(
            replace(piece, partial={b: partial[b] for b in piece.host_experts if b in partial})
            for piece in pieces
        )
        return Layout(name=self.name, params=params, slices=pieces, estimate=estimate)


def _rank(layout: Layout) -> tuple[bool, int, int]:
    """Lower is better: what fits, then fewer layers left to the host whole, then fewer experts."""
    return (not layout.fits, -_units(layout), layout.host_expert_layers)


# Asked again for every number of host layers of one base.
@lru_cache(maxsize=64)
def _holds_all(planner: _Planner) -> bool:
    """Whether it fits with all the host expert layers that there can be."""
    return planner.with_all(planner.inventory.block_count).fits


def _units(layout: Layout) -> int:
    """How many layers lie on devices at all, the output layer with them."""
    return int(layout.params.get("n_gpu_layers", 0))


def _least_free_mib(layout: Layout) -> float:
    return min((row.free_mib for row in layout.estimate.devices), default=0.0)
