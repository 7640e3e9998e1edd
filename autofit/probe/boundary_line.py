"""The lines of a probe: candidates of one layout and KV type that differ in host layers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autofit.errors import UsageError
from autofit.memory.boundary_search import BoundarySearch
from autofit.memory.dominance import shows_full_host
from autofit.memory.memory_model import MemoryModel
from autofit.model.placement.layout import SINGLE, TENSOR, plan_layout
from autofit.model.sizes.kv_cache import DEFAULT_KV_TYPE, kv_element_bytes
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point, Space
from autofit.session.candidate_factory import CandidateFactory, reported_host_layers
from autofit.session.task import Task
from autofit.trial.candidate import Candidate
from autofit.trial.parameter_groups import KV_TYPE_PARAMS
from autofit.trial.trial import Trial


@dataclass(slots=True)
class BoundaryLine:
    """A line of candidates on which one boundary is searched, and its known results.

    All candidates share layout, KV type and `point`, their other settings. `ruled_out` maps a
    number of host layers to the failed launch that rules it out. `stopped_by` is the launch that
    ended the search for another reason than memory.
    """

    layout: str
    cache_type: str
    point: Point
    search: BoundarySearch
    factory: CandidateFactory
    memory: MemoryModel
    ruled_out: dict[int, Trial] = field(default_factory=dict)
    stopped_by: Trial | None = None

    @property
    def ubatch(self) -> int:
        """The ubatch that all its candidates share."""
        candidate = self.factory.candidate_of(self.point)
        return candidate.get_int("ubatch", 512) if candidate else 512

    @property
    def launches(self) -> dict[int, Trial]:
        """The launches by number of host layers, the first launched first."""
        found = {}
        for host_layers in self.search.known:
            trial = self.launch(host_layers)
            if trial is not None:
                found[host_layers] = trial
        return found

    def launch(self, host_layers: int | None) -> Trial | None:
        """Return the launch that gave the result for a number of host layers."""
        if host_layers not in self.search.known or host_layers in self.ruled_out:
            return None
        candidate = self.candidate(host_layers)
        return None if candidate is None else self.memory.launch_of(candidate)

    def candidate(self, host_layers: int) -> Candidate | None:
        """Return the candidate with a number of host layers, or None if there is none."""
        return self.factory.candidate_of(
            {**self.point, LAYOUT_AXIS: self.layout, HOST_LAYERS_AXIS: host_layers}
        )

    def free_mib(self, host_layers: int) -> float | None:
        """Return the predicted free MiB of the fullest device, or None without a candidate.

        Failures on this line lower the prediction. Without a prediction it is 0.
        """
        candidate = self.candidate(host_layers)
        if candidate is None:
            return None
        free = self.memory.free_mib(candidate)
        return 0.0 if free is None else free - self.excess_mib

    @property
    def excess_mib(self) -> float:
        """The MiB by which predictions are at least too low, as failures on this line show."""
        return self.memory.excess_mib(self.launches.values())

    def exceeds_host(self, host_layers: int) -> bool:
        """Return whether a launch shows that these layers exceed the host's memory."""
        trial = self.launch(host_layers)
        return trial is not None and shows_full_host(trial, self.memory)

    @property
    def failure(self) -> Trial | None:
        """The launch that shows the side that does not fit, or None if there is none."""
        if self.stopped_by is not None:
            return self.stopped_by
        fails = self.search.fails
        if fails is not None:
            return self.launch(fails) or self.ruled_out.get(fails)
        if self.search.fits is not None:
            return None
        failed = [trial for trial in self.launches.values() if not trial.is_completed]
        return failed[-1] if failed else None

    def reported(self, host_layers: int | None, *, fits: bool = True) -> int | None:
        """Return a number of host layers as users count them: on one device by `n_cpu_moe`."""
        return reported_host_layers(
            self.layout,
            host_layers,
            self.candidate,
            self.factory.task.inventory.units,
            fits=fits,
        )


def make_lines(
    factory: CandidateFactory,
    memory: MemoryModel,
    layouts: Sequence[str],
    points: Mapping[str, Point],
) -> list[BoundaryLine]:
    """Return a line for each layout and KV type.

    Narrow KV types come first: a candidate that does not fit with one fits with no wider one.
    """
    lines = []
    for layout in layouts:
        for cache_type in sorted(points, key=kv_element_bytes):
            search = BoundarySearch(
                most=factory.most_host_layers(),
                expected=_expected_layers(factory, layout, points[cache_type]),
                is_zero_separate=not layout.startswith(SINGLE),
            )
            point = points[cache_type]
            lines.append(BoundaryLine(layout, cache_type, point, search, factory, memory))
    return lines


def _expected_layers(factory: CandidateFactory, layout: str, point: Point) -> int:
    """Return the fewest host layers that fit by the estimate, or all if none fits."""
    task, most = factory.task, factory.most_host_layers()
    base = factory.candidate_of(point)
    if base is None:
        return most
    found = plan_layout(task.inventory, base, task.devices, layout, None)
    return found.host_expert_layers if found.fits else most


def choose_layouts(factory: CandidateFactory, names: Sequence[str]) -> tuple[str, ...]:
    """Return the layouts with these names; without names, those of the devices' own order.

    The name `single` means each device alone. Layouts of another order have nearly the same
    boundary, and are probed only by name.

    Raises:
        UsageError: there is no such layout, or no layout at all.
    """
    # A layout that keeps nothing on the host has no boundary.
    known = tuple(name for name in factory.layout_names() if name != TENSOR)
    if not known:
        devices = factory.task.devices
        raise UsageError(
            "there is no boundary to find: "
            + ("the placement is fixed" if devices else "the runtime lists no device"),
            "a probe moves layers between devices and system RAM: do not fix n_cpu_moe, "
            "tensor_split and the like, and choose a search space with layouts"
            if devices
            else "`autofit doctor` says what is missing",
        )
    chosen = []
    for name in names:
        found = [one for one in known if one == name or (name == "single" and SINGLE in one)]
        if not found:
            raise UsageError(
                f"--layout {name}: there is no such layout for these devices",
                f"use one of: {', '.join(known)}",
            )
        chosen += found
    usual = tuple(name for name in known if ":" not in name or SINGLE in name)
    return tuple(dict.fromkeys(chosen)) or usual


def choose_points(task: Task, cache_types: Sequence[str]) -> dict[str, Point]:
    """Return the settings to probe, keyed by KV type; the default types are those of the space.

    All other settings have the first values of the space.

    Raises:
        UsageError: the runtime has no such KV type, or the settings exclude one another.
    """
    for kind in cache_types:
        if not task.runtime.supports(KV_TYPE_PARAMS[0], kind):
            known = ", ".join(task.runtime.values(KV_TYPE_PARAMS[0]))
            raise UsageError(f"--kv {kind}: {task.runtime.name} has {known}")
    space = task.space
    axis = next((axis for axis in space.axes if set(axis.params) & set(KV_TYPE_PARAMS)), None)
    if cache_types:
        axis = axis or Axis(KV_TYPE_PARAMS[0][:-2], (), KV_TYPE_PARAMS)
        kept = {n: v for n, v in space.pinned.items() if n not in KV_TYPE_PARAMS}
        others = tuple(one for one in space.axes if one.name != axis.name)
        space = replace(
            space, axes=(*others, replace(axis, values=tuple(cache_types))), pinned=kept
        )
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
            "remove the `--set` or `--ubatch` that excludes every value of another parameter",
        )
    return point
