"""Checks that a preset file starts the server that it describes.

Every server that is started here is stopped again, also when the user interrupts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from autofit.errors import UsageError
from autofit.presets.formats import compose, llama_swap
from autofit.presets.formats.env import arguments_without_variable
from autofit.presets.preset import Preset
from autofit.presets.verify.server_check import PresetCheck, check_start, verify_router
from autofit.process.environment import scrubbed_environment
from autofit.process.helper_program import run_to_end
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.text_format import one_line
from autofit.yaml_files import read_yaml

_ANALYZER = "systemd-analyze"
_ANALYZE_LIMIT_S = 60.0
# The extra `verify` brings the compose specification's schema.
_SCHEMA_PACKAGE = "check_jsonschema"
_DOCKER_LIMIT_S = 60.0
_LONGEST_DETAIL = 300


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
    if format_name not in _COMMANDS:
        return [PresetCheck("the file starts a server", None, "this format has no check")]
    (preset,) = presets
    argv, env = _COMMANDS[format_name](file, preset)
    # Of a flag given twice the last counts, so that the server listens on a free port.
    return [check_start([*argv, *preset.address], env, preset, runtime, folder)]


def _env_command(file: Path, preset: Preset) -> tuple[list[str], Mapping[str, str]]:
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


class _Model(BaseModel, strict=True):
    """One model by llama-swap's config-schema.json, as far as autofit writes it."""

    cmd: Annotated[str, StringConstraints(min_length=1)]
    env: list[Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*=.*$")]] = []
    proxy: str = "http://localhost:${PORT}"


class _Configuration(BaseModel, strict=True):
    """A configuration of llama-swap by its config-schema.json."""

    models: dict[str, _Model]
    healthCheckTimeout: int = Field(default=120, ge=15)  # noqa: N815 - llama-swap's name


def _verify_llama_swap(
    file: Path, presets: Sequence[Preset], runtime: Runtime, folder: Path
) -> list[PresetCheck]:
    """Check the file's form, and start each model's command as llama-swap would."""
    name = "the file has the form of llama-swap's schema"
    try:
        found = _Configuration.model_validate(read_yaml(file), strict=False)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        return [PresetCheck(name, passed=False, detail="; ".join(faults))]
    checks = [PresetCheck(name, passed=True)]
    for preset in presets:
        model = found.models[llama_swap.entry_name(preset)]
        # Macros are replaced before the text is split.
        argv = llama_swap.command_words(model.cmd.replace(llama_swap.PORT_MACRO, "{port}"))
        expected = [*preset.wrapper, *preset.command, *preset.arguments_at(())]
        address = list(preset.address)
        end = len(argv) - len(address)
        has_address = argv[end:] == address
        checks.append(_command_check(preset, argv[:end], expected, is_complete=has_address))
        env = dict(text.split("=", 1) for text in model.env)
        checks.append(check_start(argv, env, preset, runtime, folder))
    return checks


def _verify_compose(
    file: Path, presets: Sequence[Preset], _runtime: Runtime, folder: Path
) -> list[PresetCheck]:
    """Check the file's form, with docker where it is installed, and its commands."""
    data = json.loads(json.dumps(read_yaml(file)))
    checks = [_check_by_docker(file, folder), _check_by_schema(data)]
    if any(check.passed is not None for check in checks):
        checks = [check for check in checks if check.passed is not None]
    for preset in presets:
        service = data[compose.TOP_KEY][compose.entry_name(preset)]
        words = [*service["entrypoint"], *service["command"]]
        argv = [word.replace("$$", "$") for word in words]
        checks.append(_command_check(preset, argv, list(compose.container_argv(preset))))
    return checks


def _command_check(
    preset: Preset, argv: Sequence[str], expected: Sequence[str], *, is_complete: bool = True
) -> PresetCheck:
    """Check that a command begins with the expected one; name the arguments after it."""
    is_same = is_complete and list(argv[: len(expected)]) == list(expected)
    more = shlex.join(argv[len(expected) :])
    name = f"the command of {preset.model_name} is read as it was written"
    return PresetCheck(name, is_same, f"and has {more}" if is_same and more else "")


def _check_by_docker(file: Path, folder: Path) -> PresetCheck:
    name = "docker compose reads the file"
    docker, env = ["docker", "compose"], scrubbed_environment({})
    try:
        if run_to_end([*docker, "version"], env=env, timeout_s=_DOCKER_LIMIT_S).returncode != 0:
            return PresetCheck(name, None, "docker has no compose here")
        argv = [*docker, "-f", str(file), "config", "-q"]
        done = run_to_end(argv, env=env, timeout_s=_DOCKER_LIMIT_S, cwd=folder)
    except UsageError:
        return PresetCheck(name, None, "there is no docker here")
    detail = one_line(done.stderr.strip())[:_LONGEST_DETAIL]
    return PresetCheck(name, done.returncode == 0, detail)


def _check_by_schema(data: Mapping[str, Any]) -> PresetCheck:
    name = "the file has the form of the compose specification"
    if find_spec(_SCHEMA_PACKAGE) is None:
        return PresetCheck(name, None, "the extra `verify` is not installed")
    import jsonschema  # noqa: PLC0415 - comes with the extra

    place = files(_SCHEMA_PACKAGE) / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(place.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    faults = [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(data)]
    return PresetCheck(name, not faults, one_line("; ".join(faults))[:_LONGEST_DETAIL])


_Command = tuple[list[str], Mapping[str, str]]
# The command of a file with one model, and its variables.
_COMMANDS: Mapping[str, Callable[[Path, Preset], _Command]] = {
    "shell": lambda file, _: (["sh", str(file)], {}),
    "args": lambda file, _: (shlex.split(_text(file)), {}),
    "json": lambda file, _: itemgetter("argv", "env")(json.loads(_text(file))),
    "env": _env_command,
}
_Verifier = Callable[[Path, Sequence[Preset], Runtime, Path], list[PresetCheck]]
_VERIFIERS: Mapping[str, _Verifier] = {
    "ini": verify_router,
    "llama-swap": _verify_llama_swap,
    "compose": _verify_compose,
}
