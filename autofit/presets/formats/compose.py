"""A compose file: the server in a container (https://github.com/compose-spec/compose-spec).

Files lie in the container where they lie outside, so that the command stays as it was tuned.
`$` begins a variable in every value; two stand for one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from autofit.errors import UsageError
from autofit.model.gguf.header import list_shards
from autofit.presets.facts import PresetFacts, with_port
from autofit.presets.formats.systemd import locks_memory
from autofit.presets.formats.yaml_text import flow_list, indented, quoted
from autofit.presets.heading import heading, note
from autofit.presets.older_command import older_words
from autofit.presets.option import flag_groups, named_files

SERVICES = "services"
_EVERYWHERE = "0.0.0.0"  # noqa: S104 - within the container; what is published is on loopback
_LOOPBACK = "127.0.0.1"


def write(facts: PresetFacts) -> str:
    """The preset as a compose file with one service."""
    return write_many([facts])


def write_many(presets: Sequence[PresetFacts]) -> str:
    """The presets as one compose file, a service for each.

    Raises:
        UsageError: there is no image for a preset, or a value has no place in YAML.
    """
    lines = ["# start with: docker compose -f THIS_FILE up -d", f"{SERVICES}:"]
    for facts in presets:
        lines += indented([*comments(facts), f"{entry_key(facts)}:"], 2)
        for part in entry(facts).values():
            lines += indented(part, 4)
    return "\n".join(lines) + "\n"


def entry_name(facts: PresetFacts) -> str:
    """The service's name, of the few characters that one may have."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", facts.model_name).strip("-._").lower()
    return name or "model"


def entry_key(facts: PresetFacts) -> str:
    """The service's name as a key of YAML, quoted where it might pass for something else."""
    name = entry_name(facts)
    return name if re.fullmatch(r"[a-z]\w*[0-9_-][\w-]*", name, re.ASCII) else quoted(name)


def comments(facts: PresetFacts) -> list[str]:
    """The heading of a service, as comments."""
    return [f"# {line}" for line in (*heading(facts), *map(note, needs(facts)))]


def needs(facts: PresetFacts) -> list[str]:
    """What the container does otherwise than the tuned server, or needs done."""
    whose = "the settings belong to the build above, not to this image"
    told = [f"{whose}: pin an image of that build, then compare"]
    if facts.wrapper:
        told.append(f"the image must have `{facts.wrapper[0]}`: the server runs under it")
    named = named_files(facts.arguments, facts.help, facts.folder)
    missing = [path for path in named if path != facts.model_path and not path.is_file()]
    if missing:
        shown = ", ".join(str(path) for path in missing)
        told.append(f"no such file here, so it is not mounted: {shown}")
    return told


def entry(facts: PresetFacts, more: Sequence[str] = ()) -> Mapping[str, list[str]]:
    """The settings of a service by key, each as lines of YAML; `more` words end the command.

    Raises:
        UsageError: there is no image, or a value has no place in YAML.
    """
    uses_remote = "--rpc" in facts.arguments
    words = (*_arguments(facts), *more)
    parts = {
        "image": [f"image: {_escaped(_image(facts))}"],
        "entrypoint": flow_list("entrypoint", [_dollars(_start(facts))]),
        "command": flow_list("command", [_dollars(group) for group in flag_groups(words)]),
    }
    if facts.env:
        variables = [f"  {name}: {_escaped(value)}" for name, value in facts.env.items()]
        parts["environment"] = ["environment:", *variables]
    parts["volumes"] = ["volumes:", *_mounts(facts)]
    if uses_remote:  # remote devices are asked where they were: from the machine itself
        parts["network_mode"] = ["network_mode: host"]
    else:
        port = _port(facts)
        parts["ports"] = ["ports:", f'  - "{_LOOPBACK}:{port}:{port}"']
    parts |= _hardware(facts)
    if locks_memory(facts):
        parts["ulimits"] = ["ulimits:", "  memlock: -1"]
    if facts.wrapper and PurePath(facts.wrapper[0]).name == "numactl":
        parts["cap_add"] = ["cap_add:", "  - SYS_NICE"]  # binding memory is refused without
    parts["restart"] = ["restart: on-failure:5"]
    parts["stop_grace_period"] = ["stop_grace_period: 30s"]
    return parts


# What a user has said of a container stays when its server's settings change.
_KEPT = (
    *("image", "ports", "network_mode", "volumes", "deploy", "devices", "ulimits", "cap_add"),
    *("restart", "stop_grace_period"),
)


def merged_entry(
    facts: PresetFacts, old: Mapping[str, Any]
) -> tuple[Mapping[str, list[str]], list[str]]:
    """The settings for a service that is there, and what a user should know of the change.

    Its container stays as it is, and so do options and variables that no tune decides.
    """
    older = older_words(_older(old.get("command")), facts, _has_variable)
    parts = dict(entry(facts, [word.replace("$$", "$") for word in older.kept]))
    for key in _KEPT:
        if key in old:
            parts.pop(key, None)
    if "network_mode" in old or "ports" in old:
        parts.pop("ports", None)
        parts.pop("network_mode", None)
    others = [
        f"  {quoted(name)}:" + ("" if value is None else f" {quoted(value)}")
        for name, value in _variables(old).items()
        if name not in facts.env and not facts.decides((name,))
    ]
    own = parts.get("environment", ["environment:"])
    parts["environment"] = [own[0], *others, *own[1:]] if others or own[1:] else []
    notices = older.notices
    missing = [str(path) for path in _files(facts) if str(path) not in str(old.get("volumes"))]
    if "volumes" in old and missing:
        notices.append(f"the volumes stay as they are; are these mounted: {', '.join(missing)}")
    return parts, notices


def _older(given: str | Sequence[str] | None) -> list[str]:
    """The words of a service's command, which may be a list or one text."""
    try:
        return shlex.split(given) if isinstance(given, str) else list(given or ())
    except ValueError:  # compose could not split it either
        return []


def _has_variable(word: str) -> bool:
    return "$" in word.replace("$$", "")


def _variables(old: Mapping[str, Any]) -> dict[str, str | None]:
    """A service's variables, which may be a mapping or a list of `NAME=value`."""
    given = old.get("environment") or {}
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    pairs = (str(text).partition("=") for text in given)
    return {name: value if equals else None for name, equals, value in pairs}


def _image(facts: PresetFacts) -> str:
    names = [device.partition(":")[0] for device in facts.environment.devices]
    image = facts.image or facts.container.image(names)
    if not image:
        raise UsageError(
            "no container image is known for this runtime and its devices",
            "name one with --image",
        )
    return image


def command(facts: PresetFacts) -> tuple[str, ...]:
    """What runs in the container."""
    return (*_start(facts), *_arguments(facts))


def _start(facts: PresetFacts) -> tuple[str, ...]:
    program = facts.container.program or PurePath(facts.command[-1]).name
    return (*facts.wrapper, program)


def _port(facts: PresetFacts) -> str:
    own = (value for flag, value in facts.own_address.items() if "port" in flag)
    return next(own, str(facts.port))


def _arguments(facts: PresetFacts) -> tuple[str, ...]:
    host = _LOOPBACK if "--rpc" in facts.arguments else _EVERYWHERE
    address = (word.replace(_LOOPBACK, host) for word in facts.address)
    return facts.served_at(with_port(tuple(address), int(_port(facts))))


def _files(facts: PresetFacts) -> Iterator[Path]:
    """The model's files and those that the arguments name, each once."""
    named = named_files(facts.arguments, facts.help, facts.folder)
    found = [*list_shards(facts.model_path), *named]
    yield from dict.fromkeys(path.absolute() for path in found)


def _mounts(facts: PresetFacts) -> Iterator[str]:
    """Each file by itself: a link leads out of its folder, as in the cache of a hub."""
    models = {path.absolute() for path in list_shards(facts.model_path)}
    for path in _files(facts):
        if path in models or path.is_file():
            place = _escaped(str(path))
            yield f"  - {{type: bind, source: {place}, target: {place}, read_only: true}}"


def _hardware(facts: PresetFacts) -> dict[str, list[str]]:
    """The devices that the container may use."""
    kinds = {device.partition(":")[0].rstrip("0123456789") for device in facts.environment.devices}
    if "CUDA" in kinds:
        gpus = "{driver: nvidia, count: all, capabilities: [gpu]}"
        return {
            "deploy": [
                *("deploy:", "  resources:", "    reservations:", "      devices:"),
                f"        - {gpus}",
            ]
        }
    if not kinds - {"RPC", "CPU", "BLAS"}:
        return {}
    nodes = ["/dev/kfd", "/dev/dri"] if kinds & {"ROCm", "HIP"} else ["/dev/dri"]
    return {"devices": ["devices:", *(f"  - {node}:{node}" for node in nodes)]}


def _dollars(words: Sequence[str]) -> list[str]:
    return [word.replace("$", "$$") for word in words]


def _escaped(value: str) -> str:
    return quoted(value.replace("$", "$$"))
