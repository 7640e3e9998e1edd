"""The memory plan of a model: the memory of each layout, predicted without a launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from autofit.errors import UsageError
from autofit.knowledge.expectation import ExpectedRates, expected_rates
from autofit.knowledge.knowledge_document import KnownStudy
from autofit.memory.exchange_rates import ExchangeRates, exchange_rates, max_contexts, unused_rooms
from autofit.model.placement.layout import TENSOR, Layout, plan_layout, plan_layouts
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import (
    DeviceEstimate,
    MemoryEstimate,
    apply_reported,
    estimate_memory,
)
from autofit.runtime.command.argv_writer import find_unsupported, spell_params, spell_value
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.session.candidate_factory import CandidateFactory, pinned_placement
from autofit.session.task import Task
from autofit.text_format import one_line
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.units import MIB

# A layout that the runtime's planner finds too large is cut again at most this many times.
_MOST_CUTS = 3
_MIB_PER_GIB = 1024
_MOST_NAMED = 3  # devices that are named one by one
# The names of the only layout: with a placement fixed by the user, and without any device.
FIXED = "set"
HOST_ONLY = "host"


@dataclass(frozen=True, slots=True)
class PlannedLayout:
    """One layout as a candidate, with its predicted memory.

    `args` and `env` pass its settings to the runtime. `host_mib` is the available system RAM if
    there is no device, else None. `same_as` names an earlier layout that is equal, apart from
    the names of equal devices. `expected` are its rates by machine knowledge, if there is any.
    """

    name: str
    candidate: Candidate
    estimate: MemoryEstimate
    args: tuple[str, ...]
    env: Mapping[str, str]
    host_mib: float | None = None
    same_as: str | None = None
    expected: ExpectedRates | None = None

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
            "expected": self.expected.to_dict() if self.expected else None,
            "devices": [_device_document(row) for row in self.estimate.devices],
            "host": {k: v for k, v in asdict(self.estimate.host).items() if k != "is_mapped"},
        }


def _device_document(row: DeviceEstimate) -> dict[str, Any]:
    fields = asdict(row)
    fields["free_mib"] = fields.pop("usable_mib") + row.headroom_mib
    return {**fields, "total_mib": row.total_mib, "fits": row.fits}


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


def make_plan(
    task: Task, planner: RuntimePlanner | None, known: Sequence[KnownStudy] = (), now: float = 0.0
) -> Plan:
    """Plan every layout of the task's devices, with the first values of its space.

    Without a device the only layout has everything in system RAM. Of the layouts that fit, the
    one with the most on devices is recommended. `planner` is the runtime's own; it is None if
    there is none, or if the devices are not present. `known` are earlier studies on the machine.

    Raises:
        UsageError: a pinned setting is not possible.
    """
    base = base_candidate(task)
    problem = find_unsupported(task.runtime, base)
    if problem is not None:
        raise UsageError(problem.message, "change it with --set")
    layouts = _mark_equal(task, tuple(_plan_each(task, base, planner)))
    rates = expected_rates(task, known, [one.candidate for one in layouts], now=now)
    layouts = tuple(
        replace(layout, expected=expected) for layout, expected in zip(layouts, rates, strict=True)
    )
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
        verdict=_describe_verdict(task.inventory, shown),
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
    """Yield a notice about each of the user's options whose memory no estimate contains."""
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
    """Compute a layout's slices again if, by the planner, devices lack memory for it.

    Each device counts as smaller by the memory that it lacks. The arithmetic that cuts slices may
    be some MiB below the runtime's own plan.
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
    """Return a rank, lower is better: layers off devices, experts off devices, MiB in RAM."""
    host = layout.estimate.host
    return (
        -layout.candidate.get_int("n_gpu_layers", 0),
        layout.host_expert_layers,
        host.weights_mib + host.repack_mib,
    )


def _describe_verdict(inventory: ModelInventory, layout: PlannedLayout) -> str:
    """Describe in one sentence what fits, where, and how much memory stays free."""
    context = layout.candidate.get_int("context", 0) or inventory.context_train
    subject = (
        f"{one_line(inventory.path.stem)} ({_format_size(inventory.total_bytes / MIB)}) with "
        f"{context:,} tokens of context"
    )
    rows = [row for row in layout.estimate.devices if row.layers or row.output]
    if layout.host_mib is not None:
        total_mib = layout.estimate.host.total_mib
        needs = f"{_format_size(total_mib)} of {_format_size(layout.host_mib)}"
        verb = "fits in" if layout.fits else "does not fit in"
        return f"{subject} {verb} system RAM: it needs {needs}."
    if not layout.fits:
        lacking = [
            f"{one_line(row.name)} lacks {-row.free_mib:,.0f} MiB" for row in rows if not row.fits
        ]
        return f"{subject} does not fit: in the layout {layout.name}, {_join(lacking)}."
    left = {one_line(row.name): row.free_mib + row.headroom_mib for row in rows}
    if len(left) > _MOST_NAMED:
        names, free = f"{len(left)} devices", f"at least {min(left.values()):,.0f} MiB on each"
    else:
        names = _join([*left])
        free = _join([f"{mib:,.0f} MiB on {name}" for name, mib in left.items()])
    return f"{subject} fits on {names}: {_on_host(inventory, layout)}, and {free} stay free."


def _on_host(inventory: ModelInventory, layout: PlannedLayout) -> str:
    units = layout.candidate.get_int("n_gpu_layers", inventory.units)
    whole = max(0, inventory.units - units) if units >= 0 else 0
    experts = len(inventory.expert_blocks)
    parts = []
    if whole:
        parts.append(f"{whole} of {inventory.block_count} layers are in system RAM")
    if layout.host_expert_layers:
        parts.append(
            f"the experts of {layout.host_expert_layers} of {experts} layers are in system RAM"
        )
    return _join(parts) or "the whole model is there"


def _format_size(mib: float) -> str:
    return f"{mib / _MIB_PER_GIB:,.1f} GiB" if mib >= _MIB_PER_GIB else f"{mib:,.0f} MiB"


def _join(parts: Sequence[str]) -> str:
    *others, last = parts or [""]
    return f"{', '.join(others)} and {last}" if others else last
