"""The search problem and its vocabulary: goal, points, predicted margins, observations.

A search minimises the cost of a goal over the points of a space. Cost is the objective as a
quantity of which less is better: seconds, or seconds per token for a rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autofit.memory.demand import Memory
from autofit.search.hardware import Hardware
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Point, Space
from autofit.trial.candidate import Candidate, ParamValue
from autofit.trial.device import Device
from autofit.trial.metric import Metric
from autofit.trial.workload import Request
from autofit.units import MIB

_GIB = 1024 * MIB
# The request of a goal without a workload.
TYPICAL_REQUESTS = (Request(2048, 256),)


@dataclass(frozen=True, slots=True)
class Limit:
    """An upper limit on the cost of a metric that a winner must satisfy.

    `tg>=20` is `Limit("tg", 0.05)`: at most 0.05 seconds per token.
    """

    metric: Metric
    most: float


@dataclass(frozen=True, slots=True)
class Goal:
    """The objective, the requests that it is measured with, and limits on other metrics."""

    objective: Metric = "request_s"
    requests: tuple[Request, ...] = TYPICAL_REQUESTS
    limits: tuple[Limit, ...] = ()

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens of a mean request."""
        return self._mean([request.prompt_tokens for request in self.requests])

    @property
    def predicted_tokens(self) -> float:
        """Generated tokens of a mean request, without the first, which comes with the prompt."""
        return self._mean([max(request.predicted_tokens - 1, 1) for request in self.requests])

    @property
    def depth(self) -> float:
        """Tokens in the context, as a mean over generated tokens."""
        tokens = [r.prompt_tokens + r.predicted_tokens / 2 for r in self.requests]
        return self._mean(tokens)

    @property
    def needs_prompt_time(self) -> bool:
        """True if the objective or a limit depends on the time of prompts."""
        return bool({"request_s", "pp", "ttft"} & self._metrics)

    @property
    def needs_generation_time(self) -> bool:
        """True if the objective or a limit depends on the time of generation."""
        return bool({"request_s", "tg"} & self._metrics)

    @property
    def _metrics(self) -> set[Metric]:
        return {self.objective, *(limit.metric for limit in self.limits)}

    def _mean(self, values: list[float]) -> float:
        weights = [request.weight for request in self.requests]
        total = sum(weight * value for weight, value in zip(weights, values, strict=True))
        return total / sum(weights)


@dataclass(frozen=True, slots=True)
class ModelTraffic:
    """Bytes of a model that are read or moved, as means over its layers.

    The defaults are those of a typical 30B-A3B model.

    Attributes:
        layers: the number of layers whose experts (or all weights) may stay in system RAM.
        movable_bytes: bytes of such a layer that may stay there.
        read_bytes: the part of them that is read for one generated token.
        fixed_read_bytes: bytes of all other weights that are read for one generated token.
        kv_bytes: bytes of one token in an f16 KV cache, over all layers.
        is_known: whether the values are those of this model.
    """

    layers: int = 48
    movable_bytes: float = 0.36 * _GIB
    read_bytes: float = 0.0225 * _GIB
    fixed_read_bytes: float = 0.6 * _GIB
    kv_bytes: float = 98304.0
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class Fit:
    """Predicted memory of a candidate, in MiB, on its fullest device and on the host.

    Attributes:
        margin_mib: usable minus needed memory of the device; negative if it does not fit.
        needed_mib: memory that the device must provide.
        host_margin_mib: the same margin of the host; nan if it is unknown.
        host_needed_mib: memory that the host must provide.
    """

    margin_mib: float
    needed_mib: float
    host_margin_mib: float = math.nan
    host_needed_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """The layers of a candidate, by device in the order of `Problem.devices`.

    Attributes:
        layers: layers on each device, the output layer included.
        host_layers: those of them whose experts are in system RAM.
        whole_layers: layers that are in system RAM as a whole.
        first: the device that computes the prompts of host layers.
        is_divided: whether every layer is divided over the devices.
    """

    layers: tuple[float, ...]
    host_layers: tuple[float, ...]
    whole_layers: int
    first: int
    is_divided: bool = False


@dataclass(frozen=True, slots=True)
class PastLaunch:
    """A launch of an earlier study that ran.

    Attributes:
        settings: the runtime's effective settings, without placement.
        work: the layers of each device, in the order of the problem's devices.
        prompt_s: seconds per prompt token, or None if they were not measured.
        predicted_s: seconds per generated token, or None if they were not measured.
    """

    settings: Mapping[str, ParamValue]
    work: DeviceWork
    prompt_s: float | None
    predicted_s: float | None


@dataclass(frozen=True, slots=True)
class PastStudy:
    """The launches of an earlier study, and the sizes on which their speed depends.

    `similarity` is 1 for a study under the same conditions, and 0 if nothing can be learned. The
    margins are the predicted device memory of launches that fitted, and of those that ran out.
    """

    traffic: ModelTraffic
    requests: tuple[Request, ...]
    launches: tuple[PastLaunch, ...]
    similarity: float
    fitting_margins_mib: tuple[float, ...] = ()
    failing_margins_mib: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """The search problem of one tune.

    Attributes:
        space: all axes but layout and host layers.
        layouts: values of the layout axis; empty if layouts are not searched.
        most_host_layers: the largest number of host layers.
        candidate_of: returns the candidate of a point, or None if there is none.
        fit_of: returns the predicted memory of a candidate, or None if it is unknown.
        goal: the objective and its limits.
        traffic: the bytes of the model that decide its speed.
        hardware: the machine.
        devices: those of the task, or none if they are unknown.
        work_of: returns the work of each of several devices, or None if it is unknown.
        points: the only points that exist; empty if every combination of values is a point.
        is_eligible: returns whether a point may be proposed and picked. It is also called for
            points without layout and host layers. Observations of other points still count as
            data.
        past_studies: earlier studies on the same machine.
        may_repeat: returns whether a point may be launched again after a number of launches.
    """

    space: Space
    layouts: tuple[str, ...]
    most_host_layers: int
    candidate_of: Callable[[Point], Candidate | None]
    fit_of: Callable[[Candidate], Fit | None]
    goal: Goal = field(default_factory=Goal)
    traffic: ModelTraffic = field(default_factory=ModelTraffic)
    hardware: Hardware = field(default_factory=Hardware)
    devices: tuple[Device, ...] = ()
    work_of: Callable[[Candidate], DeviceWork | None] = lambda _: None
    points: tuple[Point, ...] = ()
    is_eligible: Callable[[Point], bool] = lambda _: True
    may_repeat: Callable[[Point, int], bool] = lambda _, __: True
    past_studies: tuple[PastStudy, ...] = ()

    @property
    def searches_layouts(self) -> bool:
        """True if the layout and the number of host layers are searched."""
        return bool(self.layouts)

    @property
    def has_points(self) -> bool:
        """True if at least one combination of the space's values may be proposed."""
        return any(self.is_eligible(point) for point in self.points or self.space.points())

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes, with layout and host layers; they do not change during a search."""
        if not self.searches_layouts:
            return self.space.axes
        return (
            Axis(LAYOUT_AXIS, self.layouts),
            Axis(HOST_LAYERS_AXIS, tuple(range(self.most_host_layers + 1))),
            *self.space.axes,
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """A point that was launched, and its cost.

    Attributes:
        point: the value of each axis.
        cost: the goal's objective as a quantity to minimise, or None if the launch failed.
        exhausted_memory: the memory that the launch ran out of, or None for any other failure.
        seconds: duration of the launch.
        prompt_s: seconds per prompt token, or None if they were not measured.
        predicted_s: seconds per generated token, or None if they were not measured.
        is_combination: whether the launch failed since the runtime refuses the combination.
    """

    point: Point
    cost: float | None
    exhausted_memory: Memory | None = None
    seconds: float = 0.0
    prompt_s: float | None = None
    predicted_s: float | None = None
    is_combination: bool = False


@dataclass(frozen=True, slots=True)
class Proposal:
    """The point to launch next.

    Attributes:
        point: the value of each axis.
        expected_gain: expected decrease of log cost; a failure counts as no decrease.
        why: the reason, for people.
        accepts: if the model is misspecified, a function that returns whether a random point
            may be launched instead.
    """

    point: Point
    expected_gain: float
    why: str = ""
    accepts: Callable[[Point], bool] | None = None
