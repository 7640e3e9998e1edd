"""A runtime as data: how it is asked, spelled, started, watched and requested.

The classes are the sections of a dialect file, one field for each key; `runners/
llama_server.yaml` explains every key. They hold data and check what one section can know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict

from autofit.runtime.dialect.log_patterns import FailurePattern, LogPatterns

Words = tuple[str, ...]
# Keys that are not known are mistakes; `0` may stand for "0", as YAML's numbers often do.
_STRICT: ConfigDict = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"not a regex: {error}: {pattern}") from error


def _need_groups(pattern: str, names: set[str]) -> None:
    missing = names - set(_compile(pattern).groupindex)
    if missing:
        raise ValueError(f"named groups are missing: {', '.join(sorted(missing))}")


def _need_one(**alternatives: object) -> None:
    given = [name for name, value in alternatives.items() if value is not None]
    if len(given) != 1:
        raise ValueError(f"give one of {', '.join(alternatives)}")


@dataclass(frozen=True, slots=True)
class PythonPackage:
    """An installed Python package that brings the program."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    module: str
    path: str


@dataclass(frozen=True, slots=True)
class Program:
    """How the program is found and started."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    names: Words = ()
    packages: tuple[PythonPackage, ...] = ()
    command: Words = ()
    module: str | None = None

    def __post_init__(self) -> None:
        if not self.names and not self.command:
            raise ValueError("give names or a command")


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sign of a dialect: a listed flag, a text in a file, or a match in the help."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    flag: str | None = None
    text: str | None = None
    files: Words = ()
    help: str | None = None

    def __post_init__(self) -> None:
        _need_one(flag=self.flag, text=self.text, help=self.help)
        if self.help is not None:
            _compile(self.help)

    def matches_help(self, text: str) -> bool:
        """Whether the sign is a match in the help, and this help has it."""
        return self.help is not None and _compile(self.help).search(text) is not None


@dataclass(frozen=True, slots=True)
class Detection:
    """The evidence by which a program is recognised."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    all: tuple[Evidence, ...] = ()
    any: tuple[Evidence, ...] = ()
    none: tuple[Evidence, ...] = ()

    def __post_init__(self) -> None:
        if not self.all and not self.any:
            raise ValueError("give some evidence under all or any")


@dataclass(frozen=True, slots=True)
class InspectionRules:
    """What a program is asked before any model is loaded, and how its answers read."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    help: Words
    version: Words
    version_patterns: Words
    devices: Words = ()
    device_pattern: str = ""
    unified_pattern: str | None = None
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for pattern in self.version_patterns:
            _compile(pattern)
        if self.unified_pattern is not None:
            _compile(self.unified_pattern)
        if self.devices:
            _need_groups(self.device_pattern, {"name", "total_mib", "free_mib"})


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to say a parameter: `flag VALUE`, words for each value, or a variable."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    flag: str | None = None
    words: Mapping[str, Words] | None = None
    env: str | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)
    join: str = ","
    unlisted: bool = False
    text: str | None = None
    files: Words = ()

    def __post_init__(self) -> None:
        _need_one(flag=self.flag, words=self.words, env=self.env)
        if self.env is None and (self.text is not None or self.files):
            raise ValueError("text and files are for a variable")
        if self.env is None and None in self.values.values():
            raise ValueError("only a variable can be left out for a value")

    @property
    def flags(self) -> Words:
        """Every flag that the spelling may write."""
        if self.words is not None:
            every = [word for words in self.words.values() for word in words]
            return tuple(dict.fromkeys(word for word in every if word.startswith("-")))
        return () if self.flag is None else (self.flag,)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting by autofit's name for it; the first spelling that the program has is used."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    type: Literal["integer", "number", "text", "list", "boolean"]
    spellings: tuple[Spelling, ...]
    allowed: Words = ()

    def __post_init__(self) -> None:
        if not self.spellings:
            raise ValueError("give at least one spelling")


@dataclass(frozen=True, slots=True)
class LaunchRules:
    """The words around the parameters in every launch.

    Each group of words is left out where the help does not list its first word. `left_out` are
    flags of a user's own command that autofit launches without: they say who may ask (a key)
    and how, or where the log goes. Their values are never written down.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    model: str
    address: Words
    rpc: str | None = None
    always: tuple[Words, ...] = ()
    observe: tuple[Words, ...] = ()
    measure: tuple[Words, ...] = ()
    left_out: Words = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not any("{port}" in word for word in self.address):
            raise ValueError("the address needs a {port}")
        if any(not group for group in (*self.always, *self.observe, *self.measure)):
            raise ValueError("a group of words is empty")


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """When a started server can be used: what `path` answers."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    path: str
    status: int = 200
    loading: int = 503


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where requests go; None where the runtime has no such thing."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    completion: str
    tokenize: str | None = None
    detokenize: str | None = None
    props: str | None = None
    slots: str | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Keys under `timings` of an answer; times are in milliseconds."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    cached_tokens: str
    prompt_tokens: str
    prompt_ms: str
    predicted_tokens: str
    predicted_ms: str


@dataclass(frozen=True, slots=True)
class EstimatorRules:
    """How a companion tells memory per device without loading weights."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    companion: str
    words: Words
    row_pattern: str
    host: str
    counts_logits_of_ubatch: bool = False
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        _need_groups(self.row_pattern, {"device", "model", "context", "compute"})


@dataclass(frozen=True, slots=True)
class DivergenceRules:
    """How a companion tells how far the chances of next tokens move under other settings.

    It runs twice: `keep` writes the chances of a text's tokens to the file {base}, `score`
    holds those of other settings against them. {text} is the file of the text, {chunks} how
    many pieces of `context` tokens are taken from it; the later half of each counts.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    companion: str
    context: int
    keep: Words
    score: Words
    chunks_pattern: str
    mean_pattern: str
    most_pattern: str
    same_pattern: str

    def __post_init__(self) -> None:
        _need_groups(self.chunks_pattern, {"chunks"})
        for pattern in (self.mean_pattern, self.most_pattern):
            _need_groups(pattern, {"nats"})
        _need_groups(self.same_pattern, {"percent"})


@dataclass(frozen=True, slots=True)
class RefusedCombination:
    """A combination of values that the runtime refuses, and why."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    when: Mapping[str, str | Words | Mapping[Literal["not"], Words]]
    because: str

    def __post_init__(self) -> None:
        if not self.when:
            raise ValueError("give at least one parameter")

    def matches(self, values: Mapping[str, str]) -> bool:
        """Whether these values, by parameter, are the refused combination."""
        return all(_agrees(values.get(name), wanted) for name, wanted in self.when.items())


def _agrees(value: str | None, wanted: str | Words | Mapping[Literal["not"], Words]) -> bool:
    if value is None:
        return False
    if isinstance(wanted, str):
        return value == wanted
    if isinstance(wanted, Mapping):
        return value not in wanted["not"]
    return value in wanted


@dataclass(frozen=True, slots=True)
class IniRules:
    """What a preset file in INI form can hold."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    cannot_hold: Words = ()
    reserved: Words = ()


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """What a container runs: an image by the start of a device's name, and its program."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    images: Mapping[str, str] = field(default_factory=dict)
    program: str = ""

    def image(self, devices: Sequence[str]) -> str | None:
        """The image for the devices, by name; the one under `CPU` where there is none."""
        local = [device for device in devices if not device.startswith("RPC")] or ["CPU"]
        return next((i for kind, i in self.images.items() if local[0].startswith(kind)), None)


@dataclass(frozen=True, slots=True)
class PresetRules:
    """In which formats presets are written for this runtime."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    formats: Words = ("shell", "systemd", "compose", "env", "json", "args")
    ini: IniRules = field(default_factory=IniRules)
    container: ContainerRules = field(default_factory=ContainerRules)


@dataclass(frozen=True, slots=True)
class Dialect:
    """Everything autofit knows about a kind of runtime; `name` is its file's name."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

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
    memory_command: Words | None = None
    preset: PresetRules = field(default_factory=PresetRules)
    log: LogPatterns = field(default_factory=LogPatterns)
    failures: tuple[FailurePattern, ...] = ()

    @property
    def variables(self) -> frozenset[str]:
        """Environment variables that are parameters: a child's environment is cleared of them."""
        spellings = (s for parameter in self.parameters.values() for s in parameter.spellings)
        return frozenset(spelling.env for spelling in spellings if spelling.env is not None)

    def __post_init__(self) -> None:
        for name, rules in (("estimator", self.estimator), ("divergence", self.divergence)):
            if rules and rules.companion not in self.companions:
                raise ValueError(f"{name}: no companion '{rules.companion}'")
        for refusal in self.refuse:
            unknown = sorted(set(refusal.when) - set(self.parameters))
            if unknown:
                raise ValueError(f"refuse: unknown parameters: {', '.join(unknown)}")
