"""`autofit check`: validate the YAML files that people write."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.errors import UsageError
from autofit.units import MIB

if TYPE_CHECKING:
    from ruamel.yaml.comments import CommentedMap

    from autofit.search.space_file import WorkloadFile

# Where a file lies decides when its keys fit two kinds equally well.
_FOLDERS = {
    "runners": "dialect",
    "workloads": "workload",
    "search_spaces": "search space",
    "suites": "suite",
}
_PLACED = re.compile(r"^.+?:\d+: ")
_LARGEST_BYTES = MIB


def _print_schema(ctx: click.Context, _option: click.Parameter, kind: str | None) -> None:
    """Print a schema instead of checking, as --help prints help."""
    if kind is None or ctx.resilient_parsing:
        return
    from autofit.cli.file_schema import schema_of  # noqa: PLC0415 - heavy, --help is quick

    click.echo(json.dumps(schema_of(kind), indent=2))
    ctx.exit()


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--schema",
    type=click.Choice(("space", "workload", "dialect", "suite")),
    callback=_print_schema,
    is_eager=True,
    expose_value=False,
    help="Print the JSON Schema of a kind of file, for an editor, and exit.",
)
@click.option(
    "--against-machine",
    is_flag=True,
    help="FILE is a preset: does it still fit here? Exit 5 when not.",
)
@click.option("--runtime", metavar="PATH", help="What starts the preset, with --against-machine.")
@click.option("--section", metavar="NAME", help="The part of the preset's file that is meant.")
@click.option("--json", "as_json", is_flag=True, help="JSON, with --against-machine.")
def command(
    files: tuple[Path, ...],
    runtime: str | None,
    section: str | None,
    *,
    against_machine: bool,
    as_json: bool,
) -> int:
    """Validate search spaces, dialects, workloads and suites; every fault with file and line.

    The kind of a file is told by its keys. stdout has a line for each file with its kind. With
    --against-machine a preset is held against what this machine has now: free memory, the
    runtime's flags, and the model file.
    """
    if against_machine:
        return _against_machine(files, section, runtime, as_json=as_json)
    if runtime is not None or section is not None or as_json:
        raise UsageError("--runtime, --section and --json go with --against-machine")
    faults, is_unknown = [], False
    for path in files:
        kind = "file"
        try:
            data = _read(path)
            kind = _kind(data, path)
            _check(kind, data, path)
        except UsageError as error:
            faults.append(_placed(error.message, path))
            click.echo(f"{path}: a faulty {kind}")
            is_unknown = is_unknown or kind == "file"
        else:
            click.echo(f"{path}: a good {kind}")
    if faults:
        preset = "; a preset is checked with --against-machine" if is_unknown else ""
        raise UsageError(
            "\n".join(faults),
            f"the READMEs and files in runners/ and search_spaces/ explain{preset}",
        )
    return 0


def _against_machine(
    files: tuple[Path, ...], section: str | None, runtime: str | None, *, as_json: bool
) -> int:
    from autofit.cli.machine_check import check_machine, tell  # noqa: PLC0415 - --help is quick

    if len(files) != 1:
        raise UsageError("--against-machine takes one preset", "check each by itself")
    found = check_machine(str(files[0]), section=section, runtime=runtime)
    return tell(found, as_json=as_json)


def _placed(message: str, path: Path) -> str:
    """The faults of a file, each as `file:line: what`, with the path as it was given."""
    lines = message.replace(os.path.realpath(path), str(path)).splitlines()
    return "\n".join(line if _PLACED.match(line) else f"{path}:1: {line}" for line in lines)


def _read(path: Path) -> CommentedMap:
    from ruamel.yaml.comments import CommentedMap  # noqa: PLC0415 - heavy, --help is quick

    from autofit import yaml_files  # noqa: PLC0415

    require_small_file(path)
    data = yaml_files.read_yaml(path)
    if not isinstance(data, CommentedMap):
        what = "the file is empty" if data is None else "not a mapping of options"
        raise UsageError(f"{path}:1: {what}")
    return data


def _check(kind: str, data: CommentedMap, path: Path) -> None:
    """Raise the faults of a file of a kind."""
    from autofit import yaml_files  # noqa: PLC0415
    from autofit.runtime.dialect.dialect_file import load_dialect  # noqa: PLC0415
    from autofit.search.space_file import SpaceFile, WorkloadFile  # noqa: PLC0415

    if kind == "dialect":
        load_dialect(str(path.absolute()))
    elif kind == "suite":
        from autofit.cli.suite_check import checked_suite  # noqa: PLC0415

        checked_suite(data, path, known_parameters)
    elif kind == "workload":
        _check_text(yaml_files.validate(data, WorkloadFile, path), data, path)
    else:
        faults = [*_unknown_parameters(data, path), *_impossible_values(data, path)]
        try:
            yaml_files.validate(data, SpaceFile, path)
        except UsageError as error:
            faults = [*error.message.splitlines(), *faults]
        if faults:
            raise UsageError("\n".join(faults))


def require_small_file(path: Path) -> None:
    """Let neither a folder nor a model file pass for something that a person wrote."""
    try:
        status = path.stat()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{path}:1: a folder; give the files in it")
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path}:1: not a regular file")
    if status.st_size > _LARGEST_BYTES:
        raise UsageError(f"{path}:1: {status.st_size / MIB:.0f} MiB is too large for YAML")


def _kind(data: CommentedMap, path: Path) -> str:
    """What a file is, by its keys; where they fit several kinds equally well, by its folder."""
    from autofit.runtime.dialect.dialect import Dialect  # noqa: PLC0415
    from autofit.search.space_file import SpaceFile, WorkloadFile  # noqa: PLC0415
    from autofit.sweep.suite_file import SuiteFile  # noqa: PLC0415

    dialect = {field.name for field in dataclasses.fields(Dialect)} - {"name", "path"}
    known = {
        "search space": set(SpaceFile.model_fields),
        "workload": set(WorkloadFile.model_fields),
        "dialect": dialect,
        "suite": set(SuiteFile.model_fields),
    }
    hits = {kind: len(keys & set(data)) for kind, keys in known.items()}
    folder = _FOLDERS.get(path.absolute().parent.name, "")
    kind = max(hits, key=lambda kind: (hits[kind], kind == folder))
    if not hits[kind] and kind != folder:
        raise UsageError(f"{path}:1: its keys are none of a {', '.join(known)}")
    return kind


def _check_text(workload: WorkloadFile, data: CommentedMap, path: Path) -> None:
    """See that the text of a workload is there."""
    from autofit import yaml_files  # noqa: PLC0415

    text = path.parent / Path(workload.text).expanduser()
    if workload.text and not text.is_file():
        line = yaml_files.line_of(data, ("text",))
        raise UsageError(f"{path}:{line}: text: there is no file {text}")


def _unknown_parameters(data: CommentedMap, path: Path) -> list[str]:
    """The parameters that no runtime has, each with its line.

    A tune leaves out what its runtime lacks, so a misspelt name would not be noticed there.
    """
    from autofit import yaml_files  # noqa: PLC0415

    parameters = data.get("parameters")
    if not isinstance(parameters, dict):
        return []
    known = known_parameters()
    faults = []
    for name, axis in parameters.items():
        sets = axis.get("sets") if isinstance(axis, dict) else None
        asked = sets if isinstance(sets, list) and sets else [name]
        line = yaml_files.line_of(data, ("parameters", name))
        faults += [
            f"{path}:{line}: parameters.{name}: no runtime has a parameter '{param}'"
            for param in asked
            if str(param) not in known
        ]
    return faults


def _impossible_values(data: CommentedMap, path: Path) -> list[str]:
    """The values that no runtime can take, each with its line."""
    from autofit import yaml_files  # noqa: PLC0415
    from autofit.session.pin_value import LARGEST, value_fault  # noqa: PLC0415

    parameters = data.get("parameters")
    types = _parameter_types()
    faults = []
    for name, axis in (parameters if isinstance(parameters, dict) else {}).items():
        values = axis.get("values") if isinstance(axis, dict) else None
        sets = axis.get("sets") if isinstance(axis, dict) else None
        params = sets if isinstance(sets, list) and sets else [name]
        for index, value in enumerate(values if isinstance(values, list) else []):
            # Words may stand for a number, such as `cores`; whether they do is told elsewhere.
            if not isinstance(value, int | float):
                continue
            line = yaml_files.line_of(data, ("parameters", name, "values", index))
            found = (
                value_fault(str(p), value, type_=types.get(str(p), ""), block_count=LARGEST)
                for p in params
            )
            faults += [
                f"{path}:{line}: parameters.{name}.values.{index}: {value}: {fault}"
                for fault in dict.fromkeys(found)
                if fault
            ]
    return faults


def known_parameters() -> set[str]:
    """The parameters of every dialect that can be found and is not faulty itself."""
    return set(_parameter_types())


def _parameter_types() -> dict[str, str]:
    from autofit.runtime.dialect.dialect_file import (  # noqa: PLC0415
        find_dialect_files,
        load_dialect,
    )

    types: dict[str, str] = {}
    for path in find_dialect_files().values():
        with suppress(UsageError):
            found = load_dialect(str(path)).parameters
            types |= {name: parameter.type for name, parameter in found.items()}
    return types
