"""Checks and JSON Schemas of the YAML files that people write.

Each schema is shipped in the folder of the files that it describes, for editors. It finds fewer
faults than the check, which also compares keys with each other.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter
from ruamel.yaml.comments import CommentedMap

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.runtime.dialect.dialect import Dialect
from autofit.runtime.dialect.dialect_file import load_dialect, load_parameter_types
from autofit.search.space_file import SpaceFile, WorkloadFile
from autofit.sweep.suite import SuiteFile, read_suite
from autofit.trial.parameter_groups import LARGEST_VALUE, find_value_fault

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# The shipped file of each schema, relative to the repository.
SCHEMA_PATHS = {
    "space": Path("search_spaces/space.schema.json"),
    "workload": Path("search_spaces/workloads/workload.schema.json"),
    "dialect": Path("runners/dialect.schema.json"),
    "suite": Path("search_spaces/suites/suite.schema.json"),
}
_MODELS: dict[str, type[BaseModel]] = {
    "space": SpaceFile,
    "workload": WorkloadFile,
    "suite": SuiteFile,
}
# If a file's keys match two kinds equally well, its folder decides.
_FOLDERS = {
    "runners": "dialect",
    "workloads": "workload",
    "search_spaces": "search space",
    "suites": "suite",
}
_HAS_LINE = re.compile(r"^.+?:\d+: ")


@dataclasses.dataclass(frozen=True, slots=True)
class CheckedFile:
    """A checked file: its kind, `file` if unknown, and its faults as lines `file:line: text`."""

    kind: str
    faults: str = ""


def check_file(path: Path) -> CheckedFile:
    """Check a search space, dialect, workload or suite. The file's keys decide its kind."""
    kind = "file"
    try:
        data = _read(path)
        kind = _find_kind(data, path)
        if kind == "dialect":
            load_dialect(str(path.absolute()))
        elif kind == "suite":
            read_suite(data, path)
        elif kind == "workload":
            _check_workload(data, path)
        else:
            _check_space(data, path)
    except UsageError as error:
        lines = error.message.replace(os.path.realpath(path), str(path)).splitlines()
        faults = (line if _HAS_LINE.match(line) else f"{path}:1: {line}" for line in lines)
        return CheckedFile(kind, "\n".join(faults))
    return CheckedFile(kind)


def _read(path: Path) -> CommentedMap:
    data = yaml_files.read_yaml(path)
    if not isinstance(data, CommentedMap):
        fault = "the file is empty" if data is None else "the file must be a mapping of options"
        raise UsageError(f"{path}:1: {fault}")
    return data


def _find_kind(data: CommentedMap, path: Path) -> str:
    """Return the kind of which the file has the most keys."""
    keys = {
        "search space": set(SpaceFile.model_fields),
        "workload": set(WorkloadFile.model_fields),
        "dialect": {field.name for field in dataclasses.fields(Dialect)} - {"name", "path"},
        "suite": set(SuiteFile.model_fields),
    }
    hits = {kind: len(known & set(data)) for kind, known in keys.items()}
    folder = _FOLDERS.get(path.absolute().parent.name, "")
    kind = max(hits, key=lambda kind: (hits[kind], kind == folder))
    if not hits[kind] and kind != folder:
        raise UsageError(f"{path}:1: no key belongs to a {', '.join(keys)}")
    return kind


def _check_workload(data: CommentedMap, path: Path) -> None:
    workload = yaml_files.validate(data, WorkloadFile, path)
    text = path.parent / Path(workload.text).expanduser()
    if workload.text and not text.is_file():
        line = yaml_files.line_of(data, ("text",))
        raise UsageError(f"{path}:{line}: text: there is no file {text}")


def _check_space(data: CommentedMap, path: Path) -> None:
    faults: list[str] = []
    try:
        yaml_files.validate(data, SpaceFile, path)
    except UsageError as error:
        faults += error.message.splitlines()
    parameters = data.get("parameters")
    if isinstance(parameters, dict):
        types = load_parameter_types()
        for name, axis in parameters.items():
            faults += _axis_faults(str(name), axis, types, data, path)
    if faults:
        raise UsageError(yaml_files.list_faults(faults))


def _axis_faults(
    name: str, axis: object, types: dict[str, str], data: CommentedMap, path: Path
) -> Iterator[str]:  # fmt: skip
    """Yield a fault for each parameter that no runtime has, and each value that none accepts.

    A tune skips parameters that its runtime lacks, so it would not report a misspelt name.
    """
    place = ("parameters", name)
    sets = axis.get("sets") if isinstance(axis, dict) else None
    params = [str(param) for param in sets] if isinstance(sets, list) and sets else [name]
    line = yaml_files.line_of(data, place)
    for param in params:
        if param not in types:
            yield f"{path}:{line}: parameters.{name}: no runtime has a parameter '{param}'"
    values = axis.get("values") if isinstance(axis, dict) else None
    for index, value in enumerate(values if isinstance(values, list) else []):
        # Texts such as `cores` stand for numbers; the schema checks them.
        if not isinstance(value, int | float):
            continue
        faults = (
            find_value_fault(param, value, type_=types.get(param, ""), block_count=LARGEST_VALUE)
            for param in params
        )
        line = yaml_files.line_of(data, (*place, "values", index))
        for fault in dict.fromkeys(faults):
            if fault:
                yield f"{path}:{line}: parameters.{name}.values.{index}: {value}: {fault}"


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file, one of `SCHEMA_PATHS`."""
    if kind == "dialect":
        return {"$schema": DRAFT, **_make_optional(_dialect_schema())}
    return {"$schema": DRAFT, **_MODELS[kind].model_json_schema()}


def _dialect_schema() -> dict[str, Any]:
    schema = TypeAdapter(Dialect).json_schema()
    for implied in ("name", "path"):  # taken from the file's name
        del schema["properties"][implied]
    return schema


def _make_optional(schema: Any) -> Any:  # noqa: ANN401 - JSON can be anything
    """Return the schema for a file that extends another.

    Such a file may leave out any key, and removes a key of the other file with a null. A number
    may be used for a text, as when a dialect is read.
    """
    if isinstance(schema, list):
        return [_make_optional(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and "enum" not in schema:
        return {**schema, "type": ["string", "number"]}
    loose = {key: _make_optional(part) for key, part in schema.items() if key != "required"}
    if "properties" in loose:
        loose["properties"] = {key: _or_null(part) for key, part in loose["properties"].items()}
    if isinstance(loose.get("additionalProperties"), dict):
        loose["additionalProperties"] = _or_null(loose["additionalProperties"])
    return loose


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
