"""A check of a preset against this machine: its runtime, model file and free memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from autofit.errors import UsageError
from autofit.machine.lock import machine_lock
from autofit.memory.calibration import CalibrationStore
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.model.sizes.unreported_memory import context_mib
from autofit.presets.command_options import CPU_MOE, named_files, unlisted_flags
from autofit.presets.formats.ini import refused_keys
from autofit.presets.preset_command import PresetCommand, find_preset_runtime, parse_preset_command
from autofit.presets.preset_task import PresetOptions, build_preset_task
from autofit.presets.read_preset import ParsedPreset, read_preset
from autofit.runtime.command.argv_writer import find_unsupported
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.session.task import Task
from autofit.session.task_setup import make_planner, read_environment
from autofit.study.fingerprint import Environment, file_digest
from autofit.trial.candidate import Candidate
from autofit.trial.device import HOST_NAME, Device
from autofit.yaml_files import did_you_mean

# The parts of a check value that presets carry.
_PARTS = ("machine", "build", "model file")
Source = Literal["measured", "predicted"]


_VARIABLE = re.compile(r"LLAMA_ARG_(?:NO_)?(\w+)")
# Memory that a server takes on an unused device, in addition to the driver's context.
_UNUSED_MIB = 128.0
# Values of `n_gpu_layers` that leave the placement to the runtime's own fit.
_PLACED_BY_RUNTIME = (None, "auto", -1)


@dataclass(frozen=True, slots=True)
class CheckReason:
    """A reason why a preset does not fit any more, and what to do about it."""

    kind: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that a device, or `host`, must provide, and the free memory there.

    `needed_mib` is measured or predicted, as `source` says. `peak_mib` is the memory that all
    programs used at the peak of the proof. The server itself used `taken_mib` of it. Both are None
    if they are unknown.
    """

    name: str
    needed_mib: float
    free_mib: float
    peak_mib: float | None = None
    taken_mib: float | None = None
    source: Source = "predicted"

    @property
    def fits(self) -> bool:
        """True if enough memory is free."""
        return self.needed_mib <= self.free_mib


@dataclass(slots=True)
class MachineCheck:
    """The result of a check: reasons why a preset does not fit, notes, and the memory it needs."""

    preset: ParsedPreset
    reasons: list[CheckReason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: tuple[MemoryNeed, ...] = ()
    runtime: str | None = None
    model: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON data."""
        return {
            "preset": self.preset.label,
            "kind": self.preset.kind,
            "section": self.preset.section or None,
            "fits": not self.reasons,
            "reasons": [asdict(reason) for reason in self.reasons],
            "notes": self.notes,
            "devices": [{**asdict(need), "fits": need.fits} for need in self.needs],
            "runtime": self.runtime,
            "model": self.model,
        }

    @property
    def tuned_parts(self) -> list[str]:
        """The machine, build and model that the preset was tuned for; empty if unknown."""
        parts = str(self.preset.metadata.get("check", "")).split("-")
        return parts if len(parts) == len(_PARTS) else []


def check_machine(
    given: str, *, section: str | None = None, runtime: str | None = None
) -> MachineCheck:
    """Check that a preset's runtime, model and memory fit this machine now.

    Raises:
        UsageError: the preset cannot be read.
        MachineInUseError: another autofit measures here, so free memory has no meaning.
    """
    preset = read_preset(given, section=section)
    check = MachineCheck(preset)
    own = _check_runtime(check, runtime)
    has_model = _check_model(check, own)
    if not has_model or check.runtime is None:
        check.notes.append("free memory was not checked")
        return check
    options = PresetOptions(runtime=runtime, model=own.model)
    with machine_lock("autofit check"):
        task = build_preset_task(preset, options, objective="request_s")
        _check_memory(check, task, own)
    now = read_environment(task).check_value.split("-")
    check.notes += [
        f"the preset was proven on another {part}; `autofit probe` proves it here"
        for part, tuned, present in zip(_PARTS[:2], check.tuned_parts, now, strict=False)
        if tuned != present
    ]
    return check


def _check_runtime(check: MachineCheck, path: str | None) -> PresetCommand:
    """Return the command and its runtime, or another runtime if its own is missing."""
    try:
        runtime, notices = find_preset_runtime(check.preset, path, None)
    except UsageError as error:
        hint = error.hint or "give the runtime with --runtime PATH"
        check.reasons.append(CheckReason("runtime", error.message, hint))
        own = parse_preset_command(check.preset, find_runtime(None), is_other_build=True)
    else:
        check.runtime = f"{runtime.name} ({runtime.program})"
        own = parse_preset_command(check.preset, runtime).with_notices(*notices)
        words = check.preset.server.full_argv(runtime.help, str(runtime.program))
        arguments = words[len(own.command.program) :]
        check.reasons += _key_reasons(check.preset, runtime.help)
        check.reasons += _flag_reasons(
            arguments, check.preset.server.full_env(runtime.help), runtime.help
        )
    check.notes += own.notices
    return own


def _key_reasons(preset: ParsedPreset, help_text: HelpText) -> Iterator[CheckReason]:
    """Yield the keys of any section for which the router refuses the whole file."""
    own_keys = {key for key, _ in preset.server.options}
    for key, right in refused_keys(preset.server.router_keys, help_text).items():
        hint = f"write {right}" if right else "remove it, or use the build that the file is for"
        if right or key not in own_keys:  # otherwise the build does not know the flag either
            message = f"the router does not know the key {key}, and refuses the whole file"
            yield CheckReason("flag", message, hint)


def _flag_reasons(
    arguments: Sequence[str], env: Mapping[str, str], help_text: HelpText
) -> Iterator[CheckReason]:
    """Yield the flags and variables that a build does not know; none if it lists no flags."""
    if not help_text.flags:
        return
    for spelling in unlisted_flags(arguments, help_text):
        removed = help_text.flags.get(spelling)
        state = "has removed" if removed else "does not know"
        advice = removed.text if removed else did_you_mean(spelling, help_text.flags)
        yield CheckReason(
            "flag",
            f"this build {state} {spelling}",
            f"{advice} remove it, or use the build that the preset is for".strip(),
        )
    known = {flag.env for flag in help_text.flags.values() if flag.env}
    for name in env:
        found = _VARIABLE.fullmatch(name)
        if found and not {name, f"LLAMA_ARG_{found[1]}"} & known:
            yield CheckReason(
                "flag",
                f"this build does not know the variable {name}",
                "remove it, or use the build that the preset is for",
            )


def _value_reasons(runtime: Runtime, candidate: Candidate) -> Iterator[CheckReason]:
    """Yield a reason for each setting whose value this build refuses."""
    known = {name: v for name, v in candidate.params.items() if runtime.supports(name)}
    problem = find_unsupported(runtime, Candidate(known))
    if problem is not None:
        yield CheckReason("value", problem.message, "change the value, or use another build")


def _check_model(check: MachineCheck, own: PresetCommand) -> bool:
    """Check that the model's file is the one that was tuned; return whether it can be read."""
    if own.model is None:
        hint = "name the model in the preset: the check reads its file"
        check.reasons.append(CheckReason("model", "the preset names no model file", hint))
        return False
    check.model = str(own.model)
    try:
        digest = file_digest(read_inventory(own.model).files)
    except UsageError as error:
        hint = error.hint or "put the file back, or write the preset for its new place"
        check.reasons.append(CheckReason("model", error.message, hint))
        return False
    plain = Environment(
        cpu="", cpu_count=0, memory_mib=0, devices=(), driver="", build="", model_digest=digest
    )
    if check.tuned_parts and check.tuned_parts[2] != plain.check_value.split("-")[2]:
        check.reasons.append(
            CheckReason(
                "model",
                f"{own.model} is not the file that the preset was tuned for",
                "tune again: `autofit tune MODEL`, or put the other file back",
            )
        )
    return True


def _check_memory(check: MachineCheck, task: Task, own: PresetCommand) -> None:
    """Compare the memory that the preset needs with the free memory."""
    candidate = task.baseline
    check.reasons += _value_reasons(task.runtime, candidate)
    peak_mib, taken_mib = _measured_memory(check, own)
    missing = list(_missing_devices(candidate, task.devices, taken_mib))
    check.reasons += missing
    if task.devices and not missing and _is_placed_by_runtime(candidate, own.command.rest):
        check.notes.append("the runtime itself places layers in free memory: it always fits")
        return
    # Without one of its devices the settings cannot be placed.
    predicted = None if missing else _predict_memory(_with_counts(candidate, task, own), task)
    check.needs = tuple(_needs(task, predicted, peak_mib, taken_mib))
    if predicted is None and not missing:
        check.reasons += _unknown_reasons(candidate, task.devices, check.needs)
    others = named_files(own.command.rest, task.runtime.help, Path())
    if others and any(need.source == "predicted" for need in check.needs):
        check.notes.append(f"the memory of {', '.join(map(str, others))} is not counted")
    check.reasons += memory_reasons(check.needs)
    check.notes += memory_notes(check.needs)


def _measured_memory(
    check: MachineCheck, own: PresetCommand
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the memory by device at the peak of the proof: of all programs, and of the server.

    Both are empty if the command has another context or other slots than the proof had.
    """
    measured, params = check.preset.workload, own.command.params
    if measured is not None:
        for name, proven in (("context", measured.context), ("parallel", measured.parallel)):
            if params.get(name, proven) != proven:
                check.notes.append(
                    f"the preset was measured with {name} {proven} and now has {params[name]}: "
                    "its memory is predicted"
                )
                return {}, {}
    peak_mib, taken_mib = (check.preset.metadata.get(key) for key in ("peak_mib", "taken_mib"))
    return _numbers(peak_mib), _numbers(taken_mib)


def _numbers(values: object) -> dict[str, float]:
    """Return the numbers of a JSON object, which a user may have edited."""
    items = values.items() if isinstance(values, dict) else ()
    return {name: float(value) for name, value in items if type(value) in (int, float)}


def _missing_devices(
    candidate: Candidate, devices: Sequence[Device], taken_mib: Mapping[str, float]
) -> Iterator[CheckReason]:
    """Yield the devices that the preset uses and this machine does not have."""
    present = [device.name for device in devices]
    listed = ", ".join(present) or "none"
    hint = f"the runtime lists: {listed}; tune here: `autofit tune MODEL`"
    named = candidate.get_str("devices", "")
    if named:
        used = [] if named == "none" else [name.strip() for name in named.split(",")]
    else:
        used = [
            name
            for name, mib in taken_mib.items()
            if name != HOST_NAME and mib > context_mib(name) + _UNUSED_MIB
        ]
    missing = [name for name in used if name not in present]
    for name in missing:
        yield CheckReason(
            "device", f"the preset uses {name}, and this machine has no such device", hint
        )
    shares = len(re.split(r"[,/;]", candidate.get_str("tensor_split", "0")))
    expected = len(used) if named else len(present)
    if not missing and shares > max(1, expected):
        yield CheckReason(
            "device",
            f"the preset splits the model among {shares} devices, and {expected} are there",
            hint,
        )


def _unknown_reasons(
    candidate: Candidate, devices: Sequence[Device], needs: Sequence[MemoryNeed]
) -> Iterator[CheckReason]:
    """Yield a reason if the memory of a device is neither measured nor predicted."""
    named = candidate.get_str("devices", "")
    used = named.split(",") if named else [device.name for device in devices]
    known = {need.name for need in needs}
    unknown = [name for name in used if name not in known and name != "none"]
    if unknown or not needs:
        where = ", ".join(unknown) or "system RAM"
        yield CheckReason(
            "memory",
            f"the memory that the preset needs on {where} could not be estimated",
            "export the preset from its study: the file then has the measured memory; or tune "
            "again: `autofit tune MODEL`",
        )


def _predict_memory(candidate: Candidate, task: Task) -> MemoryEstimate | None:
    if not task.devices:
        return estimate_memory(task.inventory, candidate, ())
    memory = task.memory_model(make_planner(task), CalibrationStore())
    memory.ask_planner(candidate)
    return memory.predict(candidate)


def _with_counts(candidate: Candidate, task: Task, own: PresetCommand) -> Candidate:
    """Replace settings that mean "all layers" by counts, which the estimate needs."""
    if candidate.params.get("n_gpu_layers") in ("all", -2):
        candidate = candidate.with_params(n_gpu_layers=task.inventory.units)
    flags = task.runtime.help.flags
    moves_all = any(
        word in flags and CPU_MOE in flags[word].spellings for word in own.command.rest
    )
    if moves_all and task.inventory.is_moe:
        candidate = candidate.with_params(n_cpu_moe=task.inventory.block_count)
    return candidate


def _is_placed_by_runtime(candidate: Candidate, arguments: Sequence[str]) -> bool:
    """Return whether the runtime itself places layers, by the memory that is free."""
    fit_off = any(
        word in ("--fit", "-fit") and value.lower() in ("off", "0", "false", "disabled")
        for word, value in pairwise(arguments)
    )
    return candidate.params.get("n_gpu_layers") in _PLACED_BY_RUNTIME and not fit_off


def _needs(
    task: Task,
    predicted: MemoryEstimate | None,
    peak_mib: Mapping[str, float],
    taken_mib: Mapping[str, float],
) -> Iterator[MemoryNeed]:
    """Yield the needs of each device and of the host; a measurement replaces a prediction."""
    free_mib = {device.name: device.usable_mib for device in task.devices}
    predicted_mib = {row.name: row.total_mib for row in predicted.devices} if predicted else {}
    measured_mib = dict(taken_mib)
    if predicted is not None:
        predicted_mib[HOST_NAME] = predicted.host.resident_mib
        # The measured memory of a mapped model includes pages that the system can drop.
        if predicted.host.is_mapped and predicted_mib[HOST_NAME] < measured_mib.get(HOST_NAME, 0):
            del measured_mib[HOST_NAME]
    for name, free in {**free_mib, HOST_NAME: task.host_available_mib}.items():
        source: Source = "measured" if name in measured_mib else "predicted"
        needed = measured_mib.get(name, predicted_mib.get(name))
        if needed is not None:
            yield MemoryNeed(name, needed, free, peak_mib.get(name), taken_mib.get(name), source)


def memory_reasons(needs: Sequence[MemoryNeed]) -> Iterator[CheckReason]:
    """Yield the devices with too little free memory."""
    for need in needs:
        if need.fits:
            continue
        missing = need.needed_mib - need.free_mib
        where = "system RAM" if need.name == HOST_NAME else need.name
        yield CheckReason(
            "memory",
            f"{where} has {need.free_mib:,.0f} MiB free, {missing:,.0f} MiB too little for the "
            f"{need.needed_mib:,.0f} MiB that the preset needs ({need.source})",
            "check again when other programs use less of it, or tune again: `autofit tune MODEL`",
        )


def memory_notes(needs: Sequence[MemoryNeed]) -> Iterator[str]:
    """Yield the devices with less free memory than was used at the measured peak."""
    for need in needs:
        if not need.fits or need.source == "measured":
            continue
        peak_mib = need.peak_mib if need.taken_mib is None else need.taken_mib
        if peak_mib is not None and peak_mib > need.free_mib:
            whose = "all programs" if need.taken_mib is None else "the server"
            yield (
                f"{need.name} has {need.free_mib:,.0f} MiB free; at the peak of the proof "
                f"{whose} used {peak_mib:,.0f} MiB"
            )
