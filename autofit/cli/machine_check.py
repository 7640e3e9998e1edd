"""`autofit check PRESET --against-machine`: does a preset still fit on this machine?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.preset_argument import PresetOptions, build_preset_task
from autofit.errors import RegressionError, UsageError
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
from autofit.presets.preset_command import PresetCommand, find_preset_runtime, parse_preset_command
from autofit.presets.read_preset import ParsedPreset, read_preset
from autofit.runtime.discovery.find_runtime import find_runtime
from autofit.session.task import Task
from autofit.session.task_setup import make_planner, read_environment
from autofit.study.fingerprint import Environment, file_digest
from autofit.text_format import mib, one_line
from autofit.trial.candidate import Candidate

_PARTS = ("machine", "build", "model file")


@dataclass(slots=True)
class MachineCheck:
    """What was found about one preset."""

    preset: ParsedPreset
    reasons: list[Reason] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    needs: tuple[Need, ...] = ()
    runtime: str | None = None
    model: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The check as JSON data."""
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


def check_machine(
    given: str, *, section: str | None = None, runtime: str | None = None
) -> MachineCheck:
    """Hold a preset against this machine, its runtime and the model file.

    Raises:
        UsageError: the preset cannot be read.
        MachineInUseError: another autofit measures here, so that free memory tells nothing.
    """
    preset = read_preset(given, section=section)
    found = MachineCheck(preset)
    own = _own(found, runtime)
    digest = _look_at_model(found, own)
    options = PresetOptions(
        runtime=runtime,
        dialect=None,
        model=own.model,
        workload="chat",
        context=None,
        parallel=None,
    )
    if digest is None or any(reason.kind == "runtime" for reason in found.reasons):
        found.notes.append("free memory was not looked at")
        return found
    with machine_lock("autofit check"):
        task = build_preset_task(preset, options, objective="request_s")
        _look_at_memory(found, task, own)
    found.notes += _differences(preset, read_environment(task))
    return found


def tell(found: MachineCheck, *, as_json: bool) -> int:
    """Print a check; returns the exit code."""
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        for need in found.needs:
            click.echo(f"{need.name}: takes {mib(need.needed_mib)}, {mib(need.free_mib)} free")
        verdict = "does not fit here any more" if found.reasons else "fits here"
        click.echo(f"{found.preset.label}: {verdict}")
    for note in found.notes:
        click.echo(f"notice: {one_line(note)}", err=True)
    for reason in found.reasons:
        click.echo(f"autofit: {one_line(reason.message)}", err=True)
        click.echo(f"hint: {one_line(reason.hint)}", err=True)
    return RegressionError.exit_code if found.reasons else 0


def _own(found: MachineCheck, path: str | None) -> PresetCommand:
    """The command on its runtime, or on another one to read it by where its own is missing."""
    try:
        runtime, notices = find_preset_runtime(found.preset, path, None)
    except UsageError as error:
        hint = error.hint or "give the runtime with --runtime PATH"
        found.reasons.append(Reason("runtime", error.message, hint))
        own = parse_preset_command(found.preset, find_runtime(None))
    else:
        found.runtime = f"{runtime.name} ({runtime.program})"
        own = parse_preset_command(found.preset, runtime).with_notices(*notices)
        words = found.preset.server.full_argv(runtime.help, str(runtime.program))
        arguments = words[len(own.command.program) :]
        found.reasons += flag_reasons(arguments, found.preset.server.env, runtime.help)
    found.notes += own.notices
    return own


def _look_at_model(found: MachineCheck, own: PresetCommand) -> str | None:
    """The digest of the model's files; None where there is no such model."""
    if own.model is None:
        hint = "a preset is checked with the model file that it serves"
        found.reasons.append(Reason("model", "the preset names no model file", hint))
        return None
    found.model = str(own.model)
    try:
        digest = file_digest(read_inventory(own.model).files)
    except UsageError as error:
        hint = error.hint or "put the file back, or write the preset for where it is now"
        found.reasons.append(Reason("model", error.message, hint))
        return None
    told = str(found.preset.metadata.get("check", "")).split("-")
    if len(told) == len(_PARTS) and told[2] != _model_part(digest):
        found.reasons.append(
            Reason(
                "model",
                f"{own.model} is not the file that the preset was tuned for",
                "tune again: `autofit tune MODEL`, or put the other file back",
            )
        )
    return digest


def _model_part(digest: str) -> str:
    plain = Environment(
        cpu="", cpu_count=0, memory_mib=0, devices=(), driver="", build="", model_digest=digest
    )
    return plain.check_value.split("-")[2]


def _look_at_memory(found: MachineCheck, task: Task, own: PresetCommand) -> None:
    candidate = task.baseline
    found.reasons += value_reasons(task.runtime, candidate)
    if task.devices and is_placed_by_runtime(candidate, own.command.rest):
        found.notes.append(
            "the runtime itself places layers by what is free: no room is asked for"
        )
        return
    candidate = _countable(candidate, task, own)
    memory = task.memory_model(make_planner(task), CalibrationStore())
    memory.ask_planner(candidate)
    if task.devices:
        estimate = memory.predict(candidate)
    else:
        estimate = estimate_memory(task.inventory, candidate, ())
    if estimate is None:
        found.notes.append("what it takes is not known: its placing is beyond the estimate")
        return
    measured = (found.preset.metadata.get(key) for key in ("peak_mib", "taken_mib"))
    peak_mib, taken_mib = (told if isinstance(told, dict) else {} for told in measured)
    found.needs = needs(estimate, task.host_available_mib, peak_mib, taken_mib)
    others = named_files(own.command.rest, task.runtime.help, Path())
    if others:
        found.notes.append(f"not counted: what {', '.join(map(str, others))} take")
    found.reasons += memory_reasons(found.needs)
    found.notes += memory_notes(found.needs)


def _countable(candidate: Candidate, task: Task, own: PresetCommand) -> Candidate:
    """The command's settings in numbers, as far as the arithmetic needs them."""
    if candidate.params.get("n_gpu_layers") in ("all", -2):
        candidate = candidate.with_params(n_gpu_layers=task.inventory.units)
    flags = task.runtime.help.flags
    moves_all = any(
        word in flags and CPU_MOE in flags[word].spellings for word in own.command.rest
    )
    if moves_all and task.inventory.is_moe:
        candidate = candidate.with_params(n_cpu_moe=task.inventory.block_count)
    return candidate


def _differences(preset: ParsedPreset, here: Environment) -> Iterator[str]:
    """What else is not as it was when the preset was proven."""
    told = str(preset.metadata.get("check", "")).split("-")
    now = here.check_value.split("-")
    if len(told) != len(_PARTS):
        return
    for part, then, is_now in zip(_PARTS[:2], told, now, strict=False):
        if then != is_now:
            yield f"the {part} is another than it was proven on; `autofit probe` proves it anew"
