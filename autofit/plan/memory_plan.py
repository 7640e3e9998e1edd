"""What a model takes on each device, layout by layout, without a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from autofit.errors import UsageError
from autofit.memory.exchange_rates import ExchangeRates, exchange_rates, max_contexts, unused_rooms
from autofit.model.placement.layout import plan_layout, plan_layouts
from autofit.model.sizes.memory_estimate import MemoryEstimate, apply_reported, estimate_memory
from autofit.runtime.command.argv_writer import find_unsupported, spell_params
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.session.candidate_factory import pinned_placement
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import PLACEMENT_PARAMS

# How often a layout is cut again where the runtime's planner finds it too large.
_MOST_CUTS = 3

# The layout's name where the user's own settings say how layers lie, and without any device.
FIXED = "set"
HOST_ONLY = "host"


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """One layout as a candidate, with what it takes.

    `host_mib` is what it may take of system RAM where that is all it uses, None with devices.
    """

    name: str
    candidate: Candidate
    estimate: MemoryEstimate
    args: tuple[str, ...]
    env: Mapping[str, str]
    host_mib: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every device has room for it, or system RAM where there is none."""
        if self.host_mib is not None:
            return self.estimate.host.total_mib <= self.host_mib
        return bool(self.estimate.devices) and self.estimate.fits

    @property
    def host_expert_layers(self) -> int:
        """How many layers have experts in system RAM, in part or whole."""
        return sum(device.host_expert_layers for device in self.estimate.devices)

    def to_dict(self) -> dict[str, Any]:
        """The layout as `plan --json` prints it."""
        return {
            "name": self.name,
            "params": dict(self.candidate.params),
            "args": list(self.args),
            "env": dict(self.env),
            "fits": self.fits,
            "devices": [
                {
                    "name": row.name,
                    "free_mib": row.usable_mib,
                    "layers": list(row.layers) if row.layers else None,
                    "output": row.output,
                    "host_expert_layers": row.host_expert_layers,
                    "weights_mib": row.weights_mib,
                    "kv_mib": row.kv_mib,
                    "compute_mib": row.compute_mib,
                    "other_mib": row.other_mib,
                    "prefetch_mib": row.prefetch_mib,
                    "expert_cache_mib": row.expert_cache_mib,
                    "total_mib": row.total_mib,
                    "fits": row.fits,
                }
                for row in self.estimate.devices
            ],
            "host": {
                "weights_mib": self.estimate.host.weights_mib,
                "repack_mib": self.estimate.host.repack_mib,
                "kv_mib": self.estimate.host.kv_mib,
                "compute_mib": self.estimate.host.compute_mib,
            },
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """All layouts, the recommended one, and the prices of what takes memory."""

    layouts: tuple[PlannedLayout, ...]
    recommended: PlannedLayout | None
    exchange: ExchangeRates
    max_context: Mapping[str, int]
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as `plan --json` prints it."""
        shown = self.recommended or self.layouts[0]
        document = shown.to_dict()
        return {
            "layouts": [layout.to_dict() for layout in self.layouts],
            "recommended": self.recommended.name if self.recommended else None,
            "exchange": asdict(self.exchange),
            "max_context": dict(self.max_context),
            "estimator": shown.estimate.estimator,
            "notices": list(self.notices),
            **{key: document[key] for key in ("devices", "host", "params", "args")},
        }


def make_plan(task: Task, planner: RuntimePlanner | None) -> Plan:
    """Plan every layout of the task's devices with the space's first values.

    Without a device there is one, which has all in system RAM.
    `planner` is the runtime's own, asked about each layout; None where the devices are not
    there or the runtime has none.

    Raises:
        UsageError: a pinned setting is not possible.
    """
    base = base_candidate(task)
    problem = find_unsupported(task.runtime, base)
    if problem is not None:
        raise UsageError(problem.message, "change it with --set")
    if not task.devices:
        found = [(HOST_ONLY, base)]
    elif set(PLACEMENT_PARAMS) & set(task.space.pinned):
        found = [(FIXED, base)]
    else:
        found = [
            (layout.name, layout.candidate(base))
            for layout in plan_layouts(task.inventory, base, task.devices)
            if layout.slices
        ]
    planned = tuple(
        _fitted(task, _planned(task, name, candidate, planner), planner)
        for name, candidate in found
    )
    fitting = [layout for layout in planned if layout.fits]
    best = min(fitting, key=_left_to_host, default=None)
    shown = best or planned[0]
    # Layouts are cut so that no whole layer more has room; a user's own need not be.
    is_cut = shown.name != FIXED
    rooms = [] if is_cut else unused_rooms(task.inventory, shown.estimate)
    return Plan(
        planned,
        best,
        exchange_rates(task.inventory, shown.candidate, task.devices),
        max_contexts(task.inventory, shown.candidate, task.devices, host_mib=shown.host_mib),
        (*task.inventory.notices, *task.notices, *(room.text for room in rooms)),
    )


def base_candidate(task: Task) -> Candidate:
    """The task with the space's first values and what the user pinned, no layout yet."""
    point = next(task.space.points(), {})
    candidate = Candidate({**task.task_params, **task.space.params_of(point)})
    return candidate.with_params(**pinned_placement(task))


def _left_to_host(layout: PlannedLayout) -> tuple[int, int, float]:
    """Layers that are on no device at all, then those with experts in system RAM, then MiB."""
    host = layout.estimate.host
    return (
        -layout.candidate.get_int("n_gpu_layers", 0),
        layout.host_expert_layers,
        host.weights_mib + host.repack_mib,
    )


def _fitted(task: Task, layout: PlannedLayout, planner: RuntimePlanner | None) -> PlannedLayout:
    """The layout cut again for the memory that the planner found missing, if any was.

    The arithmetic that cuts slices may be some MiB short of what the runtime says.
    """
    base = base_candidate(task)
    smaller = task.devices
    for _ in range(_MOST_CUTS):
        missing = {row.name: 1 - row.free_mib for row in layout.estimate.devices if not row.fits}
        if planner is None or layout.name == FIXED or not missing:
            return layout
        smaller = tuple(
            replace(device, usable_mib=device.usable_mib - missing.get(device.name, 0.0))
            for device in smaller
        )
        again = plan_layout(task.inventory, base, smaller, layout.name, None)
        if not again.fits:
            return layout
        layout = _planned(task, layout.name, again.candidate(base), planner)
    return layout


def _planned(
    task: Task, name: str, candidate: Candidate, planner: RuntimePlanner | None
) -> PlannedLayout:
    estimate = estimate_memory(task.inventory, candidate, task.devices)
    told = planner.predict_memory(candidate) if planner else None
    if told is not None:
        estimate = apply_reported(estimate, told)
    words, env = spell_params(task.runtime, candidate)
    host_mib = None if task.devices else task.host_available_mib
    return PlannedLayout(name, candidate, estimate, words, env, host_mib)
