"""Suites: the lists of what sweeps measure, and their YAML files.

A suite is a list of entries. `defaults` has the options that an entry does not set. If a model,
runtime, workload or space is a list, every combination is an entry. Paths are relative to the
suite's file and may contain environment variables.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from ruamel.yaml.comments import CommentedMap

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.runtime.command.redaction import redact_command, redact_text, redact_variables
from autofit.runtime.dialect.dialect_file import load_dialect, load_parameter_types
from autofit.search.space_file import Count, read_space, read_workload
from autofit.session.budget import parse_duration_s
from autofit.session.requirement import parse_requirement
from autofit.session.task_options import parse_devices, parse_env, parse_rpc, parse_wrapper
from autofit.study.study_location import safe_name
from autofit.sweep.entry_record import Mode
from autofit.sweep.needs import Needs
from autofit.sweep.verdict import Thresholds
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload
from autofit.yaml_files import did_you_mean

# The name of the small model that `autofit demo` makes.
DEMO_MODEL = "demo"

_BUDGETS_S: Mapping[Mode, float] = {"tune": 3600.0, "remeasure": 1200.0, "compare": 1200.0}
_TIME_OUT_FACTOR = 1.5
_TIME_OUT_EXTRA_S = 600.0
_VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
# Keys that may be lists. Every combination of their values is an entry.
_VARIED = ("model", "runtime", "workload", "space")
_MOST_ENTRIES = 1000
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+@-]*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteEntry:
    """One entry of a suite, with all defaults. `EntryOptions` explains each field.

    Paths are absolute. Values of `pins` and `devices` have the form of the command line. `index`
    is the entry's position in the file.
    """

    name: str
    index: int
    model: str
    mode: Mode = "tune"
    runtime: str | None = None
    against: str | None = None
    dialect: str | None = None
    workload: str = "chat"
    space: str | None = None
    preset: str | None = None
    context: int | None = None
    parallel: int | None = None
    objective: Metric = "request_s"
    require: tuple[str, ...] = ()
    kv_floor: str = "q8_0"
    budget_s: float | None = None
    max_launches: int = 30
    # With two earlier nights this finds a change of 6% at 3% noise; five rounds find four of five
    # (results/benchmarks).
    rounds: int = 8
    time_out_s: float | None = None
    neighbours: bool = True
    boundary: bool = True
    thresholds: Thresholds = field(default_factory=Thresholds)
    devices: Mapping[str, str] = field(default_factory=dict)
    rpc: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: str = ""
    args: tuple[str, ...] = ()
    answers: bool = True
    seed: int = 1
    missing: Literal["skip", "fail"] = "fail"
    needs: Needs = field(default_factory=Needs)

    @property
    def full_budget_s(self) -> float:
        """The seconds for measuring, if the budget of the suite does not limit them."""
        return self.budget_s or _BUDGETS_S[self.mode]

    def time_limit_s(self, granted_s: float) -> float:
        """Return the seconds after which the entry is stopped, given its seconds for measuring."""
        return self.time_out_s or granted_s * _TIME_OUT_FACTOR + _TIME_OUT_EXTRA_S

    def find_unmet_need(self) -> str:
        """Return what the entry needs and this machine lacks, or an empty text."""
        return self.needs.find_unmet(self.runtime, self.dialect, self.rpc)

    def has_name(self, name: str) -> bool:
        """Return whether a name is that of the entry, or of the item that the entry is part of."""
        return self.name == name or self.name.startswith(f"{name}+")

    def describe_task(self, workload: Workload) -> str:
        """Return one line with the requests, and the runtime's arguments that are no settings.

        Nights with different lines are not compared.
        """
        requests = ", ".join(
            f"{one.prompt_tokens}+{one.predicted_tokens} (weight {one.weight:g})"
            for one in workload.requests
        )
        context = f"context {workload.context}, parallel {workload.parallel}"
        parts = [f"{context}, requests {requests}"]
        # The folder of a text may differ between machines.
        parts += [f"text {Path(workload.text).name}"] if workload.text else []
        parts += [shlex.join(redact_command(self.args))] if self.args else []
        parts += [f"under {redact_text(self.wrapper)}"] if self.wrapper else []
        parts += [f"{name}={value}" for name, value in sorted(redact_variables(self.env).items())]
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A suite: the entries of a sweep, and the budget for all of them, or None without a limit."""

    name: str
    path: Path
    budget_s: float | None
    baseline: Path
    entries: tuple[SuiteEntry, ...]

    def select(self, only: Sequence[str], shard: tuple[int, int] | None) -> tuple[SuiteEntry, ...]:
        """Return the entries of a shard in order, and if names are given, only those.

        Shard i of n has every n-th name in alphabetical order, beginning with the i-th.

        Raises:
            UsageError: no entry has one of the names.
        """
        for name in only:
            if not any(entry.has_name(name) for entry in self.entries):
                known = ", ".join(entry.name for entry in self.entries)
                raise UsageError(f"there is no entry '{name}' in {self.path}", f"it has: {known}")
        names = sorted(entry.name for entry in self.entries)
        if shard is not None:
            names = names[shard[0] - 1 :: shard[1]]
        return tuple(
            entry
            for entry in self.entries
            if entry.name in names and (not only or any(map(entry.has_name, only)))
        )


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """Check a text with the function that will read it."""

    def validate(text: str) -> str:
        try:
            check(text)
        except UsageError as error:
            raise ValueError(error.message) from error
        return text

    return AfterValidator(validate)


def _check_name(name: str) -> None:
    if not re.fullmatch(_NAME, name):
        allowed = "letters, digits and ._+@-, and begins with a letter or digit"
        raise UsageError(f"'{name}': a name may contain only {allowed}")


Duration = Annotated[str, _checked(parse_duration_s)]
Text = Annotated[str, StringConstraints(min_length=1)]
OneOrMore = Text | Annotated[list[Text], Field(min_length=1)]
Value = bool | int | float | str


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class EntryDefaults(_StrictModel):
    """The options of an entry, and of the defaults of a suite."""

    mode: Mode | None = None
    """tune: a whole tune. remeasure: the baseline's winner and its neighbours. compare: the
    same settings on `runtime` and on `against`."""
    model: OneOrMore | None = None
    """A GGUF file; `demo` is the small model of `autofit demo`. A list: one entry for each."""
    runtime: OneOrMore | None = None
    """llama-server or its folder; by default the first one found."""
    against: Text | None = None
    """The old runtime, which remeasure and compare measure in the same rounds."""
    dialect: Text | None = None
    """The runtime's dialect; by default it is detected."""
    workload: OneOrMore | None = None
    """Name or file of the workload: the requests to measure."""
    space: OneOrMore | None = None
    """Name or file of a search space, for tunes; by default the model decides."""
    preset: Text | None = None
    """The settings of remeasure and compare; by default the baseline's winner."""
    context: Count | None = None
    """Tokens of context of all slots together; replaces the workload's."""
    parallel: Count | None = None
    """Requests at the same time; replaces the workload's."""
    objective: Literal["request_s", "pp", "tg", "ttft"] | None = None
    """The metric that a tune optimises."""
    require: list[Annotated[str, _checked(parse_requirement)]] | None = None
    """Requirements on a tune's winner: `tg>=20`."""
    kv_floor: Text | None = None
    """The narrowest KV cache type of a tune."""
    budget: Duration | None = None
    """Time for measuring: 90s, 30m, 2h. The default is 1h for a tune, 20m for other modes."""
    max_launches: Count | None = None
    """The most launches of a tune's baseline, boundary and search together."""
    rounds: int | None = Field(default=None, ge=1, le=100)
    """Launches of each setting by remeasure and compare."""
    time_out: Duration | None = None
    """The entry is stopped after this time; by default 1.5 times its budget plus 10 minutes."""
    neighbours: bool | None = None
    """Whether remeasure also launches one host layer more and one less."""
    boundary: bool | None = None
    """Whether launches prove the fit boundary of the winner's layout."""
    thresholds: Thresholds | None = None
    """The smallest changes that count."""
    devices: dict[str, float | str] | None = None
    """Devices by name, in order, and how much memory of each: MiB, or 11GiB."""
    rpc: str | None = None
    """Remote devices: HOST:PORT,..."""
    set: dict[str, Value] | None = None
    """Parameters that are fixed in a tune."""
    env: dict[str, Value] | None = None
    """Environment variables of every launch."""
    wrapper: str | None = None
    """A command before the program: numactl -N 0."""
    args: list[str] | None = None
    """Arguments of every launch, as after `--`."""
    answers: bool | None = None
    """Whether answers are compared; set it to false for a model of random weights."""
    seed: int | None = None
    """Seed of a tune's search and of the order of launches."""
    missing: Literal["skip", "fail"] | None = None
    """Whether to skip the entry or to fail if its model, runtime or device is missing."""
    needs: Needs | None = None
    """The hardware that the entry needs; on a machine without it the entry counts as missing."""


class EntryOptions(EntryDefaults):
    """One entry of a suite."""

    name: Annotated[
        str, Field(max_length=80, json_schema_extra={"pattern": _NAME}), _checked(_check_name)
    ]
    """Its name in reports and baselines: letters, digits and `._+@-`."""


class SuiteFile(_StrictModel):
    """A suite as written in YAML."""

    about: str = ""
    """One line for people."""
    budget: Duration | None = None
    """Time for all entries together. If they need more, each gets an equal share."""
    baseline: str = ""
    """The baseline's file; by default `SUITE.baseline.json` in the suite's folder."""
    defaults: EntryDefaults = EntryDefaults()
    """Options of entries that do not set them."""
    entries: list[EntryOptions] = Field(min_length=1)
    """The entries, in the order in which they are measured."""


def read_suite(data: CommentedMap, path: Path, *, checks_names: bool = True) -> Suite:
    """Return the suite of a file's data.

    `checks_names` also checks the names and paths in entries, except models and runtimes, which
    need not exist on this machine.

    Raises:
        UsageError: the suite is faulty. Every fault has the form `file:line: text`.
    """
    reader = _SuiteReader(yaml_files.validate(data, SuiteFile, path), data, path)
    suite = reader.read()
    # The entries of one item have mostly the same names.
    known: dict[tuple[str, str], str] = {}
    for entry in suite.entries if checks_names else ():
        for key, text in _named_faults(entry, known):
            reader.add_fault(("entries", entry.index, key), f"{key}: {text}")
    reader.raise_faults()
    return suite


def _named_faults(
    entry: SuiteEntry, known_faults: dict[tuple[str, str], str]
) -> Iterator[tuple[str, str]]:
    """Yield the faults of names and paths in an entry, each with its key.

    `known_faults` are those of earlier entries by key and value; others are added.
    """
    checks: tuple[tuple[str, Callable[[], object]], ...] = (
        ("workload", lambda: read_workload(entry.workload)),
        ("space", lambda: read_space(entry.space or "moe", cores=1)),
        ("dialect", lambda: load_dialect(entry.dialect) if entry.dialect else None),
        ("devices", lambda: parse_devices(map("=".join, entry.devices.items()))),
        ("rpc", lambda: parse_rpc(entry.rpc)),
        ("env", lambda: parse_env(map("=".join, entry.env.items()))),
        ("wrapper", lambda: parse_wrapper(entry.wrapper)),
    )
    for key, check in checks:
        place = key, repr(getattr(entry, key))
        if place not in known_faults:
            try:
                check()
                known_faults[place] = ""
            except UsageError as error:
                known_faults[place] = error.message.splitlines()[0]
        if known_faults[place]:
            yield key, known_faults[place]
    known = load_parameter_types() if entry.pins else {}
    for name in entry.pins:
        if name not in known:
            question = did_you_mean(name, known)
            yield "set", f"no runtime has a parameter '{name}' {question}".strip()


class _SuiteReader:
    """A reader that makes the entries of a suite's file, and collects faults with their lines."""

    def __init__(self, file: SuiteFile, data: CommentedMap, path: Path) -> None:
        self._file = file
        self._data = data
        self._path = path
        self._faults: list[str] = []

    def read(self) -> Suite:
        entries: list[SuiteEntry] = []
        for index in range(len(self._file.entries)):
            entries += self._entries(index)
        self._refuse_equal_names(entries)
        self.raise_faults()
        name = safe_name(self._path.name.removesuffix(".yml").removesuffix(".yaml"))
        baseline = self._file.baseline or f"{name}.baseline.json"
        return Suite(
            name=name,
            path=self._path,
            budget_s=parse_duration_s(self._file.budget) if self._file.budget else None,
            baseline=Path(self._resolve(baseline, ("baseline",), is_path=True)),
            entries=tuple(entries),
        )

    def add_fault(self, place: tuple[str | int, ...], text: str) -> None:
        line = self._line_of(place)
        self._faults.append(f"{self._path}:{line}: {'.'.join(map(str, place[:2]))}: {text}")

    def raise_faults(self) -> None:
        if self._faults:
            hint = f"correct the file, and use `autofit check {self._path}` to check it"
            raise UsageError(yaml_files.list_faults(list(dict.fromkeys(self._faults))), hint)

    def _entries(self, index: int) -> Iterator[SuiteEntry]:
        """Yield the entries of an item: one for each combination of its lists."""
        place = ("entries", index)
        options = self._merge_defaults(index)
        if options.get("model") is None:
            self.add_fault(place, "model: is missing in the entry and in the defaults")
            return
        varied = {key: options[key] for key in _VARIED if isinstance(options.get(key), list)}
        count = math.prod(map(len, varied.values()))
        if count > _MOST_ENTRIES:
            self.add_fault(place, f"its lists make {count} entries, at most {_MOST_ENTRIES} are")
            return
        for values in itertools.product(*varied.values()):
            chosen = dict(zip(varied, values, strict=True))
            suffixes = [
                safe_name(Path(chosen[key]).name.removesuffix(".yaml"))
                for key in varied
                if len(varied[key]) > 1
            ]
            name = "+".join([options["name"], *suffixes])
            yield self._entry({**options, **chosen, "name": name}, place)

    def _merge_defaults(self, index: int) -> dict[str, Any]:
        """Return an item's options with the defaults added. Groups are merged key by key."""
        own = self._file.entries[index].model_dump(exclude_none=True, exclude_unset=True)
        merged: dict[str, Any] = self._file.defaults.model_dump(
            exclude_none=True, exclude_unset=True
        )
        for key, value in own.items():
            is_group = key in {"set", "env", "thresholds", "needs"} and key in merged
            merged[key] = {**merged[key], **value} if is_group else value
        return merged

    def _entry(self, options: dict[str, Any], place: tuple[str, int]) -> SuiteEntry:
        for key in ("require", "args"):
            options[key] = tuple(options.get(key, ()))
        options["devices"] = {k: str(v) for k, v in options.get("devices", {}).items()}
        options["env"] = {k: _value_text(v) for k, v in options.get("env", {}).items()}
        options["pins"] = {k: _value_text(v) for k, v in options.pop("set", {}).items()}
        options["needs"] = Needs(**options.get("needs", {}))
        options["thresholds"] = Thresholds(**options.get("thresholds", {}))
        for key in ("budget", "time_out"):
            options[f"{key}_s"] = parse_duration_s(options.pop(key)) if key in options else None
        if options["model"] != DEMO_MODEL:
            options["model"] = self._resolve(options["model"], (*place, "model"), is_path=True)
        for key in ("runtime", "against", "preset", "dialect", "workload", "space"):
            if options.get(key) is not None:
                options[key] = self._resolve(options[key], (*place, key))
        mode = options.get("mode", "tune")
        for key in ("preset", "against"):
            if mode == "tune" and getattr(self._file.entries[place[1]], key) is not None:
                self.add_fault((*place, key), f"{key}: mode tune does not use this option")
        if mode == "compare" and "against" not in options:
            self.add_fault((*place, "mode"), "mode: compare needs `against`, the old runtime")
        return SuiteEntry(**options, index=place[1])

    def _resolve(self, text: str, place: tuple[str | int, ...], *, is_path: bool = False) -> str:
        """Convert a path relative to the suite to an absolute one, and leave a name unchanged.

        A preset may also be a launch command, which stays unchanged.
        """
        expanded = os.path.expandvars(text)
        unknown = _VARIABLE.search(expanded)
        if unknown:
            self.add_fault(place, f"{place[-1]}: the variable {unknown[0]} is not set")
        path = Path(expanded).expanduser()
        absolute = self._path.absolute().parent / path
        is_name = "/" not in expanded and path.suffix not in {".yaml", ".yml"}
        if place[-1] == "preset":
            is_name = len(expanded.split()) > 1 and not absolute.is_file()
        return expanded if is_name and not is_path else os.path.normpath(absolute)

    def _refuse_equal_names(self, entries: Sequence[SuiteEntry]) -> None:
        seen: set[str] = set()
        for entry in entries:
            # Some file systems ignore case, so names are compared without it.
            if entry.name.lower() in seen:
                place = ("entries", entry.index, "name")
                self.add_fault(place, f"name: there are two entries '{entry.name}'")
            seen.add(entry.name.lower())

    def _line_of(self, place: tuple[str | int, ...]) -> int:
        """Return the line of an entry's key. The key may be in the defaults."""
        if place[0] == "entries":
            _, index, *keys = place
            defaults = self._data.get("defaults") or {}
            if keys and keys[0] not in self._data["entries"][index] and keys[0] in defaults:
                return yaml_files.line_of(self._data, ("defaults", *keys))
        return yaml_files.line_of(self._data, place)


def _value_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
