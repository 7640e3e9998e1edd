"""Search space and workload files: their schema, and reading them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from autofit import definition
from autofit.errors import UsageError
from autofit.search.space import Axis, Constraint, Space
from autofit.trial.candidate import ParamValue
from autofit.trial.workload import Request, Workload

LAYOUTS = ("balanced", "capacity", "first_device", "single")

# `cores` and simple sums of it: a space cannot know the machine it will run on.
_CORES = re.compile(r"^cores(?:\s*([-/])\s*(\d+))?$")
_CONSTRAINT = re.compile(r"^\s*(\S+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*$")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AxisFile(_Strict):
    """One parameter of a space file."""

    values: list[bool | int | float | str] = Field(min_length=1)
    sets: list[str] = []
    about: str = ""


class SpaceFile(_Strict):
    """A search space as written in YAML."""

    about: str = ""
    suits: Literal["moe", "dense", "any"] = "any"
    layouts: list[str] = []
    parameters: dict[str, AxisFile] = {}
    constraints: list[str] = []

    @field_validator("layouts")
    @classmethod
    def _known_layouts(cls, layouts: list[str]) -> list[str]:
        unknown = sorted(set(layouts) - set(LAYOUTS))
        if unknown:
            raise ValueError(f"unknown layout {', '.join(unknown)}; known: {', '.join(LAYOUTS)}")
        return layouts

    @field_validator("constraints")
    @classmethod
    def _readable(cls, constraints: list[str]) -> list[str]:
        for text in constraints:
            if not _CONSTRAINT.match(text):
                raise ValueError(f"'{text}' is not 'parameter comparison value'")
        return constraints

    @model_validator(mode="after")
    def _constraints_name_parameters(self) -> SpaceFile:
        for text in self.constraints:
            found = _CONSTRAINT.match(text)
            if found and found[1] not in self.parameters:
                raise ValueError(f"constraint '{text}': no parameter '{found[1]}' in this space")
        return self


class RequestFile(_Strict):
    """One kind of request in a workload file."""

    prompt_tokens: int = Field(gt=0)
    predicted_tokens: int = Field(gt=0)
    weight: float = Field(default=1.0, gt=0)


class WorkloadFile(_Strict):
    """A workload as written in YAML."""

    name: str = ""
    about: str = ""
    context: int = Field(gt=0)
    parallel: int = Field(default=1, gt=0)
    requests: list[RequestFile] = Field(min_length=1)
    text: str = ""

    @model_validator(mode="after")
    def _fits_context(self) -> WorkloadFile:
        slot = self.context // self.parallel
        for index, request in enumerate(self.requests):
            if request.prompt_tokens + request.predicted_tokens > slot:
                raise ValueError(
                    f"request {index} needs {request.prompt_tokens + request.predicted_tokens} "
                    f"tokens, a slot has {slot} (context / parallel)"
                )
        return self


def cores_value(value: ParamValue, cores: int) -> ParamValue:
    """A value with `cores`, `cores - 1` or `cores / 2` put into numbers, never below 1."""
    found = _CORES.match(value) if isinstance(value, str) else None
    if not found:
        return value
    amount = int(found[2] or 0)
    if found[1] == "/":
        return max(1, cores // max(1, amount))
    return max(1, cores - amount)


def read_space(name: str, *, cores: int) -> Space:
    """A search space by name or path, for a machine with that many physical cores.

    Raises:
        UsageError: there is none, or it is faulty.
    """
    path = definition.find("space", name)
    file = definition.load(path, SpaceFile)
    axes = []
    for parameter, axis in file.parameters.items():
        values = dict.fromkeys(cores_value(value, cores) for value in axis.values)
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
    """A workload by name or path, with the user's own context and slots where given.

    Raises:
        UsageError: there is none, it is faulty, or its requests exceed the context asked.
    """
    path = definition.find("workload", name)
    file = definition.load(path, WorkloadFile)
    changes: Mapping[str, int | None] = {"context": context, "parallel": parallel}
    data = {**file.model_dump(), **{k: v for k, v in changes.items() if v is not None}}
    if context is not None or parallel is not None:
        data["requests"] = _cut_requests(data)
    try:
        file = WorkloadFile.model_validate(data)
    except ValueError as error:
        raise UsageError(
            f"{path}: {error}", "a larger --context or fewer --parallel slots"
        ) from error
    return Workload(
        name=file.name or path.stem,
        context=file.context,
        parallel=file.parallel,
        requests=tuple(
            Request(r.prompt_tokens, r.predicted_tokens, r.weight) for r in file.requests
        ),
        text=_resolved(file.text, path),
    )


def _cut_requests(data: dict[str, object]) -> list[dict[str, float]]:
    """Requests shortened to what a slot of the user's own context holds, in proportion."""
    slot = int(str(data["context"])) // int(str(data["parallel"]))
    cut = []
    for request in data["requests"]:  # type: ignore[attr-defined]
        needed = request["prompt_tokens"] + request["predicted_tokens"]
        if needed + 64 <= slot:
            cut.append(request)
            continue
        share = max(slot - 64, 2) / needed
        cut.append(
            {
                **request,
                "prompt_tokens": max(1, int(request["prompt_tokens"] * share)),
                "predicted_tokens": max(1, int(request["predicted_tokens"] * share)),
            }
        )
    return cut


def _resolved(text: str, path: Path) -> str:
    """A text's path, relative ones taken from the workload file's folder."""
    if not text:
        return ""
    given = Path(text).expanduser()
    return str(given if given.is_absolute() else path.parent / given)
