"""JSON Schemas of the YAML files that people write, so that editors complete them.

They lie beside the files they describe; `autofit check --schema KIND` prints one. A schema is
looser than `autofit check`: what takes more than one key to judge is left to the latter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter

from autofit.runtime.dialect.dialect import Dialect
from autofit.search.space_file import SpaceFile, WorkloadFile
from autofit.sweep.suite_file import SuiteFile

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Where each schema lies, from the repository's root.
PLACES = {
    "space": Path("search_spaces/space.schema.json"),
    "workload": Path("search_spaces/workloads/workload.schema.json"),
    "dialect": Path("runners/dialect.schema.json"),
    "suite": Path("search_spaces/suites/suite.schema.json"),
}
_FILES: dict[str, type[BaseModel]] = {
    "space": SpaceFile,
    "workload": WorkloadFile,
    "suite": SuiteFile,
}


def schema_of(kind: str) -> dict[str, Any]:
    """The JSON Schema of a kind of file, one of `PLACES`."""
    if kind == "dialect":
        return {"$schema": DRAFT, **_partial(_dialect())}
    return {"$schema": DRAFT, **_FILES[kind].model_json_schema()}


def _dialect() -> dict[str, Any]:
    schema = TypeAdapter(Dialect).json_schema()
    for implied in ("name", "path"):  # taken from the file's name
        del schema["properties"][implied]
    return schema


def _partial(schema: Any) -> Any:  # noqa: ANN401 - JSON can be anything
    """A schema without what a file that extends another need not say.

    Such a file may leave out any key, and takes a key of the other file away by a null. YAML's
    numbers stand for text too, as they do when a dialect is read.
    """
    if isinstance(schema, list):
        return [_partial(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "string" and "enum" not in schema:
        return {**schema, "type": ["string", "number"]}
    loose = {key: _partial(part) for key, part in schema.items() if key != "required"}
    if "properties" in loose:
        loose["properties"] = {key: _or_null(part) for key, part in loose["properties"].items()}
    if isinstance(loose.get("additionalProperties"), dict):
        loose["additionalProperties"] = _or_null(loose["additionalProperties"])
    return loose


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}
