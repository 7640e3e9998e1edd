"""The search problem of a task, and the measured speeds from which the search learns."""

from __future__ import annotations

from statistics import median

from autofit.errors import UsageError
from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.kv_cache import Cells, kv_cache_bytes
from autofit.model.sizes.tensor_placement import HOST, place_tensors
from autofit.search.hardware import Hardware
from autofit.search.problem import DeviceWork, Fit, Goal, Limit, ModelTraffic, Problem
from autofit.search.space import TENSOR_LAYOUT
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.requirement import Requirement
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.device import lacks_matrix_cores
from autofit.trial.measurement import Measurement, Sample
from autofit.trial.metric import cost, is_higher_better
from autofit.trial.workload import Workload


def search_problem(factory: CandidateFactory, memory: MemoryModel) -> Problem:
    """Return the search problem of a task, with margins from its memory model."""
    task = factory.task
    goal = goal_of(task)
    return Problem(
        space=task.space,
        layouts=factory.layout_names(),
        most_host_layers=factory.most_host_layers(),
        candidate_of=factory.candidate_of,
        fit_of=lambda candidate: predicted_fit(candidate, memory, task.host_available_mib),
        goal=goal,
        hardware=Hardware(
            cores=task.cores.performance,
            has_old_cards=any(lacks_matrix_cores(device) for device in task.devices),
        ),
        traffic=model_traffic(task.inventory, max(1, round(goal.depth))),
        devices=task.devices,
        work_of=lambda candidate: device_work(candidate, task),
    )


def predicted_fit(
    candidate: Candidate, memory: MemoryModel, host_available_mib: float
) -> Fit | None:
    """Return the margins of the tightest device and the host, or None if they are unknown."""
    predicted = memory.predict(candidate)
    if predicted is None or not predicted.devices:
        return None
    tightest = min(predicted.devices, key=lambda device: device.free_mib)
    host_mib = predicted.host.resident_mib
    return Fit(tightest.free_mib, tightest.total_mib, host_available_mib - host_mib, host_mib)


def device_work(candidate: Candidate, task: Task) -> DeviceWork | None:
    """Return the work of each device of a task, or None if autofit cannot place the candidate."""
    try:
        placed = place_tensors(task.inventory, candidate, task.devices)
    except UsageError:
        return None
    if not placed.devices:
        return None
    if candidate.get_str("split_mode", "layer") == TENSOR_LAYOUT:
        equal = len(placed.units) / len(placed.devices)
        divided = tuple(equal * (device in placed.devices) for device in task.devices)
        return DeviceWork(divided, (0.0,) * len(divided), 0, 0, is_divided=True)
    order = [task.devices.index(device) for device in placed.devices]
    layers, host_layers = [0.0] * len(task.devices), [0.0] * len(task.devices)
    for place in placed.units:
        if place != HOST:
            layers[order[place]] += 1
    for block in {*placed.host_expert_blocks, *placed.host_ffn_blocks}:
        if placed.units[block] != HOST:
            host_layers[order[placed.units[block]]] += 1
    return DeviceWork(tuple(layers), tuple(host_layers), placed.units.count(HOST), order[0])


def goal_of(task: Task) -> Goal:
    """Return the search goal of a task: objective, requests, and requirements as limits."""
    limits = [_limit(requirement) for requirement in task.requirements]
    return Goal(
        task.objective,
        task.workload.requests,
        tuple(limit for limit in limits if limit is not None),
    )


def _limit(requirement: Requirement) -> Limit | None:
    """Convert a requirement to a limit, or return None if it asks for slowness."""
    is_rate = is_higher_better(requirement.metric)
    if is_rate != (requirement.comparison == ">=") or not requirement.value:
        return None
    return Limit(requirement.metric, cost(requirement.value, requirement.metric))


def model_traffic(inventory: ModelInventory, depth: int) -> ModelTraffic:
    """Return the bytes of a model that determine its speed, averaged over layers.

    For each token the share of the experts that the router chooses is read. A layer of a dense
    model may be on the host as a whole, and is read completely. `depth` is the number of tokens
    in the cache.
    """
    blocks = [block for block in inventory.blocks if not block.is_nextn]
    if inventory.is_moe:
        layers = [block.expert_bytes for block in inventory.expert_blocks]
        share = inventory.n_expert_used / max(1, inventory.n_expert)
    else:
        layers = [block.total_bytes for block in blocks]
        share = 1.0
    movable = sum(layers) / max(1, len(layers))
    fixed = sum(block.total_bytes for block in blocks) - sum(layers) + inventory.output_bytes
    return ModelTraffic(
        layers=max(1, len(layers)),
        movable_bytes=max(movable, 1.0),
        read_bytes=max(movable * share, 1.0),
        fixed_read_bytes=max(float(fixed), 1.0),
        kv_bytes=max(sum(kv_cache_bytes(inventory, Cells(context=depth))) / depth, 1.0),
        is_known=True,
    )


def token_seconds(
    measurement: Measurement | None, workload: Workload
) -> tuple[float | None, float | None]:
    """Return the mean seconds for a prompt token and for a generated token over all requests.

    Each request counts with the median of its repeats. A value is None if it was not measured.
    """
    samples = [s for s in measurement.samples if not s.is_warmup] if measurement else []
    prompt_s = predicted_s = prompt_tokens = predicted_tokens = 0.0
    for index, request in enumerate(workload.requests):
        own = [sample for sample in samples if sample.request == index]
        if not own:
            return None, None
        prompt_s += request.weight * median(sample.prompt_s for sample in own)
        prompt_tokens += request.weight * median(sample.prompt_tokens for sample in own)
        predicted_s += request.weight * median(sample.predicted_s for sample in own)
        predicted_tokens += request.weight * median(_steps(sample) for sample in own)
    return (
        prompt_s / prompt_tokens if prompt_s > 0 and prompt_tokens else None,
        predicted_s / predicted_tokens if predicted_s > 0 and predicted_tokens else None,
    )


def _steps(sample: Sample) -> int:
    """Return the number of tokens that `predicted_s` covers: all but the first."""
    return sample.predicted_tokens - 1
