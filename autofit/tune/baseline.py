"""The baseline, which runs without tuning: measured first, and proven if it is recommended."""

from __future__ import annotations

from dataclasses import replace

from autofit.machine.cpu import Cores
from autofit.runtime.discovery.found_runtime import format_value
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.problem import Problem
from autofit.search.space import Point
from autofit.session.budget_advice import first_shortage, tune_need
from autofit.session.events import PhaseStarted
from autofit.session.finalist import FROZEN, Finalist, baseline_finalist
from autofit.session.runner import TrialRunner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.outcome import describe_outcome
from autofit.trial.parameter_groups import KV_TYPE_PARAMS, PLACEMENT_PARAMS
from autofit.trial.purpose import TrialPurpose
from autofit.trial.trial import Trial

_REPEATS = 3
# The settings that a runtime reports and that can be given as flags.
_WRITABLE = (
    "context",
    "parallel",
    "batch",
    "ubatch",
    *KV_TYPE_PARAMS,
    "flash_attn",
    "load_mode",
)


def measure_baseline(task: Task, runner: TrialRunner) -> Trial:
    """Launch and measure the baseline, and note what limits the comparison with it."""
    runner.emit(PhaseStarted("baseline"))
    baseline = baseline_finalist(task)
    trial = runner.run(
        TrialPurpose("baseline", "baseline"),
        baseline.candidate,
        plan_measurement(
            task.workload,
            512,
            repeats=_REPEATS,
            is_short=True,
            enough_s=runner.budget.repeat_limit_s,
        ),
        layout=baseline.layout,
        is_verbatim=True,
    )
    if not trial.is_completed:
        reason = describe_outcome(trial.outcome)
        runner.note(f"{describe_baseline(task)} failed ({reason}), so the speedup is unknown")
    threads = thread_warning(trial, task.cores)
    if threads:
        runner.note(threads)
    attention = attention_warning(task, trial)
    if attention:
        runner.note(attention)
    most = runner.budget.max_launches
    shortage = first_shortage(
        runner.trials, runner.budget, lambda first: tune_need(first, task.workload, most)
    )
    if shortage:
        runner.note(shortage)
    return trial


def thread_warning(baseline: Trial, cores: Cores) -> str:
    """Return a warning if a command without a thread count used too many threads, or else "".

    llama-server counts all cores of the machine, even if affinity or a container allows fewer.
    On a real card with 16 of 32 cores allowed, it chose 32 threads and generated 42 tokens a
    second. On a machine with 16 cores it chose 16 threads and generated 84.
    """
    applied = baseline.measurement.applied if baseline.measurement else {}
    used = applied.get("threads_taken")
    if "threads" in baseline.candidate.params or not isinstance(used, int | float):
        return ""
    if used <= cores.usable or not baseline.is_completed:  # a baseline that failed was not slow
        return ""
    return (
        f"the baseline used {int(used)} threads, but only {cores.usable} cores may be used, "
        f"which costs speed: part of any speedup comes from --threads {cores.usable} alone"
    )


def attention_warning(task: Task, baseline: Trial) -> str:
    """Return a warning if the runtime itself switched flash attention off, or else ""."""
    if not _is_attention_switched_off(baseline):
        return ""
    reason = "the runtime switched flash attention off, because a device has no kernel for this "
    reason += "model: with it, prompts may take many times as long; "
    if without_flash_attention(task, baseline) is not task:
        return f"{reason}so only flash_attn off is tried, which needs an f16 cache"
    return f"{reason}use --set flash_attn=off --kv-floor f16"


def without_flash_attention(task: Task, baseline: Trial) -> Task:
    """Return the task without flash attention if the runtime itself switched it off.

    The task is unchanged if its space does not search it, or has no point without it.
    """
    axis = task.space.axis("flash_attn")
    if axis is None or not _is_attention_switched_off(baseline):
        return task
    axes = (replace(one, values=("off",)) if one is axis else one for one in task.space.axes)
    space = replace(task.space, axes=tuple(axes))
    return replace(task, space=space) if any(space.points()) else task


def _is_attention_switched_off(baseline: Trial) -> bool:
    """Return whether the runtime itself switched flash attention off.

    It does so if a device has no kernel for the model's head sizes. With `on` the attention is
    computed on the processor: on a real card a prompt then took 8 times as long.
    """
    applied = baseline.measurement.applied if baseline.measurement else {}
    return "flash_attn" not in baseline.candidate.params and applied.get("flash_attn") == "off"


def find_baseline_point(task: Task, problem: Problem, baseline: Trial) -> Point | None:
    """Return the point of the search space that equals the baseline, or None if there is none.

    There is none if the search places layers, because the runtime's own fit places them
    differently.
    """
    if problem.searches_layouts or baseline.measurement is None:
        return None
    applied = {
        **task.runtime.dialect.defaults,
        "threads": task.cores.physical,
        **baseline.measurement.applied,
    }
    point: dict[str, ParamValue] = {}
    for axis in problem.axes:
        used = {format_value(applied[name]) for name in axis.params if name in applied}
        values = [value for value in axis.values if used == {format_value(value)}]
        if len(values) != 1:
            return None
        point[axis.name] = values[0]
    return point if task.space.allows(point) else None


def write_out_settings(
    task: Task, baseline: Trial, planner: RuntimePlanner | None = None
) -> Candidate:
    """Return the baseline with its effective settings as explicit parameters.

    The runtime's own choice depends on the free memory at each start, but a preset must not. The
    placement comes from the runtime's planner, which runs while no server does.
    """
    applied = baseline.measurement.applied if baseline.measurement else {}
    reported: dict[str, ParamValue] = {
        name: applied[name]
        for name in _WRITABLE
        if name in applied and task.runtime.supports(name, applied[name])
    }
    placed = dict(planner.fit(baseline.candidate) or {}) if planner else {}
    if int(placed.get("n_gpu_layers", 0)) < 0:
        placed["n_gpu_layers"] = task.inventory.units
    placement = {name: value for name, value in placed.items() if name in PLACEMENT_PARAMS}
    given = {n: v for n, v in baseline.candidate.params.items() if n != "fit_target"}
    return Candidate({**reported, **placement, **given})


def explicit_baseline(
    task: Task, runner: TrialRunner, baseline: Trial, planner: RuntimePlanner | None
) -> Finalist:
    """Return the baseline with explicit settings, or unchanged if its placement is unknown."""
    candidate = write_out_settings(task, baseline, planner)
    is_placed = not task.devices or "n_gpu_layers" in candidate.params
    if is_placed or task.baseline_params is not None:
        return Finalist(candidate, FROZEN, is_baseline=True)
    runner.note(
        "this build has no llama-fit-params next to it, so the placement by its own fit is "
        "unknown: the preset leaves the fit on"
    )
    return baseline_finalist(task)


def describe_baseline(task: Task) -> str:
    """Return a name for the baseline that can be used in a sentence."""
    is_given = task.baseline_params is not None
    return "the command given with --baseline" if is_given else "the runtime's own choice"
