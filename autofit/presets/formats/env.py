"""Environment variables (`LLAMA_ARG_*`) for a server that is started with no arguments.

Quoted for a POSIX shell (`set -a; . FILE`), systemd's `EnvironmentFile` and compose's
`env_file`, which agree on single quotes; `docker run --env-file` knows no quotes.
"""

from __future__ import annotations

import shlex

from autofit.errors import UsageError
from autofit.presets.facts import PresetFacts
from autofit.presets.heading import heading, note
from autofit.presets.option import Option, each_once, parse_options
from autofit.presets.override_order import (
    CPU_MOE,
    N_CPU_FFN,
    N_CPU_MOE,
    OVERRIDE,
    keep_order,
)

# Variables are read in the order of the help text.
_APPLIED = (OVERRIDE, CPU_MOE, N_CPU_MOE, N_CPU_FFN)


def write(facts: PresetFacts) -> str:
    """The preset as a file of variables; what has none is named in a comment.

    Raises:
        UsageError: the runtime has no help, or does not list an argument.
    """
    variables = {option.flag.env: _value(option) for option in _options(facts) if option.flag.env}
    lines = [f"# {line}" for line in (*heading(facts), *map(note, needs(facts)))]
    lines += [f"{name}={shlex.quote(v)}" for name, v in {**variables, **facts.env}.items()]
    return "\n".join(lines) + "\n"


def needs(facts: PresetFacts) -> list[str]:
    """What variables cannot say."""
    told = []
    if arguments := left_over(facts):
        told.append(f"these have no variable, give them as arguments: {shlex.join(arguments)}")
    if facts.wrapper:
        told.append(f"run under: {shlex.join(facts.wrapper)}")
    return told


def left_over(facts: PresetFacts) -> tuple[str, ...]:
    """The arguments that have no variable."""
    options = (option for option in _options(facts) if option.flag.env is None)
    return tuple(word for option in options for word in option.words)


def _options(facts: PresetFacts) -> tuple[Option, ...]:
    if facts.help is None:
        raise UsageError(
            "the variables of this runtime are not known, so an env preset cannot be written",
            "name one with `--runtime PATH`, or use the formats `args`, `shell` or `json`",
        )
    options = parse_options(facts.served_arguments, facts.help)
    return each_once(keep_order(options, _APPLIED, facts.help))


def _value(option: Option) -> str:
    if option.value is not None:
        return option.value
    return "false" if option.is_negative else "true"
