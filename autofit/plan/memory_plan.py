"""The memory plan of a model: the memory of each layout, predicted without a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from autofit.errors import UsageError
from autofit.memory.exchange_rates import ExchangeRates, exchange_rates, max_contexts, unused_rooms
from autofit.model.placement.layout import TENSOR, Layout, plan_layout, plan_layouts
from autofit.model.sizes.memory_estimate import MemoryEstimate, apply_reported, estimate_memory
from autofit.plan.plan_verdict import describe_verdict
from autofit.runtime.command.argv_writer import find_unsupported, spell_params, spell_value
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.session.candidate_factory import CandidateFactory, pinned_placement
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import PLACEMENT_PARAMS

# A layout that the runtime's planner finds too large is cut again at most this many times.
_MOST_CUTS = 3
# The names of the only layout: with a placement fixed by the user, and without any device.
FIXED = "set"
HOST_ONLY = "host"


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """One layout as a candidate, with its predicted memory.

    `args` and `env` pass its settings to the runtime. `host_mib` is the available system RAM if
    there is no device, else None. `same_as` names an earlier layout that is equal, apart from
    the names of equal devices.
    """

    name: str
    candidate: Candidate
    estimate: MemoryEstimate
    args: tuple[str, ...]
    env: Mapping[str, str]
    host_mib: float | None = None
    same_as: str | None = None

    @property
    def fits(self) -> bool:
        """True if it fits each device, or system RAM without a device."""
        if self.host_mib is not None:
            return self.estimate.host.total_mib <= self.host_mib
        return bool(self.estimate.devices) and self.estimate.fits

    @property
    def host_expert_layers(self) -> int:
        """The number of layers with any experts in system RAM."""
        return sum(device.host_expert_layers for device in self.estimate.devices)

    def to_dict(self) -> dict[str, Any]:
        """Return the layout as `plan --json` prints it."""
        return {
            "name": self.name,
            "same_as": self.same_as,
            "params": dict(self.candidate.params),
            "args": list(self.args),
            "env": dict(self.env),
            "fits": self.fits,
            "devices": [
                {
                    "name": row.name,
                    "free_mib": row.usable_mib + row.headroom_mib,
                    "headroom_mib": row.headroom_mib,
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
    """All layouts, the recommended one, and what memory can be exchanged for."""

    layouts: tuple[PlannedLayout, ...]
    recommended: PlannedLayout | None
    verdict: str
    exchange: ExchangeRates
    max_context: Mapping[str, int]
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as `plan --json` prints it."""
        shown = self.recommended or self.layouts[0]
        document = shown.to_dict()
        return {
            "layouts": [layout.to_dict() for layout in self.layouts],
            "recommended": self.recommended.name if self.recommended else None,
            "verdict": self.verdict,
            "exchange": asdict(self.exchange),
            "max_context": dict(self.max_context),
            "estimator": shown.estimate.estimator,
            "notices": list(self.notices),
            **{key: document[key] for key in ("devices", "host", "params", "args")},
        }


def make_plan(task: Task, planner: RuntimePlanner | None) -> Plan:
    """Plan every layout of the task's devices, with the first values of its space.

    Without a device the only layout has everything in system RAM. With several layouts that
    fit, the one with the most on devices is recommended.

    Args:
        task: the model, its devices and the search space.
        planner: the runtime's own; None without one, or if the devices are not present.

    Raises:
        UsageError: a pinned setting is not possible.
    """
    base = base_candidate(task)
    problem = find_unsupported(task.runtime, base)
    if problem is not None:
        raise UsageError(problem.message, "change it with --set")
    layouts = _mark_equal(task, tuple(_plan_each(task, base, planner)))
    recommended = min(
        (layout for layout in layouts if layout.fits), key=_amount_off_devices, default=None
    )
    shown = recommended or layouts[0]
    notices = [*task.inventory.notices, *task.notices, *_uncounted_notices(task)]
    if shown.name == FIXED:  # other layouts are cut so that no room is left for a layer
        notices += [room.text for room in unused_rooms(task.inventory, shown.estimate)]
    return Plan(
        layouts=layouts,
        recommended=recommended,
        verdict=describe_verdict(task.inventory, shown),
        exchange=exchange_rates(task.inventory, shown.candidate, task.devices),
        max_context=max_contexts(
            task.inventory, shown.candidate, task.devices, host_mib=shown.host_mib
        ),
        notices=tuple(notices),
    )


def _mark_equal(task: Task, layouts: tuple[PlannedLayout, ...]) -> tuple[PlannedLayout, ...]:
    """Return the layouts, each with the first one that is equal to it."""
    kinds = {d.name: (d.description, d.total_mib, d.usable_mib, d.link_gb_s) for d in task.devices}
    first: dict[object, str] = {}
    found = []
    for layout in layouts:
        rows = tuple((kinds[row.name], replace(row, name="")) for row in layout.estimate.devices)
        name = first.setdefault((rows, layout.estimate.host), layout.name)
        found.append(replace(layout, same_as=None if name == layout.name else name))
    return tuple(found)


def _uncounted_notices(task: Task) -> Iterator[str]:
    """Yield a notice about each option of the user with memory that no estimate contains."""
    for flag, value in (*pairwise(task.extra_args), *_pinned_options(task)):
        for option in task.runtime.dialect.uncounted:
            if option.applies(flag, value):
                yield option.notice.format(flag=flag, value=value)


def _pinned_options(task: Task) -> Iterator[tuple[str, str]]:
    """Yield the flag and the value of each parameter that the user sets."""
    for name, value in task.space.pinned.items():
        spelling = task.runtime.spelling(name)
        if spelling is not None and spelling.flag is not None:
            yield spelling.flag, spell_value(spelling, value) or ""


def base_candidate(task: Task) -> Candidate:
    """Return the candidate of the space's first values and the pinned ones, without a layout."""
    point = next(task.space.points(), {})
    candidate = Candidate({**task.task_params, **task.space.params_of(point)})
    return candidate.with_params(**pinned_placement(task))


def _plan_each(
    task: Task, base: Candidate, planner: RuntimePlanner | None
) -> Iterator[PlannedLayout]:
    """Yield the planned layouts of a base candidate."""
    if not task.devices:
        yield _predict(task, HOST_ONLY, base, planner)
    elif set(PLACEMENT_PARAMS) & set(task.space.pinned):
        yield _predict(task, FIXED, base, planner)
    else:
        for layout in (*plan_layouts(task.inventory, base, task.devices), *_special(task, base)):
            if layout.slices:
                planned = _predict(task, layout.name, layout.candidate(base), planner)
                yield planned if planner is None else _shrink(task, base, planned, planner)


def _special(task: Task, base: Candidate) -> Iterator[Layout]:
    """Yield the layouts that a tune tries on some machines only: other orders, and `tensor`.

    The order of devices matters only with host layers.
    """
    for name in CandidateFactory(task).layout_names():
        rule, _, order = name.partition(":")
        if rule == TENSOR or "," in order:
            layout = plan_layout(task.inventory, base, task.devices, name, None)
            if rule == TENSOR or layout.host_expert_layers:
                yield layout


def _shrink(
    task: Task, base: Candidate, layout: PlannedLayout, planner: RuntimePlanner
) -> PlannedLayout:
    """Compute a layout's slices again for devices smaller by what the planner finds missing.

    The arithmetic that cuts slices may be some MiB below the runtime's own plan.
    """
    devices = task.devices
    for _ in range(_MOST_CUTS):
        missing = {row.name: 1 - row.free_mib for row in layout.estimate.devices if not row.fits}
        if not missing:
            break
        devices = tuple(
            replace(device, usable_mib=device.usable_mib - missing.get(device.name, 0.0))
            for device in devices
        )
        smaller = plan_layout(task.inventory, base, devices, layout.name, None)
        if not smaller.fits:
            break
        layout = _predict(task, layout.name, smaller.candidate(base), planner)
    return layout


def _predict(
    task: Task, name: str, candidate: Candidate, planner: RuntimePlanner | None
) -> PlannedLayout:
    """Predict the memory of a layout by the planner, and by arithmetic for the rest."""
    estimate = estimate_memory(task.inventory, candidate, task.devices)
    reported = planner.predict_memory(candidate) if planner else None
    if reported is not None:
        estimate = apply_reported(estimate, reported)
    args, env = spell_params(task.runtime, candidate)
    host_mib = None if task.devices else task.host_available_mib
    return PlannedLayout(name, candidate, estimate, args, env, host_mib)


def _amount_off_devices(layout: PlannedLayout) -> tuple[int, int, float]:
    """Return three amounts off the devices: layers, layers' experts, and MiB in system RAM.

    The first is negated: it is the number of layers on devices.
    """
    host = layout.estimate.host
    return (
        -layout.candidate.get_int("n_gpu_layers", 0),
        layout.host_expert_layers,
        host.weights_mib + host.repack_mib,
    )
