"""Environment variables (`LLAMA_ARG_*`) for a server that is started with no arguments.

Quoted for a POSIX shell (`set -a; . FILE`), systemd's `EnvironmentFile` and compose's
`env_file`, which agree on single quotes; `docker run --env-file` knows no quotes.
"""

from __future__ import annotations

import shlex

from autofit.errors import UsageError
from autofit.output.preset.facts import PresetFacts
from autofit.output.preset.heading import heading
from autofit.output.preset.option import Option, each_once, parse_options
from autofit.output.preset.override import (
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
    if facts.help is None:
        raise UsageError(
            "this runtime lists no variables, so an env preset cannot be written",
            "use the formats `args`, `shell` or `json`",
        )
    options = parse_options(facts.served_arguments, facts.help)
    variables: dict[str, str] = {}
    left_over: list[str] = []
    for option in each_once(keep_order(options, _APPLIED, facts.help)):
        if option.flag.env is None:
            left_over += option.words
        else:
            variables[option.flag.env] = _value(option)
    lines = [f"# {line}" for line in heading(facts)]
    if left_over:
        lines.append(f"# these have no variable, give them as arguments: {_shown(left_over)}")
    if facts.wrapper:
        lines.append(f"# run under: {_shown(list(facts.wrapper))}")
    lines += [f"{name}={shlex.quote(v)}" for name, v in {**variables, **facts.env}.items()]
    return "\n".join(lines) + "\n"


def _value(option: Option) -> str:
    if option.value is not None:
        return option.value
    return "false" if option.is_negative else "true"


def _shown(words: list[str]) -> str:
    return shlex.join(words).replace("\n", " ")
