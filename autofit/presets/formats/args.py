"""One command line, quoted for a POSIX shell; also readable with `shlex.split`."""

from __future__ import annotations

import shlex

from autofit.presets.facts import PresetFacts


def write(facts: PresetFacts) -> str:
    """The command on one line, run through `env` where it needs variables."""
    settings = [f"{name}={value}" for name, value in facts.env.items()]
    return shlex.join([*(["env", *settings] if settings else []), *facts.argv]) + "\n"
