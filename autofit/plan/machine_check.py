"""A check of a preset against this machine: its runtime, model file and free memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.machine.lock import machine_lock
from autofit.memory.calibration import CalibrationStore
from autofit.model.sizes.inventory import read_inventory
from autofit.model.sizes.memory_estimate import estimate_memory
from autofit.plan.machine_fit import (
    Need,
    Reason,
    flag_reasons,
    is_placed_by_runtime,
    memory_notes,
    memory_reasons,
    needs,
    value_reasons,
)
from autofit.presets.command_options import CPU_MOE, named_files
from autofit.presets.formats.ini import refused_keys
from autofit.presets.preset_command import PresetCommand, find_preset_runtime, parse_preset_command
from autofit.presets.preset_task import PresetOptions, build_preset_task
from autofit.presets.read_preset import ParsedPreset, read_preset
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.runtime.discovery.help_text import HelpText
from autofit.session.task import Task
from autofit.session.task_setup import make_planner, read_environment
from autofit.study.fingerprint import Environment, file_digest
from autofit.trial.candidate import Candidate

# The parts of a check value that presets carry.
_PARTS = ("machine", "build", "model file")


@dataclass(slots=True)
class MachineCheck:
    """Reasons why a preset does not fit, notes, and the memory that it needs."""

    preset: ParsedPreset
    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: tuple[Need, ...] = ()
    runtime: str | None = None
    model: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON data."""
        return {
            "preset": self.preset.label,
            "kind": self.preset.kind,
            "section": self.preset.section or None,
            "fits": not self.reasons,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "notes": self.notes,
            "devices": [need.to_dict() for need in self.needs],
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
        check.reasons.append(Reason("runtime", error.message, hint))
        own = parse_preset_command(check.preset, find_runtime(None))
    else:
        check.runtime = f"{runtime.name} ({runtime.program})"
        own = parse_preset_command(check.preset, runtime).with_notices(*notices)
        words = check.preset.server.full_argv(runtime.help, str(runtime.program))
        arguments = words[len(own.command.program) :]
        check.reasons += _key_reasons(check.preset, runtime.help)
        check.reasons += flag_reasons(arguments, check.preset.server.env, runtime.help)
    check.notes += own.notices
    return own


def _key_reasons(preset: ParsedPreset, help_text: HelpText) -> Iterator[Reason]:
    """Yield the keys of any section for which the router refuses the whole file."""
    own_keys = {key for key, _ in preset.server.options}
    for key, right in refused_keys(preset.router_keys, help_text).items():
        hint = f"write {right}" if right else "remove it, or use the build that the file is for"
        if right or key not in own_keys:  # otherwise the build does not know the flag either
            message = f"the router does not know the key {key}, and refuses the whole file"
            yield Reason("flag", message, hint)


def _check_model(check: MachineCheck, own: PresetCommand) -> bool:
    """Return whether the model's file can be read; it must be the one that was tuned."""
    if own.model is None:
        hint = "name the model in the preset: the check reads its file"
        check.reasons.append(Reason("model", "the preset names no model file", hint))
        return False
    check.model = str(own.model)
    try:
        digest = file_digest(read_inventory(own.model).files)
    except UsageError as error:
        hint = error.hint or "put the file back, or write the preset for its new place"
        check.reasons.append(Reason("model", error.message, hint))
        return False
    plain = Environment(
        cpu="", cpu_count=0, memory_mib=0, devices=(), driver="", build="", model_digest=digest
    )
    if check.tuned_parts and check.tuned_parts[2] != plain.check_value.split("-")[2]:
        check.reasons.append(
            Reason(
                "model",
                f"{own.model} is not the file that the preset was tuned for",
                "tune again: `autofit tune MODEL`, or put the other file back",
            )
        )
    return True


def _check_memory(check: MachineCheck, task: Task, own: PresetCommand) -> None:
    candidate = task.baseline
    check.reasons += value_reasons(task.runtime, candidate)
    if task.devices and is_placed_by_runtime(candidate, own.command.rest):
        check.notes.append("the runtime itself places layers by what is free: it always fits")
        return
    candidate = _with_counts(candidate, task, own)
    memory = task.memory_model(make_planner(task), CalibrationStore())
    memory.ask_planner(candidate)
    if task.devices:
        estimate = memory.predict(candidate)
    else:
        estimate = estimate_memory(task.inventory, candidate, ())
    if estimate is None:
        check.notes.append("memory could not be estimated for this placement")
        return
    measured = (check.preset.metadata.get(key) for key in ("peak_mib", "taken_mib"))
    peak_mib, taken_mib = (value if isinstance(value, dict) else {} for value in measured)
    check.needs = needs(estimate, task.host_available_mib, peak_mib, taken_mib)
    others = named_files(own.command.rest, task.runtime.help, Path())
    if others:
        check.notes.append(f"the memory of {', '.join(map(str, others))} is not counted")
    check.reasons += memory_reasons(check.needs)
    check.notes += memory_notes(check.needs)


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
