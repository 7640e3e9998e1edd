"""Suite files: their schema, and reading them.

A suite is a list of entries; what an entry leaves out comes from `defaults`. Where a model,
runtime, workload or space is a list, the entry stands for every combination. Paths are
relative to the suite file, and may hold variables of the environment.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints
from ruamel.yaml.comments import CommentedMap

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.runtime.dialect.dialect_file import load_dialect, load_parameter_types
from autofit.search.space_file import read_space, read_workload
from autofit.session.budget import parse_duration_s
from autofit.session.requirement import parse_requirement
from autofit.session.task_options import parse_devices, parse_env, parse_rpc, parse_wrapper
from autofit.study.study_location import safe_name
from autofit.sweep.suite import DEMO_MODEL, Entry, Suite
from autofit.yaml_files import did_you_mean

_VARIABLE = re.compile(r"\$(?:\{\w+\}|\w+)")
# Keys that may be lists, whose combinations are entries of their own.
_VARIED = ("model", "runtime", "workload", "space")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+@-]*$"


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """Have a text looked at by what will read it later."""

    def look(text: str) -> str:
        try:
            check(text)
        except UsageError as error:
            raise ValueError(error.message) from error
        return text

    return AfterValidator(look)


def _named(name: str) -> str:
    if not re.fullmatch(_NAME, name):
        known = "letters, digits and ._+@-, and begins with a letter or digit"
        raise ValueError(f"'{name}': a name has only {known}")
    return name


Duration = Annotated[str, _checked(parse_duration_s)]
Text = Annotated[str, StringConstraints(min_length=1)]
OneOrMore = Text | Annotated[list[Text], Field(min_length=1)]
Value = bool | int | float | str


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ThresholdsFile(_Strict):
    """From which change on a metric counts: percent, and MiB of memory."""

    request_s: float | None = Field(default=None, gt=0, le=1000)
    """Seconds per request: so many percent slower are a regression."""
    pp: float | None = Field(default=None, gt=0, le=1000)
    """Prompt tokens per second: so many percent less are a regression."""
    tg: float | None = Field(default=None, gt=0, le=1000)
    """Generated tokens per second: so many percent less are a regression."""
    ttft: float | None = Field(default=None, gt=0, le=1000)
    """Seconds to the first token: so many percent more are a regression."""
    load_s: float | None = Field(default=None, gt=0, le=10000)
    """Seconds to load the model: so many percent more are a regression."""
    memory_mib: float | None = Field(default=None, gt=0)
    """Memory of a device at the peak: so many MiB more are a regression."""


class TaskFile(_Strict):
    """What an entry and the defaults of a suite may say."""

    mode: Literal["tune", "remeasure", "compare"] | None = None
    """tune: a whole tune. remeasure: the baseline's winner and its neighbours. compare: the
    same settings on `runtime` and on `against`."""
    model: OneOrMore | None = None
    """A GGUF file; `demo` is the small model of `autofit demo`. A list: one entry for each."""
    runtime: OneOrMore | None = None
    """llama-server, or the folder it lies in; without one it is looked for."""
    against: Text | None = None
    """The old runtime: measured again, interleaved, by remeasure and compare."""
    dialect: Text | None = None
    """The runtime's dialect; found out where it is left out."""
    workload: OneOrMore | None = None
    """A workload's name or file: what is asked of the model."""
    space: OneOrMore | None = None
    """A search space's name or file, for tunes; chosen by the model where it is left out."""
    preset: Text | None = None
    """What remeasure and compare launch, where it is not the baseline's winner."""
    context: int | None = Field(default=None, gt=0)
    """Tokens of context for all slots together, in place of the workload's."""
    parallel: int | None = Field(default=None, gt=0)
    """Requests side by side, in place of the workload's."""
    objective: Literal["request_s", "pp", "tg", "ttft"] | None = None
    """What a tune makes best."""
    require: list[Annotated[str, _checked(parse_requirement)]] | None = None
    """Limits that a tune's winner must keep: `tg>=20`."""
    kv_floor: Text | None = None
    """The narrowest KV cache type that a tune considers."""
    budget: Duration | None = None
    """Time for the measuring: 90s, 30m, 2h; an hour for a tune and 20 minutes for the others where
    it is left out."""
    max_launches: int | None = Field(default=None, gt=0)
    """Launches of a tune's baseline, boundary and search together."""
    rounds: int | None = Field(default=None, ge=1, le=100)
    """Launches of each setting by remeasure and compare."""
    time_out: Duration | None = None
    """When an entry is ended, whatever it does; half as long again as its budget, and ten
    minutes, where it is left out."""
    neighbours: bool | None = None
    """Whether remeasure also launches one layer more and one less in host memory."""
    boundary: bool | None = None
    """Whether the fit boundary of the winner's layout is proven by launches, too."""
    thresholds: ThresholdsFile | None = None
    """From which change on a metric counts."""
    devices: dict[str, float | str] | None = None
    """Devices by name, in order, and of each how much may be used: MiB, or 11GiB."""
    rpc: str | None = None
    """Remote devices: HOST:PORT,..."""
    set: dict[str, Value] | None = None
    """Parameters that are fixed in a tune."""
    env: dict[str, Value] | None = None
    """Variables for every launch."""
    wrapper: str | None = None
    """Words before the program: numactl -N 0."""
    args: list[str] | None = None
    """Words for every launch, as after `--`."""
    answers: bool | None = None
    """Whether answers are compared; switch it off for a model of random weights."""
    seed: int | None = None
    """The seed of a tune's search and of the order of launches."""
    missing: Literal["skip", "fail"] | None = None
    """What an entry is whose model, runtime or device is not there; fail where it is left out."""


class EntryFile(TaskFile):
    """One entry of a suite."""

    name: Annotated[
        str,
        Field(max_length=80, json_schema_extra={"pattern": _NAME}),
        AfterValidator(_named),
    ]
    """What reports and baselines call it: letters, digits and `._+@-`."""


class SuiteFile(_Strict):
    """A suite as written in YAML."""

    about: str = ""
    """One line for people."""
    budget: Duration | None = None
    """Time for all entries together, shared evenly where they want more; what one leaves over or
    does not want the others have."""
    baseline: str = ""
    """The baseline's file; `SUITE.baseline.json` beside the suite where it is left out."""
    defaults: TaskFile = TaskFile()
    """What entries leave out."""
    entries: list[EntryFile] = Field(min_length=1)
    """What is run, in this order."""


def suite_of(data: Any, path: Path) -> Suite:  # noqa: ANN401 - what a YAML file holds
    """The suite that a file's data describe; entries have their defaults and absolute paths.

    Raises:
        UsageError: it is faulty; every fault is told as `file:line: what`.
    """
    file = yaml_files.validate(data, SuiteFile, path)
    return _Reading(file, data, path).suite()


def check_suite(data: CommentedMap, path: Path) -> Suite:
    """Return the suite of a file's data, with everything checked that it names.

    Models and runtimes need not exist here.

    Raises:
        UsageError: it is faulty; every fault has the form `file:line: text`.
    """
    suite = suite_of(data, path)
    faults = [
        f"{path}:{line_in(data, ('entries', entry.place, key))}: entries.{entry.place}: "
        f"{key}: {text}"
        for entry in suite.entries
        for key, text in _entry_faults(entry)
    ]
    if faults:
        raise UsageError("\n".join(dict.fromkeys(faults)), _hint(path))
    return suite


def _entry_faults(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield the faults of what an entry names, each with its key."""
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
        try:
            check()
        except UsageError as error:
            yield key, error.message.splitlines()[0]
    known = load_parameter_types() if entry.pins else {}
    for name in entry.pins:
        if name not in known:
            question = did_you_mean(name, known)
            yield "set", f"no runtime has a parameter '{name}' {question}".strip()


class _Reading:
    """Makes entries of a file, and collects what is wrong with them."""

    def __init__(self, file: SuiteFile, data: CommentedMap, path: Path) -> None:
        self.file = file
        self.data = data
        self.path = path
        self.faults: list[str] = []

    def suite(self) -> Suite:
        entries: list[Entry] = []
        for index in range(len(self.file.entries)):
            entries += self._entries(index)
        self._refuse_doubles(entries)
        if self.faults:
            raise UsageError("\n".join(dict.fromkeys(self.faults)), _hint(self.path))
        name = safe_name(self.path.name.removesuffix(".yml").removesuffix(".yaml"))
        kept = self.file.baseline or f"{name}.baseline.json"
        return Suite(
            name=name,
            path=self.path,
            about=self.file.about,
            budget_s=parse_duration_s(self.file.budget) if self.file.budget else None,
            baseline=Path(self._resolved(kept, ("baseline",), always=True)),
            entries=tuple(entries),
        )

    def _entries(self, index: int) -> Iterator[Entry]:
        """The entries that one in the file stands for."""
        place = ("entries", index)
        given = self._merged(index)
        if given.get("model") is None:
            self._fault(place, "model: is missing, here and in the defaults")
            return
        varied = {key: given[key] for key in _VARIED if isinstance(given.get(key), list)}
        for values in itertools.product(*varied.values()):
            chosen = dict(zip(varied, values, strict=True))
            parts = [
                safe_name(Path(chosen[key]).name.removesuffix(".yaml"))
                for key in varied
                if len(varied[key]) > 1
            ]
            yield self._entry({**given, **chosen}, "+".join([given["name"], *parts]), place)

    def _merged(self, index: int) -> dict[str, Any]:
        """An entry with the defaults; settings in groups are merged one by one."""
        own = self.file.entries[index].model_dump(exclude_none=True)
        merged: dict[str, Any] = self.file.defaults.model_dump(exclude_none=True)
        for key, value in own.items():
            is_group = key in {"set", "env", "thresholds"} and key in merged
            merged[key] = {**merged[key], **value} if is_group else value
        return merged

    def _entry(self, given: dict[str, Any], name: str, place: tuple[str, int]) -> Entry:
        thresholds = given.pop("thresholds", {})
        given["require"] = tuple(given.get("require", ()))
        given["args"] = tuple(given.get("args", ()))
        given["devices"] = {k: str(v) for k, v in given.get("devices", {}).items()}
        given["env"] = {k: _text(v) for k, v in given.get("env", {}).items()}
        given["pins"] = {k: _text(v) for k, v in given.pop("set", {}).items()}
        for key in ("budget", "time_out"):
            given[f"{key}_s"] = parse_duration_s(given.pop(key)) if key in given else None
        if given["model"] != DEMO_MODEL:
            given["model"] = self._resolved(given["model"], (*place, "model"), always=True)
        for key in ("runtime", "against", "preset", "dialect", "workload", "space"):
            if given.get(key) is not None:
                given[key] = self._resolved(given[key], (*place, key))
        mode = given.get("mode", "tune")
        for key in ("preset", "against"):
            if mode == "tune" and getattr(self.file.entries[place[1]], key) is not None:
                self._fault((*place, key), f"{key}: a tune has no use for it")
        if mode == "compare" and "against" not in given:
            self._fault((*place, "mode"), "mode: compare needs `against`, the old runtime")
        return Entry(**{**given, "name": name, "place": place[1], "thresholds": thresholds})

    def _resolved(self, text: str, place: tuple[str | int, ...], *, always: bool = False) -> str:
        """A path as seen from the suite; names without a slash stay names unless `always`.

        A preset may also be a launch command, whose words stay as they are.
        """
        expanded = os.path.expandvars(text)
        unknown = _VARIABLE.search(expanded)
        if unknown:
            key = str(place[-1])
            self._fault(place, f"{key}: the variable {unknown[0]} is not set")
        path = Path(expanded).expanduser()
        is_name = "/" not in expanded and path.suffix not in {".yaml", ".yml"}
        beside = self.path.absolute().parent / path
        if place[-1] == "preset":
            is_name = len(expanded.split()) > 1 and not beside.is_file()
        if is_name and not always:
            return expanded
        return os.path.normpath(beside)

    def _refuse_doubles(self, entries: list[Entry]) -> None:
        seen: set[str] = set()
        for entry in entries:
            # Case does not tell files apart everywhere.
            if entry.name.lower() in seen:
                self._fault(
                    ("entries", entry.place, "name"), f"name: '{entry.name}' is there twice"
                )
            seen.add(entry.name.lower())

    def _fault(self, place: tuple[str | int, ...], what: str) -> None:
        line = line_in(self.data, place)
        self.faults.append(f"{self.path}:{line}: {'.'.join(map(str, place[:2]))}: {what}")


def line_in(data: CommentedMap, place: tuple[str | int, ...]) -> int:
    """The line of an entry's key, which may stand in the defaults."""
    if place[0] == "entries":
        _, index, *keys = place
        if keys and keys[0] not in data["entries"][index]:
            defaults = data.get("defaults") or {}
            if keys[0] in defaults:
                return yaml_files.line_of(data, ("defaults", *keys))
    return yaml_files.line_of(data, place)


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hint(path: Path) -> str:
    return f"`autofit check {path}` shows this again"
