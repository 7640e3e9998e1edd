"""The runtime's own fit: what llama-server does with settings that are left open.

The order is llama.cpp's: measure; if every device keeps its margin change nothing; shorten
an unset context; give up where layers were placed by the user; fill devices from the last to
the first with layers whose experts stay on the host; then make layers whole from the first
device to the last, and squeeze in part of one more per device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes.allocation import DeviceBuffers, allocate
from fakes.machine import Machine
from fakes.model import Model
from fakes.placement import Placement, place
from fakes.settings import FIT_BLOCKERS, Params, make_settings, pad

DEFAULT_MARGIN_MIB = 1024.0
DEFAULT_LEAST_CONTEXT = 4096
FAILED = (
    "common_fit_params: encountered an error while trying to fit params to free device memory: "
    "failed to create llama_context from model"
)
_MOE = "(up|down|gate_up|gate)_(ch|)exps"
# What of a layer's experts overflows to the host, by how much of it fits.
_PARTS = (("UP", "(gate|gate_up|down).*"), ("GATE", "down.*"))


@dataclass(slots=True)
class Fit:
    """The outcome: parameters to go on with, and what was logged (`W` lines are warnings)."""

    params: dict[str, Any]
    is_fitted: bool = True
    log: list[tuple[str, str]] = field(default_factory=list)

    def say(self, text: str, level: str = "I") -> None:
        """Add a line to the log."""
        self.log.append((level, f"common_params_fit_impl: {text}"))


class _Fitter:
    def __init__(
        self,
        params: Params,
        machine: Machine,
        model: Model,
        free_mib: Sequence[float],
        margin_mib: float,
    ) -> None:
        self.machine, self.model, self.margin = machine, model, margin_mib
        self.fit = Fit(dict(params))
        self.open_free = list(free_mib)
        self.indices = make_settings(params, machine, model).devices
        # The fit runs before the process has opened the devices for good: their own
        # context is not in what it sees as free.
        self.free = [max(0.0, free_mib[i] - machine.devices[i].context_mib) for i in self.indices]

    def measure(self, params: Params) -> tuple[tuple[DeviceBuffers, ...], Placement]:
        settings = make_settings(params, self.machine, self.model)
        placement = place(self.model, settings, self.machine, self.open_free)
        return allocate(self.model, settings, placement, self.machine).devices, placement

    def used(self, params: Params) -> list[float]:
        return [b.static_mib - b.context_mib for b in self.measure(params)[0]]

    def says_table(self, params: Params) -> None:
        """Log the memory table that each dummy allocation prints."""
        buffers, placement = self.measure(params)
        host = placement.host_bytes / 1024 / 1024
        for level, text in memory_table(
            [
                (self.machine.devices[i], self.free[at], buffers[at])
                for at, i in enumerate(self.indices)
            ],
            host,
            0.0,
            32.0,
        ):
            self.fit.log.append((level, text))

    def run(self) -> Fit:
        fit, params = self.fit, self.fit.params
        fit.say("getting device memory data for initial parameters:")
        self.says_table(params)
        used = self.used(params)
        fit.say(
            f"projected to use {int(sum(used))} MiB of device memory vs. {int(sum(self.free))} "
            "MiB of free device memory"
        )
        if self.keeps_margin(used):
            left = min((f - u for f, u in zip(self.free, used, strict=True)), default=0.0)
            fit.say(
                f"will leave {int(left)} >= {int(self.margin)} MiB of free device memory, "
                "no changes needed"
                if len(used) == 1
                else "targets for free memory can be met on all devices, no changes needed"
            )
            return fit
        lacking = sum(used) - sum(self.free) + self.margin * len(used)
        fit.say(
            f"cannot meet free memory target{'s' if len(used) > 1 else ''} of "
            f"{int(self.margin)} MiB, need to reduce device memory by {int(lacking)} MiB"
        )
        if self.shorten_context() and self.keeps_margin(self.used(params)):
            return fit
        blocker = next((name for name in FIT_BLOCKERS if name in params), None)
        if blocker:
            fit.is_fitted = False
            spelled = "n_gpu_layers" if blocker == "n_gpu_layers" else blocker
            fit.log.append(
                ("W", ("common_fit_params: failed to fit params to free device memory: "
                 f"{spelled} already set by user to {params[blocker]}, abort"))
            )  # fmt: skip
            return fit
        self.fill()
        return fit

    def keeps_margin(self, used: Sequence[float]) -> bool:
        return all(f - u >= self.margin for f, u in zip(self.free, used, strict=True))

    def shorten_context(self) -> bool:
        fit, params = self.fit, self.fit.params
        if params.get("context"):
            fit.say(f"context size set by user to {params['context']} -> no change")
            return False
        before = self.model.context_train
        best = DEFAULT_LEAST_CONTEXT
        for share in range(31, 0, -1):
            trial = pad(max(DEFAULT_LEAST_CONTEXT, before * share / 32))
            used = sum(self.used({**params, "context": trial}))
            if used + self.margin * len(self.free) <= sum(self.free):
                best = trial
                break
        params["context"] = min(best, before)
        fit.say(f"context size reduced from {before} to {params['context']}")
        return True

    # ---- layers

    def arrange(self, counts: list[int], hosted: list[int], partial: dict[int, str]) -> Params:
        """Parameters for these numbers of units per device, the last `hosted` of each sparse."""
        params = self.fit.params
        total = sum(counts)
        first = self.model.units - total
        rules = []
        start = first
        for at, (count, sparse) in enumerate(zip(counts, hosted, strict=True)):
            end = min(start + count, self.model.n_layer)
            for index in range(max(start, end - sparse), end):
                rest = partial[at] if at in partial and index == end - sparse else _MOE
                if self.model.blocks[index].expert_bytes:
                    rules.append(rf"blk\.{index}\.ffn_{rest}=CPU")
            start += count
        made = {**params, "n_gpu_layers": total}
        if len(counts) > 1:
            made["tensor_split"] = ",".join(str(count) for count in counts)
        if rules:
            made["override_tensor"] = ",".join(rules)
        return made

    def fits(self, params: Params) -> bool:
        return self.keeps_margin(self.used(params))

    def fill(self) -> None:
        fit, fit_params = self.fit, self.fit.params
        fit.say("filling dense-only layers back-to-front:")
        counts = [0] * len(self.free)
        left = self.model.units
        for at in range(len(counts) - 1, -1, -1):
            low, high = 0, left
            while low < high:
                middle = (low + high + 1) // 2
                trial = [*counts[:at], middle, *counts[at + 1 :]]
                low, high = (
                    (middle, high)
                    if self.fits(self.arrange(trial, trial, {}))
                    else (low, middle - 1)
                )
            counts[at] = low
            left -= low
        if sum(counts) == 0:
            fit_params |= {"n_gpu_layers": 0}
            return
        fit.say(
            "converting dense-only layers to full layers and filling them front-to-back with "
            "overflow to next device/system memory:"
        )
        counts, hosted = self.make_whole(counts)
        partial = self.add_parts(counts, hosted)
        done = self.arrange(counts, hosted, partial)
        used = self.used(done)
        for at, index in enumerate(self.indices):
            device = self.machine.devices[index]
            fit.say(
                f"  - {device.name} ({device.description}): {counts[at]:2d} layers "
                f"({hosted[at]:2d} overflowing), {int(used[at]):6d} MiB used, "
                f"{int(self.free[at] - used[at]):6d} MiB free"
            )
        fit.log.append(("I", "common_fit_params: successfully fit params to free device memory"))
        fit.params = {**fit_params, **done}

    def make_whole(self, counts: list[int]) -> tuple[list[int], list[int]]:
        """Take layers from later devices while they fit whole, device by device."""
        hosted = list(counts)
        for at in range(len(counts)):
            low, high = 0, counts[at] + sum(counts[at + 1 :]) - (at < len(counts) - 1)
            while low < high:
                middle = (low + high + 1) // 2
                trial, sparse = self.with_whole(counts, hosted, at, middle)
                if self.keeps_margin_at(self.arrange(trial, sparse, {}), at):
                    low = middle
                else:
                    high = middle - 1
            counts, hosted = self.with_whole(counts, hosted, at, low)
        return counts, hosted

    def keeps_margin_at(self, params: Params, at: int) -> bool:
        return self.free[at] - self.used(params)[at] >= self.margin

    @staticmethod
    def with_whole(
        counts: list[int], hosted: list[int], at: int, whole: int
    ) -> tuple[list[int], list[int]]:
        counts, hosted = list(counts), list(hosted)
        if whole <= counts[at]:
            hosted[at] = counts[at] - whole
            return counts, hosted
        # More whole layers than it had: they come from the next devices that have any.
        lacking, counts[at], hosted[at] = whole - counts[at], whole, 0
        for later in range(at + 1, len(counts)):
            moved = min(lacking, counts[later])
            counts[later] -= moved
            hosted[later] = counts[later]
            lacking -= moved
        return counts, hosted

    def add_parts(self, counts: list[int], hosted: list[int]) -> dict[int, str]:
        partial: dict[int, str] = {}
        for at in range(len(counts)):
            for name, rest in _PARTS:
                if not hosted[at]:
                    continue
                self.fit.say(
                    f"trying to fit one extra layer with overflow_type=LAYER_FRACTION_{name}"
                )
                trial = {**partial, at: rest}
                if self.fits(self.arrange(counts, hosted, trial)):
                    partial = trial
        return partial


def memory_table(
    rows: Sequence[tuple[Any, float, Any]],
    host_model_mib: float,
    host_context_mib: float,
    host_compute_mib: float,
    repack_mib: float = 0.0,
) -> list[tuple[str, str]]:
    """The runtime's memory table: rows of (device, free MiB, buffers)."""
    head = "common_memory_breakdown_print: "
    names = [
        f"{device.name} ({device.endpoint or short_description(device.description)})"
        for device, _, _ in rows
    ]
    width = max([18, *(len(name) for name in names)])  # as wide as the heading at least
    lines = [
        (
            f"{head}| {'memory breakdown [MiB]':<{width + 4}} |  total    free     self   model   "
            "context   compute    unaccounted |"
        )
    ]
    for name, (device, free, b) in zip(names, rows, strict=True):
        context = b.kv_mib + b.recurrent_mib + b.cache_mib
        own = int(b.weights_mib) + int(context) + int(b.compute_mib)
        other = int(device.total_mib) - int(free) - own
        lines.append(
            f"{head}|   - {name:<{width}} | {int(device.total_mib)} = {int(free)} + "
            f"({own:5d} = {int(b.weights_mib):5d} + {int(context):7d} + "
            f"{int(b.compute_mib):7d}) + {other:11d} |"
        )
    hosts = [("Host", host_model_mib, host_context_mib, host_compute_mib)]
    if repack_mib:
        hosts.append(("CPU_REPACK", repack_mib, 0.0, 0.0))
    for name, *parts in hosts:
        weights, context, compute = map(int, parts)
        lines.append(
            f"{head}|   - {name:<{width}} | {weights + context + compute:22d} = {weights:5d} + "
            f"{context:7d} + {compute:7d}                |"
        )
    return [("I", line) for line in lines]


def short_description(description: str) -> str:
    """A device's description as the memory table shortens it."""
    for prefix in ("NVIDIA GeForce ", "NVIDIA ", "AMD Radeon ", "AMD ", "Intel(R) "):
        if description.startswith(prefix):
            return description[len(prefix) :]
    return description


def fit(
    params: Params,
    machine: Machine,
    model: Model,
    free_mib: Sequence[float],
    margin_mib: float = DEFAULT_MARGIN_MIB,
) -> Fit:
    """Fill in what the parameters leave open so that every device keeps a margin free."""
    fitter = _Fitter(params, machine, model, free_mib, margin_mib)
    return fitter.run() if fitter.indices else fitter.fit
