"""The baseline's effective settings as an explicit candidate.

What the runtime chose by itself depends on free memory at the moment of the start; a preset
must not, so every setting that it told is written out.
"""

from __future__ import annotations

from autofit.runtime.planner.planner import RuntimePlanner
from autofit.session.task import Task
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.parameter_groups import KV_TYPE_PARAMS, PLACEMENT_PARAMS
from autofit.trial.trial import Trial

_FREEZABLE = (
    "context",
    "parallel",
    "batch",
    "ubatch",
    *KV_TYPE_PARAMS,
    "flash_attn",
    "load_mode",
)


def frozen_baseline(
    task: Task, baseline: Trial, planner: RuntimePlanner | None = None
) -> Candidate:
    """The candidate that says what the baseline ran with.

    Where layers lie is the runtime's own fit, asked of its planner while nothing runs.
    """
    applied = baseline.measurement.applied if baseline.measurement else {}
    told: dict[str, ParamValue] = {
        name: applied[name]
        for name in _FREEZABLE
        if name in applied and task.runtime.supports(name, applied[name])
    }
    placed = dict(planner.fit(baseline.candidate) or {}) if planner else {}
    if int(placed.get("n_gpu_layers", 0)) < 0:
        placed["n_gpu_layers"] = task.inventory.units
    known = {name: value for name, value in placed.items() if name in PLACEMENT_PARAMS}
    given = {n: v for n, v in baseline.candidate.params.items() if n != "fit_target"}
    return Candidate({**told, **known, **given})
