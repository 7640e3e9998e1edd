"""The sections of a dialect file.

Each class is one section and each field one key; `runners/llama_server.yaml` explains every
key. The classes hold data and check what a single section can know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict

from autofit.runtime.dialect.log_patterns import FailurePattern, LogPatterns, Regex


def _require_groups(pattern: str, *names: str) -> str:
    missing = set(names) - set(re.compile(pattern).groupindex)
    if missing:
        raise ValueError(f"named groups are missing: {', '.join(sorted(missing))}")
    return pattern


def _groups(*names: str) -> AfterValidator:
    """Return a check that a regex has these named groups."""
    return AfterValidator(lambda pattern: _require_groups(pattern, *names))


def _require_one(**alternatives: object) -> None:
    given = [name for name, value in alternatives.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give one of {', '.join(alternatives)}")


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """An installed Python package that contains the program."""

    module: str
    path: str


@dataclass(frozen=True, slots=True)
class Program:
    """The names and places of the program, or the command that starts it."""

    names: tuple[str, ...] = ()
    packages: tuple[PythonPackage, ...] = ()
    command: tuple[str, ...] = ()
    module: str | None = None

    def __post_init__(self) -> None:
        if not self.names and not self.command:
            raise ValueError("give names or a command")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign of a dialect: a listed flag, a text in a file, or a match in the help."""

    flag: str | None = None
    text: str | None = None
    files: tuple[str, ...] = ()
    help: Regex | None = None

    def __post_init__(self) -> None:
        _require_one(flag=self.flag, text=self.text, help=self.help)


@dataclass(frozen=True, slots=True)
class Detection:
    """The evidence that identifies a program."""

    all: tuple[Evidence, ...] = ()
    any: tuple[Evidence, ...] = ()
    none: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        if not self.all and not self.any:
            raise ValueError("give some evidence under all or any")


@dataclass(frozen=True, slots=True)
class InspectionRules:
    """Options that print the help, the version and the devices, and patterns of the output."""

    help: tuple[str, ...]
    version: tuple[str, ...]
    version_patterns: tuple[Regex, ...]
    devices: tuple[str, ...] = ()
    device_pattern: Regex = ""
    unified_pattern: Regex | None = None
    capability_pattern: Regex | None = None
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.devices:
            _require_groups(self.device_pattern, "name", "total_mib", "free_mib")
        if self.capability_pattern:
            _require_groups(self.capability_pattern, "index", "capability")


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to set a parameter: `flag VALUE`, words for each value, or a variable."""

    flag: str | None = None
    words: Mapping[str, tuple[str, ...]] | None = None
    env: str | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)
    join: str = ","
    unlisted: bool = False
    text: str | None = None
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _require_one(flag=self.flag, words=self.words, env=self.env)
        if self.env is None and (self.text is not None or self.files):
            raise ValueError("`text` and `files` are only allowed together with `env`")
        if self.words is not None and None in self.values.values():
            raise ValueError("a value can be null only together with `flag` or `env`")

    @property
    def flags(self) -> tuple[str, ...]:
        """Every flag that the spelling can write."""
        if self.words is not None:
            every = [word for words in self.words.values() for word in words]
            return tuple(dict.fromkeys(word for word in every if word.startswith("-")))
        return () if self.flag is None else (self.flag,)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting under autofit's name; the first spelling that the program has is used."""

    type: Literal["integer", "number", "text", "list", "boolean"]
    spellings: tuple[Spelling, ...]
    allowed: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.spellings:
            raise ValueError("give at least one spelling")


@dataclass(frozen=True, slots=True)
class LaunchRules:
    """The words of every launch, except the parameters.

    A group of words is left out if the help does not list its first word. `left_out` are
    flags that autofit removes from a user's command: they control access or redirect the log.
    Their values are never stored.
    """

    model: str
    address: tuple[str, ...]
    rpc: str | None = None
    always: tuple[tuple[str, ...], ...] = ()
    observe: tuple[tuple[str, ...], ...] = ()
    measure: tuple[tuple[str, ...], ...] = ()
    left_out: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any("{port}" in word for word in self.address):
            raise ValueError("the address must contain {port}")
        if any(not group for group in (*self.always, *self.observe, *self.measure)):
            raise ValueError("a group of words must not be empty")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """The path that shows whether a started server is ready, and its HTTP status codes."""

    path: str
    status: int = 200
    loading: int = 503


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The paths of requests; null for a request that the runtime does not have."""

    completion: str
    tokenize: str | None = None
    detokenize: str | None = None
    props: str | None = None
    slots: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Keys under `timings` of a response; times are in milliseconds."""

    cached_tokens: str
    prompt_tokens: str
    prompt_ms: str
    predicted_tokens: str
    predicted_ms: str


@dataclass(frozen=True, slots=True)
class EstimatorRules:
    """A companion program that predicts memory per device without loading weights."""

    companion: str
    words: tuple[str, ...]
    row_pattern: Annotated[Regex, _groups("device", "model", "context", "compute")]
    host: str
    counts_logits_of_ubatch: bool = False
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class DivergenceRules:
    """A companion program that measures how other settings change next-token probabilities.

    It runs twice. `keep` writes the probabilities of a text's tokens to the file {base};
    `score` compares those of other settings with it. {text} is the file of the text. {chunks}
    is the number of pieces of `context` tokens; the later half of each piece is scored.
    """

    companion: str
    context: int
    keep: tuple[str, ...]
    score: tuple[str, ...]
    chunks_pattern: Annotated[Regex, _groups("chunks")]
    mean_pattern: Annotated[Regex, _groups("nats")]
    most_pattern: Annotated[Regex, _groups("nats")]
    same_pattern: Annotated[Regex, _groups("percent")]


Condition = str | tuple[str, ...] | Mapping[Literal["not"], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class RefusedCombination:
    """A combination of values that the runtime refuses, and the reason."""

    when: Mapping[str, Condition]
    because: str

    def __post_init__(self) -> None:
        if not self.when:
            raise ValueError("give at least one parameter")

    def matches(self, values: Mapping[str, str]) -> bool:
        """Return whether these parameter values are the refused combination."""
        return all(
            name in values and _meets(values[name], condition)
            for name, condition in self.when.items()
        )


def _meets(value: str, condition: Condition) -> bool:
    if isinstance(condition, Mapping):
        return value not in condition["not"]
    return value == condition if isinstance(condition, str) else value in condition


@dataclass(frozen=True, slots=True)
class IniRules:
    """Limits of a preset file in INI form."""

    cannot_hold: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """The container images by the start of a device's name, and the program in them."""

    images: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    def image(self, devices: Sequence[str]) -> str | None:
        """Return the image for these devices, or the image of `CPU` if none of them is local."""
        local = [device for device in devices if not device.startswith("RPC")] or ["CPU"]
        return next((i for kind, i in self.images.items() if local[0].startswith(kind)), None)


@dataclass(frozen=True, slots=True)
class PresetRules:
    """The formats in which presets are written for this runtime."""

    formats: tuple[str, ...] = (
        *("shell", "systemd", "compose", "env", "json", "args", "bat", "powershell"),
    )
    ini: IniRules = field(default_factory=IniRules)
    container: ContainerRules = field(default_factory=ContainerRules)


@dataclass(frozen=True, slots=True)
class UncountedOption:
    """An option after `--` whose memory no estimate contains.

    `notice` is the message about it, and may contain `{flag}` and `{value}`. Only the listed
    `values` take memory; without a list all values do, except those in `unless`.
    """

    flags: tuple[str, ...]
    notice: str
    values: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def applies(self, flag: str, value: str) -> bool:
        """Return whether the option, as written, has memory of its own."""
        is_meant = value in self.values if self.values else value not in self.unless
        return flag in self.flags and is_meant


@dataclass(frozen=True, slots=True)
class Dialect:
    """The description of a kind of runtime; `name` is the name of its file."""

    # Unknown keys are mistakes, and YAML's `0` may mean the text "0". Applies to all sections.
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    name: str
    path: Path
    description: str
    program: Program
    detect: Detection
    ask: InspectionRules
    parameters: Mapping[str, Parameter]
    launch: LaunchRules
    ready: HealthCheck
    endpoints: Endpoints
    timings: Timings
    extends: str | None = None
    applied: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    estimator: EstimatorRules | None = None
    divergence: DivergenceRules | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)
    refuse: tuple[RefusedCombination, ...] = ()
    uncounted: tuple[UncountedOption, ...] = ()
    memory_command: tuple[str, ...] | None = None
    preset: PresetRules = field(default_factory=PresetRules)
    log: LogPatterns = field(default_factory=LogPatterns)
    failures: tuple[FailurePattern, ...] = ()

    @property
    def switches(self) -> frozenset[str]:
        """All flags without a value that spell a parameter."""
        spellings = (one for parameter in self.parameters.values() for one in parameter.spellings)
        return frozenset(flag for one in spellings if one.words for flag in one.flags)

    @property
    def variables(self) -> frozenset[str]:
        """Environment variables that are parameters; they are removed from a server's env."""
        spellings = (s for parameter in self.parameters.values() for s in parameter.spellings)
        return frozenset(spelling.env for spelling in spellings if spelling.env is not None)

    def __post_init__(self) -> None:
        for name, rules in (("estimator", self.estimator), ("divergence", self.divergence)):
            if rules and rules.companion not in self.companions:
                raise ValueError(f"{name}: '{rules.companion}' must be listed in companions")
        for refusal in self.refuse:
            unknown = sorted(set(refusal.when) - set(self.parameters))
            if unknown:
                raise ValueError(f"refuse: unknown parameters: {', '.join(unknown)}")
