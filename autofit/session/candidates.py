"""Lays a search space over a model and its devices: points to candidates, and do they fit?

The arithmetic answers for thousands of points; the runtime's own planner, where it has one,
is asked for the few that matter, and launches tell the truth. What these two say corrects the
arithmetic for all other points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median

from autofit.errors import UsageError
from autofit.memory.correction import Correction, DeviceCorrection, ObservedMemory, learn
from autofit.memory.store import MemoryKey, MemoryStore
from autofit.model.placement.layout import SINGLE, plan_layout
from autofit.model.placement.slice_costs import find_tensor_split
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.runtime.command.argv_writer import find_unsupported
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.runtime.server.request_plan import FullContextCheck, plan_full_context_request
from autofit.search.problem import Fit, Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.goal_of_task import goal_of, model_traffic
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, Params
from autofit.trial.parameter_groups import (
    EXPERT_MEMORY_PARAMS,
    MEMORY_FREE_PARAMS,
    PLACEMENT_PARAMS,
)
from autofit.trial.trial import Trial

# Params that take no memory, and those that do not change what lies on a device.
_WEIGHTLESS = frozenset(MEMORY_FREE_PARAMS)
_HOST_ONLY = frozenset({"load_mode"})
# A device with less left than this beside what its pools are known to grow by is not trusted with
# a full context unseen. On real cards what was left fell by 2 to 10
# MiB from the workload's prompts to a full context served twice.
_UNTRUSTED_MIB = 128.0


@dataclass(slots=True)
class CandidateFactory:
    """Makes the candidates of a task and estimates their memory.

    `estimator` is the runtime's own planner, None where it has none. It may be asked only
    while no server runs. `store` remembers between studies what launches took, None not to.
    """

    task: Task
    estimator: RuntimePlanner | None = None
    store: MemoryStore | None = None
    _placing: dict[str, Params | None] = field(default_factory=dict)
    _pinned: Params | None = None
    _estimates: dict[str, MemoryEstimate | None] = field(default_factory=dict)
    _observed: dict[str, ObservedMemory] = field(default_factory=dict)
    _remembered: Correction = field(init=False)
    _correction: Correction = field(init=False)

    def __post_init__(self) -> None:
        self._remembered = self._correction = self._recall()

    def problem(self) -> Problem:
        """The search problem of the task."""
        goal = goal_of(self.task)
        return Problem(
            space=self.task.space,
            layouts=self.layout_names(),
            most_host_layers=self.most_host_layers(),
            candidate_of=self.candidate_of,
            fit_of=self.fit_of,
            goal=goal,
            traits=model_traffic(self.task.inventory, max(1, round(goal.depth))),
        )

    def layout_names(self) -> tuple[str, ...]:
        """The space's layouts for the devices that there are; one device has one."""
        devices, wanted = self.task.devices, self.task.space.layouts
        if not devices or not wanted:
            return ()
        singles = [f"{SINGLE}{device.name}" for device in devices]
        if len(devices) == 1:
            return tuple(singles)
        shared = [name for name in wanted if name != "single"]
        return (*shared, *(singles if "single" in wanted else ()))

    def most_host_layers(self) -> int:
        """How many layers can have their experts, or all they have, in system RAM."""
        inventory = self.task.inventory
        return len(inventory.expert_blocks) if inventory.is_moe else inventory.block_count

    def candidate_of(self, point: Point) -> Candidate | None:
        """A point's candidate, None where the space, the runtime or the devices refuse it."""
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
                self._pinned = pinned_placing(task)
            candidate = candidate.with_params(**self._pinned)
        else:
            placing = self._place(candidate, str(point[LAYOUT_AXIS]), int(point[HOST_LAYERS_AXIS]))
            if placing is None:
                return None
            candidate = candidate.with_params(**placing)
        return None if find_unsupported(task.runtime, candidate) else candidate

    def _place(self, candidate: Candidate, layout: str, host_layers: int) -> Params | None:
        base = _weighing(candidate, without=_WEIGHTLESS | _HOST_ONLY)
        key = f"{base.key} {layout} {host_layers}"
        if key not in self._placing:
            devices = self.task.devices
            placed = plan_layout(self.task.inventory, base, devices, layout, host_layers)
            same = placed.slices and placed.host_expert_layers == host_layers
            self._placing[key] = placed.params if same else None
        return self._placing[key]

    def fit_of(self, candidate: Candidate) -> Fit | None:
        """The margins of the tightest device and of the host; None where nothing is known."""
        estimate = self.estimate(candidate)
        if estimate is None or not estimate.devices:
            return None
        tightest = min(estimate.devices, key=lambda device: device.free_mib)
        host_mib = estimate.host.resident_mib
        return Fit(
            tightest.free_mib,
            tightest.total_mib,
            self.task.host_available_mib - host_mib,
            host_mib,
        )

    def estimate(self, candidate: Candidate) -> MemoryEstimate | None:
        """What a candidate takes, as far as arithmetic, planner and launches tell."""
        plain = self._plain_estimate(candidate)
        return None if plain is None else self._correction.applied(plain)

    def ask_planner(self, candidate: Candidate) -> None:
        """Have the runtime's planner correct what the arithmetic says of a candidate."""
        plain = self._plain_estimate(candidate)
        key = _weighing(candidate).key
        if self.estimator is None or plain is None or key in self._observed:
            return
        told = self.estimator.estimate(candidate)
        if told is not None:
            self._learn(key, ObservedMemory(estimate=plain, reported=told))

    def learn_from(self, trial: Trial) -> None:
        """Correct the estimates by what a launch really took.

        One that failed had not taken all that it takes: on real cards those that ran out of
        memory held 740 MiB less to 730 more than their buffers, where others held 720 to 800 more.
        """
        if not trial.is_completed:
            return
        plain = self._plain_estimate(trial.candidate)
        measured = trial.measurement
        if plain is None or measured is None or not measured.reported:
            return
        before = measured.readings[0].device_used_mib if measured.readings else {}
        depth = max((s.depth + s.predicted_tokens for s in measured.samples), default=None)
        growth = self.growth_mib(trial.candidate, depth=depth) if depth is not None else {}
        taken: Mapping[str, float | None] = {
            name: peak - start + growth.get(name, 0.0)
            for name, peak in measured.peak_mib.items()
            if peak is not None and (start := before.get(name)) is not None
        }
        observed = ObservedMemory(estimate=plain, reported=measured.reported, taken_mib=taken)
        self._learn(_weighing(trial.candidate).key, observed)
        for row in plain.devices:
            used_mib = taken.get(row.name)
            if self.store is not None and used_mib is not None:
                self.store.remember(self._key(row.name), row.total_mib, used_mib)

    def growth_mib(self, candidate: Candidate, *, depth: int) -> dict[str, float]:
        """What pools grow by on each device from so many tokens of a slot to a full context."""
        slots = max(1, candidate.get_int("parallel", self.task.workload.parallel))
        context = candidate.get_int("context", self.task.workload.context)
        if depth * slots >= context:
            return {}
        full = self._plain_estimate(candidate)
        part = self._plain_estimate(candidate.with_params(context=max(1, depth) * slots))
        if full is None or part is None:
            return {}
        return {
            row.name: max(0.0, row.other_mib - less.other_mib)
            for row, less in zip(full.devices, part.devices, strict=True)
        }

    def fill(self, candidate: Candidate) -> FullContextCheck:
        """When a launch of a candidate should fill its context, and with what."""
        workload = self.task.workload
        # A short launch ends long before the workload's generation does.
        growth = self.growth_mib(candidate, depth=workload.longest_prompt_tokens)
        estimate = self.estimate(candidate)
        rows = estimate.devices if estimate else ()
        return FullContextCheck(
            plan_full_context_request(workload.context // workload.parallel),
            {row.name: growth.get(row.name, 0.0) + _UNTRUSTED_MIB for row in rows},
            {row.name: row.free_mib for row in rows},
        )

    def _learn(self, key: str, observed: ObservedMemory) -> None:
        self._observed[key] = observed
        learned = learn(list(self._observed.values()))
        launched = {name: row for name, row in learned.devices.items() if row.launches}
        self._correction = Correction({**self._remembered.devices, **launched})

    def _recall(self) -> Correction:
        """What launches of earlier studies took beyond their estimates, by device."""
        if self.store is None:
            return Correction()
        found = {}
        for device in self.task.devices:
            records = self.store.recall(self._key(device.name))
            if records:
                off_mib = median(record.actual_mib - record.estimate_mib for record in records)
                found[device.name] = DeviceCorrection(
                    other_offset_mib=off_mib, launches=len(records)
                )
        return Correction(found)

    def _key(self, device: str) -> MemoryKey:
        task = self.task
        return MemoryKey(task.inventory.digest, task.runtime.fingerprint, device)

    def _plain_estimate(self, candidate: Candidate) -> MemoryEstimate | None:
        base = _weighing(candidate)
        if base.key not in self._estimates:
            self._estimates[base.key] = self._arithmetic(base)
        return self._estimates[base.key]

    def _arithmetic(self, candidate: Candidate) -> MemoryEstimate | None:
        task = self.task
        if not task.devices:
            return None
        try:
            return estimate_memory(task.inventory, candidate, task.devices)
        except UsageError:
            # A placement that the user pinned may be beyond our arithmetic.
            return None


def _has_nothing_to_fetch(point: Point) -> bool:
    """Whether experts are to be fetched or cached that are on the devices already."""
    if point.get(HOST_LAYERS_AXIS) != 0:
        return False
    return any(point.get(name) for name in EXPERT_MEMORY_PARAMS)


def pinned_placing(task: Task) -> Params:
    """What a placement that the user pinned leaves open: devices, layers on them, and slices.

    Without it the runtime would use devices that the user did not name, offload as it likes,
    and cut slices by what happens to be free.
    """
    pinned = task.space.pinned
    if not task.devices or not set(PLACEMENT_PARAMS) & set(pinned):
        return {}
    placing: Params = {
        "devices": ",".join(device.name for device in task.devices),
        "n_gpu_layers": task.inventory.units,
    }
    placing = {
        name: pinned.get(name, value)
        for name, value in placing.items()
        if task.runtime.supports(name)
    }
    if "tensor_split" in pinned or not task.runtime.supports("tensor_split"):
        return placing
    point = next(task.space.points(), {})
    params = {**task.task_params, **task.space.params_of(point), **placing}
    try:
        split = find_tensor_split(task.inventory, Candidate(params), task.devices)
    except UsageError:  # a placement that is beyond our arithmetic
        split = None
    return placing if split is None else {**placing, "tensor_split": split}


def _weighing(candidate: Candidate, *, without: frozenset[str] = _WEIGHTLESS) -> Candidate:
    """The candidate reduced to what takes memory, so that few estimates serve many points.

    A batch counts only where it is smaller than the ubatch, which it then limits.
    """
    params = {n: v for n, v in candidate.params.items() if n not in without}
    ubatch = candidate.get_int("ubatch", 512)
    if "batch" in params and candidate.get_int("batch", ubatch) >= ubatch:
        params["batch"] = ubatch
    return Candidate(params)
