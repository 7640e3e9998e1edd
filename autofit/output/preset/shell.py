"""A POSIX shell script that becomes the server; more arguments may follow its name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from autofit.output.preset.facts import PresetFacts
from autofit.output.preset.heading import heading

_FLAG = re.compile(r"--?[A-Za-z]")


def write(facts: PresetFacts) -> str:
    """The preset as a script."""
    lines = ["#!/bin/sh", *(f"# {line}" for line in heading(facts))]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in facts.env.items()]
    program = shlex.join([*facts.wrapper, *facts.command])
    arguments = _grouped(facts.served_arguments)
    lines.append(" \\\n  ".join([f"exec {program}", *arguments, '"$@"']))
    return "\n".join(lines) + "\n"


def _grouped(arguments: Sequence[str]) -> list[str]:
    """One line for each flag with what follows it."""
    groups: list[list[str]] = []
    for word in arguments:
        if groups and not _FLAG.match(word):
            groups[-1].append(word)
        else:
            groups.append([word])
    return [shlex.join(group) for group in groups]
