"""The task of a run: all that is known before its first launch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autofit.errors import MissingError, NothingFitsError, UnsupportedError, UsageError
from autofit.machine.cpu import Cores
from autofit.memory.calibration import CalibrationStore
from autofit.memory.memory_model import MemoryModel
from autofit.model.sizes.inventory import ModelInventory
from autofit.model.sizes.kv_cache import KV_TYPES, kv_element_bytes
from autofit.runtime.command.argv_writer import find_refused
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.planner.planner import RuntimePlanner
from autofit.search.space import Axis, Space
from autofit.session.requirement import Requirement
from autofit.trial.candidate import Candidate, Params, ParamValue
from autofit.trial.device import Device
from autofit.trial.metric import Metric
from autofit.trial.parameter_groups import EXPERT_MEMORY_PARAMS, KV_TYPE_PARAMS, find_value_fault
from autofit.trial.workload import Workload
from autofit.yaml_files import did_you_mean

# The MiB that llama.cpp's own fit leaves free on each device by default.
FIT_MARGIN_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Model, runtime, devices, workload, objective and limits of one run.

    Attributes:
        devices: the devices that may be used, in order.
        host_available_mib: the system RAM that processes may use.
        space: the search space, without what runtime, model and user exclude.
        keeps_front: whether to search also for the best prompt and generation speeds, and to
            report a front.
        min_effect: the smallest speedup that counts; 0.03 is 3%.
        extra_args: the user's arguments for every launch.
        chooses_devices: whether the user chose the devices and their limits.
        baseline_params: the settings of the user's own command, or None without one.
        baseline_args: the other arguments of the user's own command.
        has_own_task: whether the user's command keeps its own context and slots, as in a
            comparison.
        notices: messages for the user about the task.
    """

    runtime: Runtime
    model_path: Path
    inventory: ModelInventory
    devices: tuple[Device, ...]
    cores: Cores
    host_available_mib: float
    workload: Workload
    space: Space
    objective: Metric = "request_s"
    keeps_front: bool = False
    requirements: tuple[Requirement, ...] = ()
    min_effect: float = 0.03
    rpc: str = ""
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    chooses_devices: bool = False
    baseline_params: Params | None = None
    has_own_task: bool = False
    baseline_args: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def task_params(self) -> Params:
        """The params that the workload sets. They are not searched."""
        return {"context": self.workload.context, "parallel": self.workload.parallel}

    @property
    def baseline(self) -> Candidate:
        """The candidate without tuning: the user's own command, or the runtime's choice.

        It has the task's context and slots, so that all launches get the same requests.
        """
        if self.baseline_params is not None:
            if self.has_own_task:
                return Candidate({**self.task_params, **self.baseline_params})
            return Candidate({**self.baseline_params, **self.task_params})
        params = dict(self.task_params)
        if self.chooses_devices and self.runtime.supports("devices"):
            params["devices"] = ",".join(device.name for device in self.devices)
            if self.runtime.supports("fit_target"):
                params["fit_target"] = ",".join(str(mib) for mib in self._kept_free_mib())
        return Candidate(params)

    def slot_context(self, candidate: Candidate) -> int:
        """Return the tokens of context of one slot of a candidate."""
        context = candidate.get_int("context", self.workload.context)
        # With 0 the runtime takes the context that the model was trained for.
        tokens = context if context > 0 else self.inventory.context_train
        return max(1, tokens // max(1, candidate.get_int("parallel", 1)))

    def _kept_free_mib(self) -> list[int]:
        """Return the MiB that the runtime's own fit must leave free, given the user's limits."""
        free = {device.name: device.usable_mib for device in self.runtime.devices or ()}
        return [
            int(max(0.0, free.get(device.name, 0.0) - device.allowed_mib)) + FIT_MARGIN_MIB
            for device in self.devices
        ]

    def memory_model(
        self, planner: RuntimePlanner | None = None, store: CalibrationStore | None = None
    ) -> MemoryModel:
        """Return the memory model of this model on these devices.

        Args:
            planner: the runtime's own planner, or None to use only arithmetic and launches.
            store: the calibration kept between studies, or None to keep nothing.
        """
        return MemoryModel(
            inventory=self.inventory,
            devices=self.devices,
            workload=self.workload,
            limits_mib=self.limits_mib,
            planner=planner,
            build=self.runtime.fingerprint,
            store=store,
        )

    @property
    def limits_mib(self) -> Mapping[str, float]:
        """The user's limit for each device in MiB, less the headroom; empty without limits."""
        if not self.chooses_devices:
            return {}
        free = {device.name: device.usable_mib for device in self.runtime.devices or ()}
        return {
            device.name: device.usable_mib
            for device in self.devices
            if not math.isclose(device.allowed_mib, free.get(device.name, -1.0))
        }

    @property
    def headroom_mib(self) -> Mapping[str, float]:
        """The memory that is to stay free, by device."""
        return {device.name: device.headroom_mib for device in self.devices}


def usable_devices(
    found: Sequence[Device], limits_mib: Mapping[str, float | None], *, allow_missing: bool = False
) -> tuple[Device, ...]:
    """Return the devices that a run may use: all, or those that the user named, in order.

    A limit of None is all the free memory of a device. With `allow_missing` a named device need
    not exist, if it has a limit.

    Raises:
        UsageError: the runtime does not list a named device.
    """
    if not limits_mib:
        return tuple(found)
    by_name = {device.name: device for device in found}
    unknown = sorted(set(limits_mib) - set(by_name))
    if unknown and not allow_missing:
        listed = ", ".join(f"{d.name} ({d.description})" for d in found) or "none"
        raise MissingError(
            f"the runtime has no device {', '.join(unknown)}",
            f"the runtime lists: {listed}; use --rpc for remote devices",
        )
    unsized = [name for name in unknown if limits_mib[name] is None]
    if unsized:
        raise MissingError(
            f"no device {', '.join(unsized)} here, so its memory is not known",
            f"give it, for example --device {unsized[0]}=12288",
        )
    return tuple(
        by_name[name]
        if mib is None
        else replace(by_name.get(name, Device(name, "", mib, mib)), usable_mib=mib)
        for name, mib in limits_mib.items()
    )


def fitted_space(
    space: Space, runtime: Runtime, inventory: ModelInventory, *, kv_floor: str, pins: Params
) -> Space:
    """Return the space without what runtime, model and user exclude.

    Raises:
        UsageError: the runtime does not have a pinned parameter or value, or the KV floor is not
            a KV type.
        NothingFitsError: no value is left for a parameter.
    """
    if kv_floor not in KV_TYPES:
        raise UsageError(
            f"--kv-floor {kv_floor} is not a KV type", f"known: {', '.join(KV_TYPES)}"
        )
    expanded = space.pin(pins) if pins else space
    for name, value in expanded.pinned.items():
        if not runtime.supports(name):
            names = runtime.parameters
            raise UnsupportedError(
                f"--set {name}: {runtime.name} has no such parameter",
                f"{did_you_mean(name, names)} it has: {', '.join(names)}".strip(),
            )
        _check_pin(runtime, inventory, name, value)
    fitted = expanded
    for axis in expanded.axes:
        _check_axis(runtime, inventory, axis)
        supported = [name for name in axis.params if runtime.supports(name)]
        if not supported:
            fitted = fitted.with_values(axis.name, lambda _: False)
            continue
        is_kv = not set(KV_TYPE_PARAMS).isdisjoint(axis.params)
        kept = [
            value
            for value in axis.values
            if all(runtime.supports(name, value) for name in supported)
            and not (is_kv and kv_element_bytes(value) < kv_element_bytes(kv_floor))
        ]
        if not kept:
            raise NothingFitsError(
                f"no value of {axis.name} is left for {runtime.name}",
                f"the space has {', '.join(map(str, axis.values))}; the KV floor is {kv_floor}",
            )
        fitted = fitted.with_values(axis.name, kept.__contains__)
    if not inventory.is_moe:
        # A dense model has no experts to prefetch or cache.
        for name in EXPERT_MEMORY_PARAMS:
            fitted = fitted.with_values(name, lambda _: False)
    fitted = replace(fitted, is_refused=lambda params: find_refused(runtime, params) is not None)
    if next(fitted.points(), None) is None:
        rules = ", ".join(f"{c.left} {c.comparison} {c.right}" for c in fitted.constraints)
        raise UsageError(
            f"no combination of the search space's values satisfies its constraints: {rules}",
            "use --set for the other parameters of the constraint, too",
        )
    return fitted


def _check_pin(runtime: Runtime, inventory: ModelInventory, name: str, value: ParamValue) -> None:
    """Check a value that the user pinned.

    Raises:
        UsageError: the parameter cannot have this value.
    """
    if not runtime.supports(name, value):
        known = ", ".join(runtime.values(name))
        raise UnsupportedError(f"--set {name}={value}: {runtime.name} accepts {known}")
    if name in {"context", "parallel"}:
        raise UsageError(f"--set {name}: the task sets this parameter", f"use --{name} {value}")
    parameter = runtime.dialect.parameters[name]
    fault = find_value_fault(name, value, type_=parameter.type, block_count=inventory.block_count)
    if fault:
        raise UsageError(f"--set {name}={value}: {fault}", "use another value, or leave it out")


def _check_axis(runtime: Runtime, inventory: ModelInventory, axis: Axis) -> None:
    """Check the values of an axis. More host layers than the model has are allowed.

    Raises:
        UsageError: a parameter cannot have one of the values.
    """
    blocks = max(inventory.block_count, *(v for v in axis.values if isinstance(v, int)), 0)
    for name in axis.params:
        parameter = runtime.dialect.parameters.get(name)
        if parameter is None:
            continue
        for value in axis.values:
            fault = find_value_fault(name, value, type_=parameter.type, block_count=blocks)
            if fault:
                raise UsageError(
                    f"the search space's {axis.name} {value}: {fault}",
                    "correct the file of the search space",
                )
