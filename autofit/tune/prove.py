"""The proof of a winner: its exact settings, as served, at full context, twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autofit.memory.exchange_rates import UnusedRoom
from autofit.model.sizes.memory_estimate import MemoryEstimate
from autofit.runtime.server.request_plan import plan_proof
from autofit.search.problem import Problem
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS
from autofit.session.finalist import Finalist, Proof
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.outcome import lacks_device_memory
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial
from autofit.units import MIB

# A candidate that runs at the workload's prompts but not at full context wants a little
# more room; each step gives it one host layer.
_MOST_STEPS_BACK = 4


def prove(finalist: Finalist, runner: TrialRunner, task: Task) -> Trial:
    """Launch a finalist as it will be served and fill its context."""
    slot_context = task.workload.context // task.workload.parallel
    return runner.run(
        TrialPurpose("prove", "proof"),
        finalist.candidate,
        plan_proof(task.workload, slot_context),
        layout=finalist.layout,
        is_verbatim=finalist.is_verbatim,
    )


def prove_or_step_back(
    finalist: Finalist, launch: Callable[[Finalist], Trial | None], problem: Problem
) -> Proof | None:
    """Prove a finalist; one that wants memory gives up device layers until it holds.

    Args:
        finalist: the first to be proven.
        launch: proves one, as `prove` does; None for one that is known to want too much.
        problem: what is searched.
    """
    for steps, one in enumerate((finalist, *_steps_back(finalist, problem))):
        trial = launch(one)
        if trial is None:
            continue
        if trial.is_completed:
            return Proof(one, trial, steps)
        if not lacks_device_memory(trial.outcome):
            return None  # more layers on the host want more of its memory, not less
    return None


def spare_rooms(proof: Proof, estimate: MemoryEstimate | None, task: Task) -> list[UnusedRoom]:
    """Devices that the proof left with room for an expert layer while some are on the host.

    `estimate` tells where layers lie; None tells nothing.
    """
    measured = proof.trial.measurement
    layers = [block.expert_bytes / MIB for block in task.inventory.expert_blocks]
    if estimate is None or measured is None or not layers:
        return []
    hosted = sum(device.host_expert_layers for device in estimate.devices)
    if not hosted:
        return []
    rooms = []
    for device in estimate.devices:
        free_mib, peak_mib = measured.free_mib.get(device.name), measured.peak_mib.get(device.name)
        limit_mib = task.limits_mib.get(device.name)
        if free_mib is not None and peak_mib is not None and limit_mib is not None:
            free_mib = min(free_mib, limit_mib - peak_mib)
        if free_mib is not None and free_mib >= min(layers):
            rooms.append(UnusedRoom(device.name, free_mib, min(layers), hosted))
    return rooms


def _steps_back(finalist: Finalist, problem: Problem) -> Iterator[Finalist]:
    point = finalist.point
    if point is None or HOST_LAYERS_AXIS not in point:
        return
    first = int(point[HOST_LAYERS_AXIS]) + 1
    last = min(first + _MOST_STEPS_BACK, problem.most_host_layers + 1)
    for host_layers in range(first, last):
        smaller = {**point, HOST_LAYERS_AXIS: host_layers}
        candidate = problem.candidate_of(smaller)
        if candidate is not None:
            yield Finalist(candidate, str(point.get(LAYOUT_AXIS, "")), smaller)
