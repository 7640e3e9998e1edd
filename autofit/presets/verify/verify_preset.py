"""Checks that a preset file starts the server that it describes.

Every server that is started here is stopped again, also when the user interrupts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autofit.errors import UsageError
from autofit.presets.formats.env import arguments_without_variable
from autofit.presets.preset import Preset
from autofit.presets.verify.preset_check import PresetCheck, check_start
from autofit.presets.verify.verify_router import verify_router
from autofit.presets.verify.verify_yaml import verify_compose, verify_llama_swap
from autofit.process.environment import scrubbed_environment
from autofit.process.helper_program import run_to_end
from autofit.runtime.discovery.found_runtime import Runtime

_ANALYZER = "systemd-analyze"
_ANALYZE_LIMIT_S = 60.0


def verify_preset(
    format_name: str, file: Path, presets: Sequence[Preset], runtime: Runtime, folder: Path
) -> list[PresetCheck]:
    """Check a written file; the logs of the servers go into `folder`.

    Raises:
        UsageError: the program cannot be started here.
        KeyboardInterrupt: the user stopped it; no server is left running.
    """
    if format_name in _VERIFIERS:
        return _VERIFIERS[format_name](file, presets, runtime, folder)
    if format_name == "systemd":
        return [_check_unit(file)]
    (preset,) = presets
    argv, env = _COMMANDS[format_name](file, preset)
    # Of a flag given twice the last counts, so that the server listens on a free port.
    return [check_start([*argv, *preset.address], env, preset, runtime, folder)]


_Command = tuple[list[str], Mapping[str, str]]


def _shell_command(file: Path, _preset: Preset) -> _Command:
    return ["sh", str(file)], {}


def _args_command(file: Path, _preset: Preset) -> _Command:
    return shlex.split(_text(file)), {}


def _json_command(file: Path, _preset: Preset) -> _Command:
    document = json.loads(_text(file))
    return document["argv"], document["env"]


def _env_command(file: Path, preset: Preset) -> _Command:
    sourced = ["sh", "-c", 'set -a; . "$0"; exec "$@"', str(file)]
    return [*sourced, *preset.wrapper, *preset.command, *arguments_without_variable(preset)], {}


def _check_unit(file: Path) -> PresetCheck:
    name = f"{_ANALYZER} verify"
    try:
        argv = [_ANALYZER, "verify", "--man=no", str(file)]
        done = run_to_end(argv, env=scrubbed_environment({}), timeout_s=_ANALYZE_LIMIT_S)
    except UsageError:
        return PresetCheck(name, None, f"there is no {_ANALYZER} here")
    # It also prints faults of other units.
    faults = [line for line in done.stderr.splitlines() if file.name in line]
    return PresetCheck(name, done.returncode == 0 and not done.timed_out, "; ".join(faults))


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")


_COMMANDS: Mapping[str, Callable[[Path, Preset], _Command]] = {
    "shell": _shell_command,
    "args": _args_command,
    "json": _json_command,
    "env": _env_command,
}
_VERIFIERS: Mapping[str, Callable[[Path, Sequence[Preset], Runtime, Path], list[PresetCheck]]] = {
    "ini": verify_router,
    "llama-swap": verify_llama_swap,
    "compose": verify_compose,
}
