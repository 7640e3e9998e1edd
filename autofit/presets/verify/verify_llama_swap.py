"""Whether llama-swap would take a configuration, and start from it what was meant.

The forms are those of its published config-schema.json, as far as an entry of ours needs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from autofit.presets.facts import PresetFacts
from autofit.presets.formats import llama_swap
from autofit.presets.verify.trial_start import start
from autofit.presets.verify.verification import Check
from autofit.runtime.discovery.found_runtime import Runtime
from autofit.yaml_files import read_yaml


class _Model(BaseModel, strict=True):
    """One model; keys that are not of ours are llama-swap's business."""

    cmd: Annotated[str, StringConstraints(min_length=1)]
    env: list[Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]*=.*$")]] = []
    proxy: str = "http://localhost:${PORT}"


class _Configuration(BaseModel, strict=True):
    """The file."""

    models: dict[str, _Model]
    healthCheckTimeout: int = Field(default=120, ge=15)  # noqa: N815 - llama-swap's name


def verify(
    file: Path, presets: Sequence[PresetFacts], runtime: Runtime, folder: Path
) -> list[Check]:
    """Check the file's form, and start each model's command as llama-swap would.

    Raises:
        UsageError: the program cannot be started here.
    """
    name = "the file has the form of llama-swap's schema"
    try:
        found = _Configuration.model_validate(read_yaml(file), strict=False)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()
        )
        return [Check(name, passed=False, detail="; ".join(faults))]
    checks = [Check(name, passed=True)]
    for facts in presets:
        model = found.models[llama_swap.entry_name(facts)]
        # Macros are filled in before the text is split.
        words = llama_swap.command_words(model.cmd.replace(llama_swap.PORT_MACRO, "{port}"))
        meant = [*facts.wrapper, *facts.command, *facts.served_at(())]
        where = list(facts.address)
        is_meant = words[: len(meant)] == meant and words[-len(where) :] == where
        more = shlex.join(words[len(meant) : -len(where)])
        told = f"the command of {facts.model_name} reads as meant"
        checks.append(Check(told, is_meant, f"and has {more}" if is_meant and more else ""))
        env = dict(text.split("=", 1) for text in model.env)
        checks.append(start(words, env, facts, runtime, folder))
    return checks
