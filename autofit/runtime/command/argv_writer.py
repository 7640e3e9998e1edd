"""The command that launches a candidate.

Order matters to llama.cpp: arguments act as they are read, so remote servers come before
anything about devices, and of two tensor overrides the first that matches wins, so
`override_tensor` comes before `n_cpu_moe` (the params' canonical order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autofit.runtime.dialect.dialect import Spelling, Words
from autofit.runtime.discovery.found_runtime import Runtime, format_value
from autofit.trial.candidate import Candidate, LaunchPlan, Limits, ParamValue
from autofit.trial.outcome import Rejected, RejectedReason

# measure    explicit settings, nothing that blurs a measurement
# prove      as it will be served, and watched
# preset     as it will be served: no address, nothing of autofit's own
# baseline   the runtime's own choices (its automatic fit left on), watched
# own_fit    like preset, but what is not set is left to the runtime's automatic fit
Purpose = Literal["measure", "prove", "preset", "baseline", "own_fit"]


# What is written down for others to start: no address, nothing of autofit's own.
_SERVED = ("preset", "own_fit")


@dataclass(frozen=True, slots=True)
class UnsupportedSetting:
    """Why a runtime cannot be told a candidate; `parameter` is the one at fault."""

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
    """The command and environment of a candidate, or why the runtime cannot be told it.

    `extra_args` (what the user gave after `--`) come last and unchanged; `env` are the
    user's variables. The model's path is made absolute.
    """
    problem = find_unsupported(runtime, candidate)
    if problem:
        return problem
    launch = runtime.dialect.launch
    words, variables = spell_params(runtime, candidate)
    remote = (launch.rpc, rpc) if rpc and launch.rpc else ()
    argv = (
        *wrapper,
        *runtime.command,
        *remote,
        *(launch.model, str(model_path.absolute())),
        *(launch.address if purpose not in _SERVED else ()),
        *words,
        *_fixed(runtime, purpose),
        *extra_args,
    )
    own = launch.env if purpose not in _SERVED else {}
    return LaunchPlan(
        candidate=candidate,
        argv=argv,
        env={**runtime.env, **own, **variables, **(env or {})},
        limits=limits or Limits(),
    )


def find_unsupported(runtime: Runtime, candidate: Candidate) -> UnsupportedSetting | None:
    """The first thing about a candidate that the runtime does not know or refuses."""
    for name, value in candidate.params.items():
        if not runtime.supports(name):
            message = f"{runtime.dialect.name}: this program has no {name}"
            return UnsupportedSetting(name, message, "unknown_flag")
        if not runtime.supports(name, value):
            known = ", ".join(runtime.values(name))
            message = (
                f"{name}: this program does not know {format_value(value)} (it knows {known})"
            )
            return UnsupportedSetting(name, message, "bad_value")
    set_values = {name: format_value(value) for name, value in candidate.params.items()}
    values = {**runtime.dialect.defaults, **set_values}
    for refusal in runtime.dialect.refuse:
        if refusal.matches(values):
            asked = ", ".join(f"{name} {values[name]}" for name in refusal.when)
            first = next(name for name in refusal.when)
            return UnsupportedSetting(first, f"{asked}: {refusal.because}", "combination")
    return None


def spell_params(runtime: Runtime, candidate: Candidate) -> tuple[Words, dict[str, str]]:
    """The words and the variables that say a candidate's params; unknown ones are left out."""
    words: list[str] = []
    variables: dict[str, str] = {}
    for name, value in candidate.params.items():
        spelling = runtime.spelling(name)
        if spelling is None:
            continue
        text = spell_value(spelling, value)
        if spelling.words is not None:
            words += spelling.words[format_value(value)]
        elif spelling.flag is not None:
            words += (spelling.flag, text or "")
        elif spelling.env is not None and text is not None:
            variables[spelling.env] = text
    return tuple(words), variables


def spell_value(spelling: Spelling, value: ParamValue) -> str | None:
    """A value as a flag or a variable takes it; None where the variable is left out."""
    text = format_value(value)
    told = spelling.values.get(text, text)
    return told.replace(",", spelling.join) if told is not None else None


def _fixed(runtime: Runtime, purpose: Purpose) -> Words:
    """The dialect's own words for a purpose, as far as the program knows them."""
    launch = runtime.dialect.launch
    groups = (
        *(launch.always if purpose not in ("baseline", "own_fit") else ()),
        *(launch.measure if purpose == "measure" else ()),
        *(launch.observe if purpose not in _SERVED else ()),
    )
    return tuple(word for group in groups if group[0] in runtime.help for word in group)
