"""A POSIX shell script that becomes the server; more arguments may follow its name."""

from __future__ import annotations

import shlex

from autofit.presets.facts import PresetFacts
from autofit.presets.heading import heading
from autofit.presets.option import flag_groups


def write(facts: PresetFacts) -> str:
    """The preset as a script."""
    lines = ["#!/bin/sh", *(f"# {line}" for line in heading(facts))]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in facts.env.items()]
    program = shlex.join([*facts.wrapper, *facts.command])
    arguments = [shlex.join(group) for group in flag_groups(facts.served_arguments)]
    lines.append(" \\\n  ".join([f"exec {program}", *arguments, '"$@"']))
    return "\n".join(lines) + "\n"
