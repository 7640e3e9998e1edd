"""Files of search spaces and workloads: their schema, and functions that read them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.config import JsonDict

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Axis, Constraint, Space
from autofit.trial.candidate import ParamValue
from autofit.trial.parameter_groups import LARGEST_VALUE, PLACEMENT_PARAMS
from autofit.trial.workload import Request, Workload

LAYOUTS = ("balanced", "capacity", "first_device", "single", "tensor")
_LAYOUT_SCHEMA: JsonDict = {"enum": list(LAYOUTS)}

# The physical cores of the fastest kind, less or divided by a number; or all physical cores.
_CORES = re.compile(r"^(?:cores(?:\s*([-/])\s*(\d+))?|(all cores))$")
_CONSTRAINT = re.compile(r"^\s*(\S+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*$")
# Tokens of a slot that shortened requests leave free.
_SPARE_TOKENS = 64
# The memory of a search grows with the square of the values.
_MOST_VALUES = 256
_MOST_AXES = 64
_MOST_REQUESTS = 64
_LARGEST_WEIGHT = 1e9
_CONSTANT = re.compile(r"^([-+]?\d+(\.\d+)?|'.*'|\".*\")$")


Count = Annotated[int, Field(gt=0, le=LARGEST_VALUE)]


class _Strict(BaseModel):
    # Editors show the docstring of a key.
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _readable_value(value: ParamValue) -> ParamValue:
    if isinstance(value, str) and "cores" in value and not _CORES.match(value):
        raise ValueError(f"'{value}' must be a number, cores, cores - N, cores / N or all cores")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


class AxisFile(_Strict):
    """One parameter of a space file."""

    values: list[Annotated[bool | int | float | str, AfterValidator(_readable_value)]] = Field(
        min_length=1, max_length=_MOST_VALUES
    )
    """The values to try; the search starts with the first.

    `cores` is the number of physical cores of the fastest kind here; `cores - N` and `cores / N`
    work too. `all cores` counts efficiency cores, too."""
    sets: list[str] = []
    """The parameters that get the value, if the name is only a label."""
    about: str = ""
    """One line for people."""


def _known_layout(name: str) -> str:
    if name not in LAYOUTS:
        raise ValueError(f"unknown layout {name}; known: {', '.join(LAYOUTS)}")
    return name


def _independent(parameters: dict[str, AxisFile], info: ValidationInfo) -> dict[str, AxisFile]:
    by_param: dict[str, str] = {}
    layouts = info.data.get("layouts")
    for name, axis in parameters.items():
        if name in (LAYOUT_AXIS, HOST_LAYERS_AXIS):
            raise ValueError(f"'{name}' is searched by `layouts`; it is not a parameter")
        for param in axis.sets or [name]:
            if param in by_param:
                raise ValueError(f"'{name}' and '{by_param[param]}' both set {param}")
            by_param[param] = name
            if layouts and param in PLACEMENT_PARAMS:
                raise ValueError(f"'{name}' places layers, which `layouts` does here")
    return parameters


def _readable_constraint(text: str, info: ValidationInfo) -> str:
    found = _CONSTRAINT.match(text)
    if found is None:
        raise ValueError(f"'{text}' is not 'parameter comparison value'")
    parameters = info.data.get("parameters")
    if parameters is not None:  # None if they are faulty
        if found[1] not in parameters:
            raise ValueError(f"'{text}': no parameter '{found[1]}' in this space")
        if found[3] not in parameters and not _CONSTANT.match(found[3]):
            raise ValueError(
                f"'{text}': '{found[3]}' is neither a parameter of this space nor a number "
                "nor quoted text"
            )
    return text


class SpaceFile(_Strict):
    """The content of a search space file."""

    about: str = ""
    """One line for people."""
    suits: Literal["moe", "dense", "any"] = "any"
    """The models for which it is made."""
    layouts: list[
        Annotated[str, AfterValidator(_known_layout), Field(json_schema_extra=_LAYOUT_SCHEMA)]
    ] = Field(default=[], max_length=len(LAYOUTS))
    """Ways to place layers on devices; without any, host layers are not searched."""
    parameters: Annotated[
        dict[str, AxisFile], Field(max_length=_MOST_AXES), AfterValidator(_independent)
    ] = {}
    """Settings by llama.cpp's long name with underscores; ignored if the runtime lacks one."""
    constraints: list[Annotated[str, AfterValidator(_readable_constraint)]] = Field(
        default=[], max_length=_MOST_AXES
    )
    """`parameter comparison value`: `ubatch <= batch`."""


class RequestFile(_Strict):
    """One kind of request in a workload file."""

    prompt_tokens: Count
    """Tokens of the prompt."""
    predicted_tokens: Count
    """Tokens that are generated."""
    weight: float = Field(default=1.0, gt=0, le=_LARGEST_WEIGHT)
    """Share of all requests; seconds per request are the weighted mean."""


def _fits_slot(request: RequestFile, info: ValidationInfo) -> RequestFile:
    context, parallel = info.data.get("context"), info.data.get("parallel")
    if context is None or parallel is None:  # None if they are faulty
        return request
    slot, needed = context // parallel, request.prompt_tokens + request.predicted_tokens
    if needed > slot:
        raise ValueError(f"needs {needed} tokens, but a slot has {slot} (context / parallel)")
    return request


class WorkloadFile(_Strict):
    """The content of a workload file."""

    name: str = ""
    """For people; the default is the name of the file."""
    about: str = ""
    """One line for people."""
    context: Count
    """Tokens of context for all slots together."""
    parallel: Count = 1
    """Number of parallel slots; each has context / parallel tokens."""
    requests: list[Annotated[RequestFile, AfterValidator(_fits_slot)]] = Field(
        min_length=1, max_length=_MOST_REQUESTS
    )
    """Kinds of request; a prompt and its generation must fit into a slot."""
    text: str = ""
    """A plain text file that prompts are cut from, relative to this file."""


def cores_value(value: ParamValue, cores: int, all_cores: int | None = None) -> ParamValue:
    """Convert `cores`, `cores - N`, `cores / N` or `all cores` to a number of at least 1."""
    found = _CORES.match(value) if isinstance(value, str) else None
    if not found:
        return value
    if found[3]:
        return max(1, all_cores or cores)
    amount = int(found[2] or 0)
    if found[1] == "/":
        return max(1, cores // max(1, amount))
    return max(1, cores - amount)


def read_space(name: str, *, cores: int, all_cores: int | None = None) -> Space:
    """Return a search space by name or path, for a machine with that many physical cores.

    `cores` are those of the fastest kind. `all_cores` are more on a machine with efficiency
    cores.

    Raises:
        UsageError: there is no such file, or it is faulty.
    """
    path = yaml_files.find("space", name)
    file = yaml_files.load(path, SpaceFile)
    axes = []
    for parameter, axis in file.parameters.items():
        values = dict.fromkeys(cores_value(value, cores, all_cores) for value in axis.values)
        axes.append(Axis(parameter, tuple(values), tuple(axis.sets)))
    return Space(
        name=path.stem,
        suits=file.suits,
        axes=tuple(axes),
        layouts=tuple(file.layouts),
        constraints=tuple(_constraint(text) for text in file.constraints),
    )


def _constraint(text: str) -> Constraint:
    found = _CONSTRAINT.match(text)
    if found is None:  # the schema has checked it
        raise ValueError(text)
    return Constraint(found[1], found[2], found[3])


def read_workload(
    name: str, *, context: int | None = None, parallel: int | None = None
) -> Workload:
    """Return a workload by name or path, with another context or number of slots if given.

    Raises:
        UsageError: there is no such file, it is faulty, or its requests exceed the context.
    """
    path = yaml_files.find("workload", name)
    file = yaml_files.load(path, WorkloadFile)
    given = {"context": context, "parallel": parallel}
    changes = {option: value for option, value in given.items() if value is not None}
    if changes:
        data = {**file.model_dump(), **changes}
        slot = data["context"] // data["parallel"]
        data["requests"] = [_cut_request(request, slot) for request in data["requests"]]
        try:
            file = WorkloadFile.model_validate(data)
        except ValidationError as error:
            faults = dict.fromkeys(f["msg"].removeprefix("Value error, ") for f in error.errors())
            options = " with ".join(f"--{option} {value}" for option, value in changes.items())
            raise UsageError(
                f"{options}: workload {path.stem} {'; '.join(faults)}",
                "give a larger --context or fewer --parallel slots",
            ) from error
    return Workload(
        name=file.name or path.stem,
        context=file.context,
        parallel=file.parallel,
        requests=tuple(
            Request(r.prompt_tokens, r.predicted_tokens, r.weight) for r in file.requests
        ),
        text=_resolve(file.text, path),
    )


def _cut_request(request: dict[str, Any], slot: int) -> dict[str, Any]:
    """Return a request, shortened in proportion if it does not fit into a slot of the context."""
    tokens = ("prompt_tokens", "predicted_tokens")
    needed = sum(request[name] for name in tokens)
    if needed + _SPARE_TOKENS <= slot:
        return request
    share = max(slot - _SPARE_TOKENS, 2) / needed
    return {**request, **{name: max(1, int(request[name] * share)) for name in tokens}}


def _resolve(text: str, path: Path) -> str:
    """Return the path of a text; a relative one starts at the folder of the workload file."""
    if not text:
        return ""
    given = Path(text).expanduser()
    return str(given if given.is_absolute() else path.parent / given)
