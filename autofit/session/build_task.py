"""Build a task from a user's options: find and check runtime, model, devices, workload and space.

No weights are loaded: the runtime lists its devices, and only the model's header is read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from autofit.errors import UsageError
from autofit.machine.cgroup import Cgroup
from autofit.machine.cpu import read_cores
from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.runtime.command.argv_reader import ParsedCommand, parse_command
from autofit.runtime.discovery.find_runtime import find_runtime, make_offline_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.program_inspector import list_devices
from autofit.search.space import Space
from autofit.search.space_file import read_space, read_workload
from autofit.session.headroom import with_headroom
from autofit.session.relevant_space import relevant_space
from autofit.session.requirement import Requirement
from autofit.session.task import Task, fitted_space, usable_devices
from autofit.session.task_options import TaskOptions
from autofit.session.task_setup import with_machine_facts
from autofit.trial.device import Device, backend_of
from autofit.trial.metric import Metric
from autofit.trial.parameter_groups import PLACEMENT_PARAMS
from autofit.trial.workload import Workload

_TASK_PARAMS = ("context", "parallel")
# The names by which llama.cpp's backends list their devices, without the number.
_BACKENDS = ("CUDA", "ROCm", "Vulkan", "SYCL", "MTL", "RPC", "MUSA", "CANN", "GPUOpenCL", "OpenCL")
_DEVICE_NAME = re.compile(r"\s*([A-Za-z][A-Za-z_ -]*?)[\s_:-]*0*(\d+)\s*")
# Names at least this similar are taken for misspellings.
_SIMILARITY = 0.75


def build_task(
    options: TaskOptions,
    *,
    runtime: Runtime | None = None,
    objective: Metric = "request_s",
    requirements: tuple[Requirement, ...] = (),
    keeps_front: bool = False,
    allow_missing: bool = False,
    searches: bool = True,
) -> Task:
    """Collect everything that a run must know before its first launch.

    `runtime` replaces the runtime that the options name. With `allow_missing` neither the
    runtime nor the named devices need to exist. The user's arguments for every launch must not set
    parameters of the search space, unless `searches` is false.

    Raises:
        UsageError: a file, name or value is wrong.
        NothingFitsError: the space has no values left for this runtime and model.
    """
    model = read_inventory(options.model)
    workload = read_workload(options.workload, context=options.context, parallel=options.parallel)
    metrics = {objective, *(requirement.metric for requirement in requirements)}
    # A front always needs tg.
    if keeps_front or "tg" in metrics:
        _refuse_without_generation(workload)
    found = runtime or _find_runtime(options, allow_missing=allow_missing)
    listed = list_devices(found, options.rpc) if found.fingerprint else ()
    present = with_machine_facts(listed or (), found, options.env)
    allowed = usable_devices(present, options.devices_mib, allow_missing=allow_missing)
    devices = with_headroom(allowed, options.headroom_mib)
    cores = read_cores()
    name = options.space or _default_space(model, devices)
    space = read_space(name, cores=cores.performance, all_cores=cores.physical)
    fitted = fitted_space(space, found, model, kv_floor=options.kv_floor, pins=options.pins)
    fitted = relevant_space(fitted, model, workload, devices, cores)
    refuse_reserved_args(options.extra_args, found, fitted if searches else None)
    return Task(
        runtime=found.with_devices(present),
        model_path=options.model.expanduser().absolute(),
        inventory=model,
        devices=devices,
        cores=cores,
        host_available_mib=Cgroup.find().available_mib(),
        workload=workload,
        space=fitted,
        objective=objective,
        requirements=requirements,
        keeps_front=keeps_front,
        rpc=options.rpc,
        extra_args=options.extra_args,
        env=options.env,
        wrapper=options.wrapper,
        chooses_devices=bool(options.devices_mib),
        notices=(
            *_context_notices(options, workload, model),
            *suggest_device_names(options.devices_mib, (device.name for device in present)),
        ),
    )


def _refuse_without_generation(workload: Workload) -> None:
    """Refuse a workload whose requests generate only one token, because that has no rate."""
    if workload.longest_predicted_tokens <= 1:
        raise UsageError(
            f"workload {workload.name} generates 1 token per request, so tg cannot be measured",
            "give the requests more predicted_tokens, or use another --objective or --require",
        )


def _context_notices(
    options: TaskOptions, workload: Workload, model: ModelInventory
) -> Iterator[str]:
    """Yield warnings if a slot's context cuts requests, or exceeds the trained context."""
    slot = workload.slot_context
    if workload.requests != read_workload(options.workload).requests:
        requests = ", ".join(f"{r.prompt_tokens}+{r.predicted_tokens}" for r in workload.requests)
        yield (
            f"requests are cut to the {slot} tokens of context of a slot: "
            f"{requests} prompt and generated tokens"
        )
    if 0 < model.context_train < slot:
        yield (
            f"a request may have {slot} tokens of context, but the model was trained for "
            f"{model.context_train}"
        )


def _find_runtime(options: TaskOptions, *, allow_missing: bool) -> Runtime:
    try:
        return find_runtime(options.runtime, options.dialect)
    except UsageError:
        if options.runtime is not None or not allow_missing:
            raise
        return make_offline_runtime(options.dialect or "llama_server")


def _default_space(model: ModelInventory, devices: tuple[Device, ...]) -> str:
    if not devices:
        return "cpu"
    return "moe" if model.is_moe else "dense"


def refuse_reserved_args(args: Sequence[str], runtime: Runtime, space: Space | None) -> None:
    """Refuse arguments after `--` that set what autofit sets.

    They come last on the server's command line and would override autofit's settings. autofit
    would not find a server at another address, and would send requests that do not fit to one
    with another context. If a `space` is given, its parameters are refused, too.

    Raises:
        UsageError: an argument is refused or lacks its value. The hint gives the alternative.
    """
    if not args:
        return
    command = parse_command([*runtime.command, *args], runtime.dialect, runtime.help)
    reserved = (*_launch_settings(command, runtime), *_searched_params(command, runtime, space))
    for flag, hint in reserved:
        raise UsageError(f"{flag} after `--` is set by autofit", hint)


def _launch_settings(command: ParsedCommand, runtime: Runtime) -> Iterator[tuple[str, str]]:
    """Yield each argument that autofit itself sets for every launch, with a hint."""
    for flag in command.address:
        what = "port" if "port" in flag else "address"
        yield flag, f"leave it out: autofit chooses the {what}"
    if command.model is not None:
        yield runtime.dialect.launch.model, "leave it out: the model is an argument of autofit"
    if command.rpc:
        yield runtime.dialect.launch.rpc or "--rpc", f"put it before `--`: --rpc {command.rpc}"
    for flag in command.left_out:
        yield flag, "leave it out: autofit must reach the server and read its log"
    for name in _TASK_PARAMS:
        if name in command.params:
            yield name, f"use --{name} {command.params[name]}, before `--`"


def _searched_params(
    command: ParsedCommand, runtime: Runtime, space: Space | None
) -> Iterator[tuple[str, str]]:
    """Yield each argument that sets a parameter of the search space, with a hint."""
    if space is None:
        return
    always = always_flags(runtime)
    for word in command.rest:
        if word.partition("=")[0] in always:
            yield word, "leave it out: autofit sets it in every launch except the baseline"
    searched = {name for axis in space.axes for name in axis.params}
    if space.layouts:
        searched |= {*PLACEMENT_PARAMS, "split_mode"}
    for name, value in command.params.items():
        if name in space.pinned:
            yield name, f"leave it out: --set {name}={space.pinned[name]} already sets it"
        elif name in searched:
            yield name, f"use --set {name}={value}, before `--`, to leave it out of the search"


def always_flags(runtime: Runtime) -> frozenset[str]:
    """Return all spellings of the flags that presets and launches with explicit settings have."""
    flags = (group[0] for group in runtime.dialect.launch.always)
    return frozenset(spelling for flag in flags for spelling in runtime.help.synonyms(flag))


def suggest_device_names(named: Iterable[str], found: Iterable[str]) -> Iterator[str]:
    """Yield a notice for each named device that does not exist but resembles another name.

    A name that differs only by a higher number is no misspelling: users plan for new cards.
    """
    present = tuple(found)
    for name in named:
        if name in present:
            continue
        similar = _similar_device(name, present)
        if similar is not None:
            where = "exists" if similar in present else "would be the usual name"
            yield f"there is no device '{name}', but {similar} {where}: did you mean that?"


def _similar_device(name: str, present: tuple[str, ...]) -> str | None:
    parts = _DEVICE_NAME.fullmatch(name)
    if parts is None:
        close = set(
            difflib.get_close_matches(name, present, n=len(present) or 1, cutoff=_SIMILARITY)
        )
        return next((device for device in present if device in close), None)
    backends = dict.fromkeys((*(backend_of(device) for device in present), *_BACKENDS))
    plain = {backend.casefold(): backend for backend in backends}
    own = re.sub(r"[^a-z]", "", parts[1].casefold())
    matches = difflib.get_close_matches(own, plain, n=1, cutoff=_SIMILARITY)
    best = [own] if own in plain else matches
    if not best:
        return None
    similar = f"{plain[best[0]]}{int(parts[2])}"
    return None if similar == name else similar
