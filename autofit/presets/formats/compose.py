"""Compose files: the server in a container (https://github.com/compose-spec/compose-spec).

Files are mounted at their path on the host, so that the command is the one that was tuned. `$`
begins a variable in every value; `$$` is a plain dollar.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any

from autofit.errors import UsageError
from autofit.model.gguf.header import list_shards
from autofit.presets.command_options import flag_groups, named_files
from autofit.presets.formats.container_command import in_container, server_command
from autofit.presets.formats.env import known_variables, read_env_file
from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.formats.shell import command_server
from autofit.presets.formats.systemd import locks_memory
from autofit.presets.formats.variable_expansion import expand, parameter_value
from autofit.presets.formats.yaml_text import (
    EntryFormat,
    as_list,
    entries_below,
    flow_list,
    quoted,
    scalar_text,
    variables_of,
)
from autofit.presets.preset import Preset, with_port
from autofit.presets.server_entry import ServerEntry

TOP_KEY = "services"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - within the container; its port is published on loopback
_LOOPBACK = "127.0.0.1"


def entry_name(preset: Preset) -> str:
    """Return the service's name, in the few characters that are allowed."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", preset.model_name).strip("-._").lower()
    return name or "model"


def _entry_key(preset: Preset) -> str:
    """Return the service's name, quoted where YAML might not read it as text."""
    name = entry_name(preset)
    return name if re.fullmatch(r"[a-z]\w*[0-9_-][\w-]*", name, re.ASCII) else quoted(name)


def _notices(preset: Preset) -> list[str]:
    pin = "use an image of that build, then compare"
    notices = [f"the settings belong to the build above, not to this image: {pin}"]
    if preset.wrapper:
        program = preset.wrapper[0]
        notices.append(f"the image must contain `{program}`, which starts the server")
    named = named_files(preset.arguments, preset.help, preset.folder)
    missing = [str(path) for path in named if path != preset.model_path and not path.is_file()]
    if missing:
        notices.append(f"not mounted, because there is no such file here: {', '.join(missing)}")
    return notices


def entry_parts(preset: Preset, more_arguments: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the settings of a service by key, each as lines of YAML.

    Raises:
        UsageError: no image is known for the preset, or YAML cannot hold a value.
    """
    groups = flag_groups((*_arguments(preset), *more_arguments))
    parts = {
        "image": [f"image: {_escaped(_image(preset))}"],
        "entrypoint": flow_list("entrypoint", [_dollars(_program(preset))]),
        "command": flow_list("command", [_dollars(group) for group in groups]),
    }
    if preset.env:
        variables = [f"  {name}: {_escaped(value)}" for name, value in preset.env.items()]
        parts["environment"] = ["environment:", *variables]
    parts["volumes"] = ["volumes:", *_mounts(preset)]
    if "--rpc" in preset.arguments:  # remote devices may listen on this machine only
        parts["network_mode"] = ["network_mode: host"]
    else:
        port = _port(preset)
        parts["ports"] = ["ports:", f'  - "{_LOOPBACK}:{port}:{port}"']
    parts |= _devices(preset)
    if locks_memory(preset):
        parts["ulimits"] = ["ulimits:", "  memlock: -1"]
    if preset.wrapper and PurePath(preset.wrapper[0]).name == "numactl":
        parts["cap_add"] = ["cap_add:", "  - SYS_NICE"]  # needed for binding memory
    parts["restart"] = ["restart: on-failure:5"]
    parts["stop_grace_period"] = ["stop_grace_period: 30s"]
    return parts


def _image(preset: Preset) -> str:
    names = [device.partition(":")[0] for device in preset.environment.devices]
    image = preset.image or preset.rules.container.image(names)
    if not image:
        raise UsageError(
            "no container image is known for this runtime and its devices",
            "name one with --image",
        )
    return image


def container_argv(preset: Preset) -> tuple[str, ...]:
    """Return the command that runs in the container."""
    return (*_program(preset), *_arguments(preset))


def _program(preset: Preset) -> tuple[str, ...]:
    program = preset.rules.container.program or PurePath(preset.command[-1]).name
    return (*preset.wrapper, program)


def _arguments(preset: Preset) -> tuple[str, ...]:
    host = _LOOPBACK if "--rpc" in preset.arguments else _EVERYWHERE
    address = (argument.replace(_LOOPBACK, host) for argument in preset.address)
    return preset.arguments_at(with_port(address, int(_port(preset))))


def _port(preset: Preset) -> str:
    own = (value for flag, value in preset.given_address.items() if "port" in flag)
    return next(own, str(preset.port))


def used_files(preset: Preset) -> list[Path]:
    """Return the model's files and those that the arguments name, each once."""
    named = named_files(preset.arguments, preset.help, preset.folder)
    files = [*list_shards(preset.model_path), *named]
    return list(dict.fromkeys(path.absolute() for path in files))


def _mounts(preset: Preset) -> Iterator[str]:
    """Yield a mount for each file and for the target of a link, as in the cache of a hub."""
    models = {path.absolute() for path in list_shards(preset.model_path)}
    for path in used_files(preset):
        if path in models or path.is_file():
            place = _escaped(str(path))
            yield f"  - {{type: bind, source: {place}, target: {place}, read_only: true}}"


def _devices(preset: Preset) -> dict[str, list[str]]:
    """Return the settings that give the container its GPUs."""
    names = (device.partition(":")[0] for device in preset.environment.devices)
    kinds = {name.rstrip("0123456789") for name in names}
    if "CUDA" in kinds:
        gpus = "        - {driver: nvidia, count: all, capabilities: [gpu]}"
        above = ["deploy:", "  resources:", "    reservations:", "      devices:"]
        return {"deploy": [*above, gpus]}
    if not kinds - {"RPC", "CPU", "BLAS"}:
        return {}
    nodes = ["/dev/kfd", "/dev/dri"] if kinds & {"ROCm", "HIP"} else ["/dev/dri"]
    return {"devices": ["devices:", *(f"  - {node}:{node}" for node in nodes)]}


def _dollars(arguments: Sequence[str]) -> list[str]:
    return [argument.replace("$", "$$") for argument in arguments]


def _escaped(value: str) -> str:
    return quoted(value.replace("$", "$$"))


def _read(file: PresetFile) -> list[ServerEntry]:
    """Return a server for each service with a command or an image of llama.cpp."""
    servers = (_server(*entry, file.path.parent) for entry in entries_below(file.data, TOP_KEY))
    return [server for server in servers if server is not None]


def _server(name: str, service: Mapping[str, Any], folder: Path) -> ServerEntry | None:
    image = scalar_text(service.get("image", ""))
    values = _ComposeValues(folder)
    argv = [*values.argv(service.get("entrypoint")), *values.argv(service.get("command"))]
    if not argv and "llama" not in image:
        return None
    env, notices = _environment(service, values, folder)
    if any(key in service for key in ("cpus", "cpuset", "mem_limit")):
        notices.append("limits of the container do not apply to autofit's launches")
    notices.append(f"runs in the container {image}" if image else "runs in a container")
    volumes = [_volume(one, values) for one in as_list(service.get("volumes"))]
    found = command_server(ServerEntry(name, server_command(argv, image), env))
    return in_container(found.with_notices(*notices), volumes, folder)


def _environment(
    service: Mapping[str, Any], values: _ComposeValues, folder: Path
) -> tuple[dict[str, str], list[str]]:
    """Return a service's variables, and notices. Names without a value get it from `.env`."""
    env: dict[str, str] = {}
    notices: list[str] = []
    for one in as_list(service.get("env_file")):
        path = one.get("path", "") if isinstance(one, Mapping) else one
        variables, more = read_env_file(folder / values.text(path))
        env |= variables
        notices += more
    variables, more = known_variables(variables_of(service.get("environment")), values.variables)
    env |= {name: values.text(value) for name, value in variables.items()}
    return env, notices + more


def _volume(volume: object, values: _ComposeValues) -> str:
    if isinstance(volume, Mapping):
        ends = (values.text(volume.get(key, "")) for key in ("source", "target"))
        return ":".join(ends)
    return values.text(volume)


class _ComposeValues:
    """Values of a compose file, in which variables are expanded from the `.env` next to it."""

    def __init__(self, folder: Path) -> None:
        self.variables, _ = read_env_file(folder / ".env")

    def text(self, value: object) -> str:
        value_of = partial(parameter_value, values=self.variables)
        return expand(scalar_text(value), value_of, "this file")

    def argv(self, value: object) -> list[str]:
        """Return a command, which is a list or a text that is split as in a shell."""
        if isinstance(value, str):
            return shlex.split(self.text(value))
        return [self.text(one) for one in as_list(value)]


ENTRIES = EntryFormat(TOP_KEY, entry_name, _entry_key, entry_parts, _notices)
FORMAT = PresetFormat(
    suffix=".yaml",
    write=partial(ENTRIES.write, ["# start with: docker compose -f THIS_FILE up -d"]),
    holds_several=True,
    recognizes=lambda file: file.has(TOP_KEY),
    read=_read,
    notices=_notices,
    entry_name=entry_name,
    names_servers=True,
)
