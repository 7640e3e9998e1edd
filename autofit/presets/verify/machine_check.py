"""A check of a preset against this machine: its runtime, model file and free memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.machine.lock import machine_lock
from autofit.memory.calibration import CalibrationStore
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.memory_estimate import MemoryEstimate, estimate_memory
from autofit.presets.command_options import CPU_MOE, named_files
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
from autofit.yaml_files import did_you_mean

# The parts of a check value that presets carry.
_PARTS = ("machine", "build", "model file")
_FLAG = re.compile(r"--?[A-Za-z]")
_VARIABLE = re.compile(r"LLAMA_ARG_(?:NO_)?(\w+)")
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

    `peak_mib` was in use at the peak of the proof, other programs included; the server itself
    used `taken_mib` of it. None where it is unknown.
    """

    name: str
    needed_mib: float
    free_mib: float
    peak_mib: float | None = None
    taken_mib: float | None = None

    @property
    def fits(self) -> bool:
        """True if enough memory is free."""
        return self.needed_mib <= self.free_mib


@dataclass(slots=True)
class MachineCheck:
    """CheckReasons why a preset does not fit, notes, and the memory that it needs."""

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
    options = PresetOptions(
        runtime=runtime,
        dialect=None,
        model=own.model,
        workload="chat",
        context=None,
        parallel=None,
    )
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
    """Return the command on its runtime; another runtime reads it if its own is missing."""
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
    for key, right in refused_keys(preset.router_keys, help_text).items():
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
    words = iter(arguments)
    for word in words:
        spelling, equals, _ = word.partition("=")
        spelling = spelling.replace("_", "-") if spelling.startswith("--") else spelling
        flag = help_text.get(spelling)
        if flag is None and _FLAG.match(word):
            removed = help_text.flags.get(spelling)
            state = "has removed" if removed else "does not know"
            advice = removed.text if removed else did_you_mean(spelling, help_text.flags)
            yield CheckReason(
                "flag",
                f"this build {state} {spelling}",
                f"{advice} remove it, or use the build that the preset is for".strip(),
            )
        elif flag is not None and flag.takes_value and not equals:
            next(words, None)
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
    """Yield what this build refuses among the known settings."""
    known = {name: v for name, v in candidate.params.items() if runtime.supports(name)}
    problem = find_unsupported(runtime, Candidate(known))
    if problem is not None:
        yield CheckReason("value", problem.message, "change the value, or use another build")


def _check_model(check: MachineCheck, own: PresetCommand) -> bool:
    """Return whether the model's file can be read; it must be the one that was tuned."""
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
    if task.devices and _is_placed_by_runtime(candidate, own.command.rest):
        check.notes.append("the runtime itself places layers by what is free: it always fits")
        return
    predicted = _predict_memory(_with_counts(candidate, task, own), task)
    if predicted is None:
        check.notes.append("memory could not be estimated for this placement")
        return
    measured = (check.preset.metadata.get(key) for key in ("peak_mib", "taken_mib"))
    peak_mib, taken_mib = (value if isinstance(value, dict) else {} for value in measured)
    check.needs = _needs(predicted, task.host_available_mib, peak_mib, taken_mib)
    others = named_files(own.command.rest, task.runtime.help, Path())
    if others:
        check.notes.append(f"the memory of {', '.join(map(str, others))} is not counted")
    check.reasons += memory_reasons(check.needs)
    check.notes += memory_notes(check.needs)


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
    predicted: MemoryEstimate,
    host_available_mib: float,
    peak_mib: Mapping[str, float | None],
    taken_mib: Mapping[str, float | None],
) -> tuple[MemoryNeed, ...]:
    """Return the needs of each device and of the host, with the measured peaks."""

    def need(name: str, needed_mib: float, free_mib: float) -> MemoryNeed:
        return MemoryNeed(name, needed_mib, free_mib, peak_mib.get(name), taken_mib.get(name))

    found = [need(row.name, row.total_mib, row.usable_mib) for row in predicted.devices]
    return (*found, need("host", predicted.host.resident_mib, host_available_mib))


def memory_reasons(needs: Sequence[MemoryNeed]) -> Iterator[CheckReason]:
    """Yield the devices with too little free memory."""
    for need in needs:
        if need.fits:
            continue
        missing = need.needed_mib - need.free_mib
        where = "system RAM" if need.name == "host" else need.name
        yield CheckReason(
            "memory",
            f"{where} has {need.free_mib:,.0f} MiB free, {missing:,.0f} MiB too little for the "
            f"{need.needed_mib:,.0f} MiB that the preset needs",
            "end other programs that use it, or tune again: `autofit tune MODEL`",
        )


def memory_notes(needs: Sequence[MemoryNeed]) -> Iterator[str]:
    """Yield the devices with less free memory than was used at the measured peak."""
    for need in needs:
        peak_mib = need.peak_mib if need.taken_mib is None else need.taken_mib
        if need.fits and peak_mib is not None and peak_mib > need.free_mib:
            whose = "all programs" if need.taken_mib is None else "the server"
            yield (
                f"{need.name} has {need.free_mib:,.0f} MiB free; at the peak of the proof "
                f"{whose} used {peak_mib:,.0f} MiB"
            )
