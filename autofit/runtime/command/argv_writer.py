"""The command and environment that launch a candidate.

llama.cpp acts on arguments in the order of the command. Remote servers therefore come before
arguments about devices. Of two tensor overrides the first match counts, so `override_tensor`
comes before `n_cpu_moe` (the canonical order of parameters).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autofit.runtime.command.redaction import (
    redact_arguments,
    redact_variables,
    redact_wrapper,
)
from autofit.runtime.dialect.dialect import Spelling
from autofit.runtime.discovery.found_runtime import Runtime, format_value
from autofit.trial.candidate import Candidate, LaunchPlan, Limits, Params, ParamValue
from autofit.trial.outcome import Rejected, RejectedReason

# measure    explicit settings, without features that disturb a measurement
# prove      as it will be served, with autofit's log level
# preset     as it will be served: without an address and without autofit's own options
# baseline   the runtime's automatic fit chooses, with autofit's log level
# own_fit    a preset for which the runtime's automatic fit chooses what is not set
Purpose = Literal["measure", "prove", "preset", "baseline", "own_fit"]
_PRESETS = ("preset", "own_fit")


@dataclass(frozen=True, slots=True)
class UnsupportedSetting:
    """The reason why a runtime cannot launch a candidate, and the parameter at fault."""

    parameter: str
    message: str
    reason: RejectedReason

    @property
    def outcome(self) -> Rejected:
        """The candidate's outcome without a launch."""
        return Rejected(stage="plan", evidence=self.message, reason=self.reason)


def make_launch_plan(
    runtime: Runtime,
    model_path: Path,
    candidate: Candidate,
    *,
    purpose: Purpose,
    rpc: str = "",
    extra_args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    wrapper: Sequence[str] = (),
    limits: Limits | None = None,
) -> LaunchPlan | UnsupportedSetting:
    """Return the command and environment of a candidate, or the setting that is unsupported.

    `extra_args` (what the user gave after `--`) come last and unchanged; `env` are the
    user's variables. The model's path becomes absolute.
    """
    problem = find_unsupported(runtime, candidate)
    if problem:
        return problem
    launch = runtime.dialect.launch
    is_preset = purpose in _PRESETS
    words, variables = spell_params(runtime, candidate)
    own_words = (
        *runtime.command,
        *((launch.rpc, rpc) if rpc and launch.rpc else ()),
        *(launch.model, str(model_path.absolute())),
        *(() if is_preset else launch.address),
        *words,
        *_fixed_words(runtime, purpose),
    )
    own_env = {**runtime.env, **({} if is_preset else launch.env), **variables}
    return LaunchPlan(
        candidate=candidate,
        argv=(*wrapper, *own_words, *extra_args),
        env={**own_env, **(env or {})},
        limits=limits or Limits(),
        shown_argv=(
            *redact_wrapper(wrapper),
            *own_words,
            *redact_arguments(extra_args, runtime.help),
        ),
        shown_env={**own_env, **redact_variables(env or {})},
    )


def find_unsupported(runtime: Runtime, candidate: Candidate) -> UnsupportedSetting | None:
    """Return the first setting that the runtime lacks or refuses, or None if there is none."""
    for name, value in candidate.params.items():
        if not runtime.supports(name):
            message = f"{runtime.dialect.name}: this program has no {name}"
            return UnsupportedSetting(name, message, "unknown_flag")
        if not runtime.supports(name, value):
            known = ", ".join(runtime.values(name))
            message = f"{name}: this program does not know {format_value(value)} (known: {known})"
            return UnsupportedSetting(name, message, "bad_value")
    return find_refused(runtime, candidate.params)


def find_refused(runtime: Runtime, params: Params) -> UnsupportedSetting | None:
    """Return the first combination of settings that the runtime refuses, or None."""
    values = dict(runtime.dialect.defaults)
    values |= {name: format_value(value) for name, value in params.items()}
    for refusal in runtime.dialect.refuse:
        if refusal.matches(values):
            combination = ", ".join(f"{name} {values[name]}" for name in refusal.when)
            message = f"{combination}: {refusal.because}"
            return UnsupportedSetting(next(iter(refusal.when)), message, "combination")
    return None


def spell_params(runtime: Runtime, candidate: Candidate) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the words and variables that set a candidate's parameters; skip unknown ones."""
    words: list[str] = []
    variables: dict[str, str] = {}
    for name, value in candidate.params.items():
        spelling = runtime.spelling(name)
        if spelling is None:
            continue
        text = spell_value(spelling, value)
        if spelling.words is not None:
            words += spelling.words[format_value(value)]
        elif spelling.flag is not None and text is not None:
            words += (spelling.flag, text)
        elif spelling.env is not None and text is not None:
            variables[spelling.env] = text
    return tuple(words), variables


def spell_value(spelling: Spelling, value: ParamValue) -> str | None:
    """Return a value as a flag or variable accepts it, or None if that is left out."""
    text = format_value(value)
    written = spelling.values.get(text, text)
    return None if written is None else written.replace(",", spelling.join)


def _fixed_words(runtime: Runtime, purpose: Purpose) -> tuple[str, ...]:
    """Return the dialect's own words for a purpose, without those that the program lacks."""
    launch = runtime.dialect.launch
    groups = (
        *(launch.always if purpose not in ("baseline", "own_fit") else ()),
        *(launch.measure if purpose == "measure" else ()),
        *(launch.observe if purpose not in _PRESETS else ()),
    )
    return tuple(word for group in groups if group[0] in runtime.help for word in group)
