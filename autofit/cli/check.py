"""`autofit check`: validate the YAML files that people write."""

from __future__ import annotations

from pathlib import Path

import click

from autofit.errors import UsageError


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def command(files: tuple[Path, ...]) -> None:
    """Validate search spaces, dialects and workloads; every fault with file and line."""
    faults = []
    for path in files:
        try:
            kind = _check(path)
        except UsageError as error:
            faults.append(error.message)
        else:
            click.echo(f"{path}: a good {kind}")
    if faults:
        raise UsageError("\n".join(faults), "fix these lines; runners/ and search_spaces/ explain")


def _check(path: Path) -> str:
    from autofit import definition  # noqa: PLC0415 - heavy, and --help must be quick
    from autofit.runtime.dialect_file import load_dialect  # noqa: PLC0415
    from autofit.search.space_file import SpaceFile, WorkloadFile  # noqa: PLC0415

    data = definition.read_yaml(path)
    if not isinstance(data, dict):
        raise UsageError(f"{path}:1: not a mapping of options")
    if "requests" in data:
        definition.validate(data, WorkloadFile, path)
        return "workload"
    if "program" in data or "extends" in data or "launch" in data:
        load_dialect(str(path.absolute()))
        return "dialect"
    definition.validate(data, SpaceFile, path)
    return "search space"
