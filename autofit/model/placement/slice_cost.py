"""What slices of a model cost on each device: the solver's problem from the memory estimate.

The compute buffer and the rest depend on what a slice holds, not on how long it is. They are
taken from estimates of sample candidates: whether the slice holds the output layer, and
whether it keeps the experts of some layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from autofit.model.placement.placed_layers import place
from autofit.model.placement.slices import Overhead, SliceProblem, SliceSolver
from autofit.model.placement.tensor_override import (
    CPU_BUFFER,
    NO_PIPELINE_RULE,
    dense_pattern,
    expert_pattern,
)
from autofit.model.sizes.inventory import BlockInventory, ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.model.sizes.model_graph import Run
from autofit.model.sizes.run_time_memory import backend_of
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import Device
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.units import MIB

# How experts are kept: all on devices, with or without pipeline parallelism, or some hosted.
Keeping = Literal["pipelined", "whole", "hosted"]
_KEEPINGS: tuple[Keeping, ...] = ("hosted", "whole")


# Layouts are asked for one number of hosted layers after the other, with all else the same.
@lru_cache(maxsize=16)
def slice_costs(
    inventory: ModelInventory, base: Candidate, devices: tuple[Device, ...], skipped: int
) -> SliceCosts:
    """The costs for these, kept for the next call."""
    return SliceCosts(inventory, base, devices, skipped)


@dataclass(frozen=True)
class SliceCosts:
    """Costs for one model, settings and devices; `skipped` first layers stay with the host."""

    inventory: ModelInventory
    base: Candidate
    devices: tuple[Device, ...]
    skipped: int = 0

    @cached_property
    def settings(self) -> Candidate:
        """The settings without those that a layout sets."""
        return self.base.with_params(**dict.fromkeys(PLACEMENT_PARAMS))

    @property
    def units(self) -> int:
        """Units that go to devices."""
        return self.inventory.units - self.skipped

    @cached_property
    def blocks(self) -> tuple[BlockInventory, ...]:
        """The blocks that go to devices."""
        return self.inventory.blocks[self.skipped :]

    def params(
        self,
        units: Sequence[int],
        hosted: Sequence[int],
        keeping: Keeping = "hosted",
        partial: Mapping[int, str] | None = None,
    ) -> dict[str, ParamValue]:
        """The settings of a layout: units by device, and blocks whose experts are hosted.

        Of the blocks in `partial`, only the part named there is.
        """
        used = [(d.name, n) for d, n in zip(self.devices, units, strict=True) if n]
        params: dict[str, ParamValue] = {
            "devices": ",".join(name for name, _ in used) or "none",
            "n_gpu_layers": self.units,
        }
        if len(used) > 1:
            params["tensor_split"] = ",".join(str(n) for _, n in used)
        params |= self._moved(hosted, partial or {})
        if keeping == "whole" and not hosted and len(used) > 1:
            params["override_tensor"] = NO_PIPELINE_RULE
        return params

    def solver(self, keeping: Keeping, *, is_ordered: bool = False) -> SliceSolver:
        """The solver for the problem as it is."""
        key = (keeping, is_ordered)
        if key not in self._solvers:
            self._solvers[key] = SliceSolver(self._problem(keeping, is_ordered=is_ordered))
        return self._solvers[key]

    @cached_property
    def has_room(self) -> bool:
        """Whether anything fits that leaves no more layers to the host."""
        if self._least_bytes > sum(device.usable_mib for device in self.devices) * MIB:
            return False  # told without a solver, whose overheads take many estimates
        return any(self.solver(keeping).fewest() for keeping in _KEEPINGS)

    @property
    def _least_bytes(self) -> int:
        """What devices must hold even if all that can move has, overheads not counted."""
        fixed = [
            block.total_bytes - self.movable_bytes(block) + cached
            for block, cached in zip(self.blocks, self._cache_bytes[self.skipped :], strict=True)
            if not block.is_nextn
        ]
        return sum(fixed) + self.inventory.output_bytes

    def _problem(self, keeping: Keeping, *, is_ordered: bool) -> SliceProblem:
        """What the solver is given; with experts kept, nothing is movable."""
        movable = [self.movable_bytes(block) for block in self.blocks]
        fixed = [
            0 if block.is_nextn else block.total_bytes - moved + cached
            for block, moved, cached in zip(
                self.blocks, movable, self._cache_bytes[self.skipped :], strict=True
            )
        ]
        if keeping != "hosted":
            fixed = [f + m for f, m in zip(fixed, movable, strict=True)]
            movable = [0] * len(movable)
        return SliceProblem(
            fixed=(*fixed, self.inventory.output_bytes),
            movable=tuple(movable),
            budgets=tuple(int(device.usable_mib * MIB) for device in self.devices),
            overheads=tuple(self._overhead(i, keeping) for i in range(len(self.devices))),
            is_ordered=is_ordered,
        )

    def movable_bytes(self, block: BlockInventory) -> int:
        """What a block can move to the host by itself: experts, or a dense model's FFN."""
        if block.is_nextn:
            return 0
        return block.expert_bytes if self.inventory.is_moe else block.dense_ffn_bytes

    @cached_property
    def _cache_bytes(self) -> tuple[int, ...]:
        candidate = self.settings.with_params(devices=self.devices[0].name)
        run = Run.of(self.inventory, candidate, place(self.inventory, candidate, self.devices))
        return run.cache_bytes if run.is_cache_offloaded else (0,) * len(run.cache_bytes)

    def _moved(self, hosted: Sequence[int], partial: Mapping[int, str]) -> dict[str, ParamValue]:
        """The settings that move the experts (or the FFN) of some blocks to the host.

        The plain count where they are all that the first blocks have.
        """
        if not hosted:
            return {}
        count = max(hosted) + 1
        movable = [
            block.index
            for block in self.inventory.blocks[:count]
            if self.movable_bytes(block) and block.index >= self.skipped
        ]
        if sorted(hosted) == movable and not partial:
            return {"n_cpu_moe" if self.inventory.is_moe else "n_cpu_ffn": count}
        pattern = (
            expert_pattern(hosted, partial) if self.inventory.is_moe else dense_pattern(hosted)
        )
        return {"override_tensor": f"{pattern}={CPU_BUFFER}"}

    @cached_property
    def _solvers(self) -> dict[tuple[Keeping, bool], SliceSolver]:
        return {}

    @cached_property
    def _samples(self) -> dict[tuple[object, ...], int]:
        return {}

    def _overhead(self, index: int, keeping: Keeping) -> Overhead:
        def sampled(*, has_output: bool) -> tuple[int, int]:
            keeping_some = self._sample(index, keeping, has_output=has_output, keeps=True)
            if keeping != "hosted" or not index:
                return keeping_some, keeping_some
            bare = self._sample(index, keeping, has_output=has_output, keeps=False)
            return bare, keeping_some

        return sampled(has_output=False), sampled(has_output=True)

    def _sample(self, index: int, keeping: Keeping, *, has_output: bool, keeps: bool) -> int:
        """Bytes beside weights and cache on a device whose slice is so; alike devices share."""
        last = len(self.devices) - 1
        if index == last:
            has_output = True
        key = (index == 0, backend_of(self.devices[index].name), keeping, has_output, keeps)
        if key not in self._samples:
            # The first device, the one asked for, and one that holds the rest.
            parts = {0: 1, index: 1} | ({} if has_output else {last: 1})
            shares = [parts.get(device, 0) for device in range(last + 1)]
            units = shared_out(self.units, shares)
            if not units[index]:  # fewer units than parts: it takes all there are
                units = [self.units if device == index else 0 for device in range(last + 1)]
            end = self.skipped + sum(units[: index + 1])
            hosted: list[int] = []
            if keeping == "hosted":
                hosted = [block.index for block in self.blocks if self.movable_bytes(block)]
                if keeps and len(hosted) > 1:
                    # The last layer computes only the rows that are asked for: it says little.
                    kept = [b for b in hosted if b < min(end, hosted[-1])]
                    hosted.remove(kept[-1] if kept else hosted[-1])
            params = self.params(units, hosted, keeping)
            estimate = estimate_memory(
                self.inventory, self.settings.with_params(**params), self.devices
            )
            row = estimate.on(self.devices[index].name)
            self._samples[key] = int((row.compute_mib + row.other_mib) * MIB) + 1
        return self._samples[key]


def shared_out(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to shares that add up to the total; the first get the rest."""
    weight = sum(shares)
    exact = [total * share / weight for share in shares]
    counts = [int(part) for part in exact]
    by_rest = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_rest[: total - sum(counts)]:
        counts[index] += 1
    return counts
