"""Whether compose would take a file, and run what was meant."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.formats import compose
from autofit.presets.verify.verification import Check
from autofit.process import run, scrubbed_environment
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.text_format import one_line
from autofit.yaml_files import read_yaml

# The extra `verify` brings the compose specification's schema.
_SCHEMA_PACKAGE = "check_jsonschema"
_DOCKER_LIMIT_S = 60.0


def verify(
    file: Path, presets: Sequence[PresetFacts], runtime: Runtime, folder: Path
) -> list[Check]:
    """Check the file's form, by docker's own word where it is here, and its commands."""
    del runtime
    data = json.loads(json.dumps(read_yaml(file)))
    checks = [_by_docker(file, folder), _by_schema(data)]
    if any(check.passed is not None for check in checks):
        checks = [check for check in checks if check.passed is not None]
    for facts in presets:
        service = data[compose.SERVICES][compose.entry_name(facts)]
        words = [*_words(service["entrypoint"]), *_words(service["command"])]
        meant = list(compose.command(facts))
        is_meant, more = words[: len(meant)] == meant, shlex.join(words[len(meant) :])
        told = f"the command of {facts.model_name} reads as meant"
        checks.append(Check(told, is_meant, f"and has {more}" if is_meant and more else ""))
    return checks


def _words(value: Sequence[str]) -> list[str]:
    return [word.replace("$$", "$") for word in value]


def _by_docker(file: Path, folder: Path) -> Check:
    name = "docker compose reads the file"
    try:
        env = scrubbed_environment({})
        there = run(["docker", "compose", "version"], env=env, timeout_s=_DOCKER_LIMIT_S)
        if there.returncode != 0:
            return Check(name, None, "docker has no compose here")
        words = ["docker", "compose", "-f", str(file), "config", "-q"]
        done = run(words, env=env, timeout_s=_DOCKER_LIMIT_S, cwd=folder)
    except UsageError:
        return Check(name, None, "there is no docker here")
    return Check(name, done.returncode == 0, one_line(done.stderr.strip())[:300])


def _by_schema(data: Mapping[str, Any]) -> Check:
    name = "the file has the form of the compose specification"
    if find_spec(_SCHEMA_PACKAGE) is None:
        return Check(name, None, "the extra `verify` is not installed")
    import jsonschema  # noqa: PLC0415 - comes with the extra

    place = files(_SCHEMA_PACKAGE) / "builtin_schemas/vendor/compose-spec.json"
    schema = json.loads(place.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    faults = [f"{fault.json_path}: {fault.message}" for fault in validator.iter_errors(data)]
    return Check(name, not faults, one_line("; ".join(faults))[:300])
