"""The memory of slices on each device, in the form that the solver in `slices` needs.

The compute buffer and the unreported memory of a slice do not depend on its length. They depend
on whether it has the output layer, and whether it keeps the experts of some layer. Estimates of
sample candidates measure them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal

from autofit.model.placement.slices import Overhead, SliceProblem, SliceSolver
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.sizes.run_settings import RunSettings
from autofit.model.sizes.tensor_placement import (
    CPU_BUFFER,
    HOST,
    NO_PIPELINE_RULE,
    dense_pattern,
    expert_pattern,
    offloaded_units,
    place_tensors,
    splits_layers,
    used_devices,
)
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import Device, backend_of
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.units import MIB

# Either all experts are on devices, with or without pipeline parallelism, or some on the host.
ExpertMode = Literal["pipelined", "unpipelined", "hosted"]


@dataclass(frozen=True)
class SliceCosts:
    """The memory that slices of a model need; the first `skipped` layers are on the host."""

    inventory: ModelInventory
    base: Candidate
    devices: tuple[Device, ...]
    skipped: int = 0
    _solvers: dict[tuple[ExpertMode, bool], SliceSolver] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _samples: dict[tuple[object, ...], int] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @cached_property
    def settings(self) -> Candidate:
        """The settings without those of a layout."""
        return self.base.with_params(**dict.fromkeys(PLACEMENT_PARAMS))

    @property
    def units(self) -> int:
        """Number of units that go to devices."""
        return self.inventory.units - self.skipped

    @cached_property
    def blocks(self) -> tuple[BlockInventory, ...]:
        """The blocks that go to devices."""
        return self.inventory.blocks[self.skipped :]

    def movable_bytes(self, block: BlockInventory) -> int:
        """Return the bytes of a block that can move alone: experts, or a dense model's FFN."""
        if block.is_nextn:
            return 0
        return block.expert_bytes if self.inventory.is_moe else block.dense_ffn_bytes

    def params(
        self,
        units: Sequence[int],
        hosted: Sequence[int],
        mode: ExpertMode = "hosted",
        partial: Mapping[int, str] | None = None,
    ) -> dict[str, ParamValue]:
        """Return the settings of a layout with these units by device.

        `hosted` are the blocks with experts (or the FFN of a dense model) on the host. `partial`
        maps a block to the only part of it that is on the host: `up_gate` or `down`.
        """
        used = [(d.name, n) for d, n in zip(self.devices, units, strict=True) if n]
        params: dict[str, ParamValue] = {
            "devices": ",".join(name for name, _ in used) or "none",
            "n_gpu_layers": self.units,
        }
        if len(used) > 1:
            params["tensor_split"] = ",".join(str(n) for _, n in used)
        if hosted:
            params |= self._host_params(hosted, partial or {})
        elif mode == "unpipelined" and len(used) > 1:
            params["override_tensor"] = NO_PIPELINE_RULE
        return params

    def _host_params(
        self, hosted: Sequence[int], partial: Mapping[int, str]
    ) -> dict[str, ParamValue]:
        """Return the setting that keeps blocks on the host: a count of first blocks, or a rule."""
        count = max(hosted) + 1
        movable = [
            block.index
            for block in self.inventory.blocks[:count]
            if self.movable_bytes(block) and block.index >= self.skipped
        ]
        is_moe = self.inventory.is_moe
        if sorted(hosted) == movable and not partial:
            return {"n_cpu_moe" if is_moe else "n_cpu_ffn": count}
        pattern = expert_pattern(hosted, partial) if is_moe else dense_pattern(hosted)
        return {"override_tensor": f"{pattern}={CPU_BUFFER}"}

    @cached_property
    def has_room(self) -> bool:
        """True if some cut fits without more layers on the host."""
        least = sum(self._fixed_bytes) + self.inventory.output_bytes
        # Checked first, because a solver needs many estimates for its overheads.
        if least > sum(device.usable_mib for device in self.devices) * MIB:
            return False
        return any(self.solver(mode).minimize_hosted() for mode in ("hosted", "unpipelined"))

    def solver(self, mode: ExpertMode, *, is_ordered: bool = False) -> SliceSolver:
        """Return the solver for an expert mode. Only in the mode `hosted` can experts move."""
        key = (mode, is_ordered)
        if key not in self._solvers:
            fixed = self._fixed_bytes
            movable = [self.movable_bytes(block) for block in self.blocks]
            if mode != "hosted":
                fixed = [f + m for f, m in zip(fixed, movable, strict=True)]
                movable = [0] * len(movable)
            problem = SliceProblem(
                fixed=(*fixed, self.inventory.output_bytes),
                movable=tuple(movable),
                budgets=tuple(int(device.usable_mib * MIB) for device in self.devices),
                overheads=tuple(self._overhead(i, mode) for i in range(len(self.devices))),
                is_ordered=is_ordered,
            )
            self._solvers[key] = SliceSolver(problem)
        return self._solvers[key]

    @cached_property
    def _fixed_bytes(self) -> list[int]:
        """Bytes of each block that cannot move, including its cache."""
        candidate = self.settings.with_params(devices=self.devices[0].name)
        placement = place_tensors(self.inventory, candidate, self.devices)
        run = RunSettings.of(self.inventory, candidate, placement)
        cached = run.cache_bytes if run.is_cache_offloaded else (0,) * len(run.cache_bytes)
        return [
            0 if block.is_nextn else block.total_bytes - self.movable_bytes(block) + nbytes
            for block, nbytes in zip(self.blocks, cached[self.skipped :], strict=True)
        ]

    def _overhead(self, index: int, mode: ExpertMode) -> Overhead:
        def sample(*, has_output: bool) -> tuple[int, int]:
            keeping = self._sample(index, mode, has_output=has_output, keeps_experts=True)
            if mode != "hosted" or not index:
                return keeping, keeping
            bare = self._sample(index, mode, has_output=has_output, keeps_experts=False)
            return bare, keeping

        return sample(has_output=False), sample(has_output=True)

    def _sample(
        self, index: int, mode: ExpertMode, *, has_output: bool, keeps_experts: bool
    ) -> int:
        """Return the bytes of a slice without weights and cache; equal devices share them."""
        last = len(self.devices) - 1
        if index == last:
            has_output = True
        backend = backend_of(self.devices[index].name)
        key = (index == 0, backend, mode, has_output, keeps_experts)
        if key not in self._samples:
            # The first device, the requested one, and one for the remaining units.
            parts = {0: 1, index: 1} | ({} if has_output else {last: 1})
            shares = [parts.get(device, 0) for device in range(last + 1)]
            units = apportion(self.units, shares)
            if not units[index]:  # fewer units than parts
                units = [self.units if device == index else 0 for device in range(last + 1)]
            end = self.skipped + sum(units[: index + 1])
            hosted: list[int] = []
            if mode == "hosted":
                hosted = [block.index for block in self.blocks if self.movable_bytes(block)]
                if keeps_experts and len(hosted) > 1:
                    # The last layer is no typical one: it computes only the output rows.
                    kept = [b for b in hosted if b < min(end, hosted[-1])]
                    hosted.remove(kept[-1] if kept else hosted[-1])
            params = self.params(units, hosted, mode)
            estimate = estimate_memory(
                self.inventory, self.settings.with_params(**params), self.devices
            )
            row = estimate.device(self.devices[index].name)
            self._samples[key] = int((row.compute_mib + row.other_mib) * MIB) + 1
        return self._samples[key]


# Layouts with different numbers of hosted layers share the costs.
slice_costs = lru_cache(maxsize=16)(SliceCosts)


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a total in proportion to shares, by the method of the largest remainder."""
    weight = sum(shares)
    exact = [total * share / weight for share in shares]
    counts = [int(part) for part in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: total - sum(counts)]:
        counts[index] += 1
    return counts


def find_tensor_split(
    inventory: ModelInventory, candidate: Candidate, devices: Sequence[Device]
) -> str | None:
    """Return the `tensor_split` for a candidate with fixed host layers.

    Without a `tensor_split` llama.cpp splits layers by free memory, which changes from start to
    start, and counts experts on the host as if they were on the device. The result adds up to
    the units on devices, so that each device gets exactly its units. It follows the memory of
    the devices, or is llama.cpp's own split if the candidate does not fit. Returns None for a
    single device, and if layers are not split.

    Raises:
        UsageError: a device that does not exist, or an invalid value.
    """
    used = used_devices(candidate, devices)
    if len(used) <= 1 or not splits_layers(candidate) or "tensor_split" in candidate.params:
        return None
    placed = Counter(place_tensors(inventory, candidate, devices).units)
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
    """Return the split that uses memory most evenly, or None if the solver cannot compute it."""
    skipped = inventory.units - offloaded_units(inventory, candidate)
    if "override_tensor" in candidate.params or skipped >= inventory.block_count:
        return None
    base = candidate.with_params(**dict.fromkeys(PLACEMENT_PARAMS))
    moved = candidate.get_int("n_cpu_moe" if inventory.is_moe else "n_cpu_ffn", 0)
    costs = slice_costs(inventory, base, used, skipped)
    problem = costs.solver("hosted" if moved else "pipelined").problem
    kept = [
        nbytes if block.index >= moved else 0
        for block, nbytes in zip(costs.blocks, problem.movable, strict=True)
    ]
    fixed = [own + more for own, more in zip(problem.fixed, (*kept, 0), strict=True)]
    solver = SliceSolver(replace(problem, fixed=tuple(fixed), movable=(0,) * len(kept)))
    slices = solver.minimize_hosted()
    return ",".join(str(units) for units in slices.units) if slices else None
