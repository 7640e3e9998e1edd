"""JSON documents of autofit: presets with all that is known about them, results and plans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autofit.presets.formats.preset_format import PresetFile, PresetFormat
from autofit.presets.preset import Preset
from autofit.presets.server_entry import ServerEntry
from autofit.trial.workload import Request, Workload


def _write(presets: Sequence[Preset]) -> str:
    """Return the preset as one JSON document."""
    (preset,) = presets
    document = {
        "schema": 1,
        "model": preset.model_name,
        "model_path": str(preset.model_path),
        "params": dict(preset.params),
        "argv": list(preset.argv),
        "env": dict(preset.env),
        "wrapper": list(preset.wrapper),
        "program": list(preset.command),
        "arguments": list(preset.served_arguments),
        "workload": asdict(preset.workload),
        "objective": preset.objective,
        "gain": preset.gain,
        "tie": preset.tie,
        "proven": preset.proven,
        "origin": preset.origin,
        "estimates": preset.estimates,
        "peak_mib": dict(preset.peak_mib),
        "taken_mib": dict(preset.taken_mib),
        "free_mib": dict(preset.free_mib),
        "machine": preset.environment.to_dict(),
        "build": preset.environment.build,
        "check": preset.environment.check_value,
        "date": preset.made_on.isoformat(),
        "autofit_version": preset.autofit_version,
    }
    return json.dumps(document, indent=2) + "\n"


def _read(file: PresetFile) -> list[ServerEntry]:
    """Return the server of a preset, of a tune's winner, or of a plan's recommended layout."""
    part = _command_part(file.data or {})
    argv = part.get("argv")
    if argv is None:
        argv = ["llama-server", *part["args"]] if isinstance(part.get("args"), list) else None
    if not isinstance(argv, list) or not argv or not all(isinstance(a, str) for a in argv):
        raise ValueError("its `argv` must be a list of texts")
    env = part.get("env") or {}
    if not isinstance(env, Mapping):
        raise TypeError("its `env` must be an object of names and texts")
    variables = {str(name): str(text) for name, text in env.items()}
    return [ServerEntry("command", tuple(argv), variables)]


def _command_part(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a document that holds the command."""
    for keys in (("winner",), ("result", "winner")):
        part: Any = data
        for key in keys:
            part = part.get(key) if isinstance(part, Mapping) else None
        if isinstance(part, Mapping):
            return part
    if "layouts" in data and "argv" not in data:
        named = [one for one in data["layouts"] if one.get("name") == data.get("recommended")]
        return named[0] if named else data
    return data


def _metadata(file: PresetFile) -> dict[str, Any]:
    """Return the check value, the memory and the workload that a document records."""
    data = file.data or {}
    metadata = {key: data[key] for key in ("check", "peak_mib", "taken_mib") if key in data}
    workload = data.get("workload")
    if workload and isinstance(workload, Mapping):
        requests = tuple(Request(**request) for request in workload["requests"])
        metadata["workload"] = Workload(**{**workload, "requests": requests})
    return metadata


FORMAT = PresetFormat(
    suffix=".json",
    write=_write,
    recognizes=lambda file: file.is_json and file.data is not None,
    read=_read,
    metadata=_metadata,
)
