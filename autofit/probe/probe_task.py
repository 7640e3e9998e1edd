"""What a probe is to find out: which layouts, which KV types, with which other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autofit.errors import UsageError
from autofit.model.placement.layout import SINGLE
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE
from autofit.search.space import Axis, Point, Space
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.task import Task
from autofit.trial.parameter_groups import KV_TYPE_PARAMS

# What llama.cpp takes where nothing is said.


def chosen_layouts(factory: CandidateFactory, asked: Sequence[str]) -> tuple[str, ...]:
    """The layouts of these names, all of the space where none is asked for.

    `single` stands for each device alone.

    Raises:
        UsageError: there is no such layout, or none to choose from.
    """
    known = factory.layout_names()
    if not known:
        devices = factory.task.devices
        raise UsageError(
            "there is no boundary to look for: "
            + ("the layers' places are fixed" if devices else "the runtime lists no device"),
            "a probe moves layers between devices and system RAM: leave n_cpu_moe, tensor_split "
            "and the like to it, and take a search space with layouts"
            if devices
            else "`autofit doctor` says what is missing",
        )
    chosen = []
    for name in asked:
        found = [one for one in known if one == name or (name == "single" and SINGLE in one)]
        if not found:
            raise UsageError(f"--layout {name}: no such layout here", f"known: {', '.join(known)}")
        chosen += found
    return tuple(dict.fromkeys(chosen)) or known


def chosen_points(task: Task, asked: Sequence[str]) -> dict[str, Point]:
    """The settings to be probed by KV type: those of the space where none is asked for.

    All other settings have the first values of the space.

    Raises:
        UsageError: the runtime has no such KV type, or the settings exclude one another.
    """
    for kind in asked:
        if not task.runtime.supports(KV_TYPE_PARAMS[0], kind):
            known = ", ".join(task.runtime.values(KV_TYPE_PARAMS[0]))
            raise UsageError(f"--kv {kind}: {task.runtime.name} has {known}")
    space = task.space
    axis = next((axis for axis in space.axes if set(axis.params) & set(KV_TYPE_PARAMS)), None)
    if asked:
        axis = axis or Axis(KV_TYPE_PARAMS[0][:-2], (), KV_TYPE_PARAMS)
        kept = {n: v for n, v in space.pinned.items() if n not in KV_TYPE_PARAMS}
        others = tuple(one for one in space.axes if one.name != axis.name)
        space = replace(space, axes=(*others, replace(axis, values=tuple(asked))), pinned=kept)
    elif axis is None:
        kind = str(space.pinned.get(KV_TYPE_PARAMS[0], DEFAULT_KV_TYPE))
        return {kind: _first_point(space)}
    kinds = (space.axis(axis.name) or axis).values
    return {
        str(kind): _first_point(space.with_values(axis.name, (kind,).__contains__))
        for kind in kinds
    }


def _first_point(space: Space) -> Point:
    point = next(space.points(), None)
    if point is None:
        raise UsageError(
            f"the constraints of the space {space.name} allow no settings",
            "`--set` or `--ubatch` excludes every value of another parameter",
        )
    return point
