"""A recorded table as a search problem: its settings are the only points there are."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from autofit.errors import UsageError
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.replay.landscape import PARAMS, Landscape, Row, Settings
from autofit.search.model_traffic import ModelTraffic
from autofit.search.problem import Fit, Problem
from autofit.search.search_goal import TYPICAL_REQUESTS, Goal
from autofit.search.space import HOST_LAYERS_AXIS, Axis, Point, Space
from autofit.session.goal_of_task import model_traffic
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import Device
from autofit.trial.workload import Request

_LAYERS = "ncmoe"
# Larger than the layers of any model: whoever writes 999 means all of them.
_MORE_THAN_ANY = 200

PointKey = tuple[tuple[str, ParamValue], ...]


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of a machine beside its table, so that memory can be estimated."""

    inventory: ModelInventory
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class TableProblem:
    """The points of a table, the rows behind each, and the search problem they make."""

    landscape: Landscape
    machine: Machine | None = None
    points: tuple[Point, ...] = field(init=False)
    _rows: dict[PointKey, list[Row]] = field(init=False)

    def __post_init__(self) -> None:
        repeats = self.landscape.repeats
        named = [name for place, name in enumerate(PARAMS) if any(s[place] != "" for s in repeats)]
        points = [_point(settings, named) for settings in repeats]
        object.__setattr__(self, "points", tuple(points))
        rows = dict(zip(map(_key, points), repeats.values(), strict=True))
        object.__setattr__(self, "_rows", rows)

    def repeats(self, point: Point) -> list[Row]:
        """The rows that recorded a point."""
        return self._rows[_key(point)]

    def truth(self, point: Point) -> float | None:
        """The median of a point's repeats; None where more than half of them failed."""
        rows = self.repeats(point)
        values = [row.value(self.landscape.metric) for row in rows]
        ran = [value for value in values if value is not None]
        return median(ran) if 2 * len(ran) >= len(rows) and ran else None

    def problem(self) -> Problem:
        """The search problem."""
        landscape, request = self.landscape, self._request()
        return Problem(
            space=Space(landscape.name, "any", self._axes()),
            layouts=(),
            most_host_layers=0,
            candidate_of=self._candidate,
            fit_of=self._fit,
            goal=Goal(landscape.metric, (request,)),
            traits=self._traits(request),
            points=self.points,
        )

    def _request(self) -> Request:
        first, typical = self.landscape.rows[0], TYPICAL_REQUESTS[0]
        return Request(
            first.n_prompt or typical.prompt_tokens, first.n_gen or typical.predicted_tokens
        )

    def _axes(self) -> tuple[Axis, ...]:
        return tuple(
            Axis(name, _ordered({point[name] for point in self.points}), (_param(name),))
            for name in self.points[0]
        )

    def _candidate(self, point: Point) -> Candidate:
        params: dict[str, ParamValue] = {"n_gpu_layers": 999}
        if self.landscape.rows[0].n_ctx:
            params["context"] = self.landscape.rows[0].n_ctx
        params.update({_param(name): value for name, value in point.items() if value != ""})
        return Candidate(params)

    def _fit(self, candidate: Candidate) -> Fit | None:
        if self.machine is None:
            return None
        try:
            estimate = estimate_memory(self.machine.inventory, candidate, self.machine.devices)
        except UsageError:  # a split that the table tells in words
            return None
        fits = [Fit(device.free_mib, device.total_mib) for device in estimate.devices]
        return min(fits, key=lambda fit: fit.margin_mib, default=None)

    def _traits(self, request: Request) -> ModelTraffic:
        if self.machine is not None:
            depth = request.prompt_tokens + request.predicted_tokens // 2
            return model_traffic(self.machine.inventory, depth)
        told = [point.get(HOST_LAYERS_AXIS, "") for point in self.points]
        layers = [int(count) for count in told if count != ""]
        return ModelTraffic(layers=max([1, *layers]) if layers else ModelTraffic().layers)


def _point(settings: Settings, named: list[str]) -> Point:
    values = dict(zip(PARAMS, settings, strict=True))
    count = values[_LAYERS]
    if count != "" and int(count) > _MORE_THAN_ANY:
        values[_LAYERS] = _MORE_THAN_ANY
    return {_axis_name(name): values[name] for name in named}


def _axis_name(column: str) -> str:
    return HOST_LAYERS_AXIS if column == _LAYERS else PARAMS[column]


def _param(axis_name: str) -> str:
    return PARAMS[_LAYERS] if axis_name == HOST_LAYERS_AXIS else axis_name


def _ordered(values: set[ParamValue]) -> tuple[ParamValue, ...]:
    """Numbers in their order, then words in theirs."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def _key(point: Point) -> PointKey:
    return tuple(sorted(point.items()))
