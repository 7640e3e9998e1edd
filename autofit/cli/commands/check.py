"""`autofit check`: validate the YAML files that people write, or a preset on this machine."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from autofit.cli.say import report, say
from autofit.errors import RegressionError, UsageError

_YAML_SUFFIXES = (".yaml", ".yml")


def _print_schema(ctx: click.Context, _option: click.Parameter, kind: str | None) -> None:
    """Print a schema and exit, without a check."""
    if kind is None or ctx.resilient_parsing:
        return
    from autofit.cli.yaml_check import schema_of

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
    help="Print the JSON Schema of a kind of file, for use in an editor, and exit.",
)
@click.option(
    "--against-machine",
    is_flag=True,
    help="FILE is a preset: check that it still fits on this machine. Exit code 5 if it does not.",
)
@click.option(
    "--runtime", metavar="PATH", help="The runtime of the preset; only for --against-machine."
)
@click.option("--section", metavar="NAME", help="The section of the preset's file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with --against-machine.")
def command(
    files: tuple[Path, ...],
    runtime: str | None,
    section: str | None,
    *,
    against_machine: bool,
    as_json: bool,
) -> int:
    """Validate search spaces, dialects, workloads and suites; print each fault with its line.

    The keys of a file decide its kind. stdout has a line for each file with its kind. With
    --against-machine, a preset is compared with what this machine has now: free memory, the
    runtime's flags, and the model file.
    """
    if against_machine:
        if len(files) != 1:
            raise UsageError(
                "--against-machine checks only one preset", "check the presets one after another"
            )
        return _check_preset(str(files[0]), section, runtime, as_json=as_json)
    if runtime is not None or section is not None or as_json:
        raise UsageError("--runtime, --section and --json need --against-machine")
    _check_files(files)
    return 0


def _check_files(paths: tuple[Path, ...]) -> None:
    """Print the kind of each file, or raise UsageError with all faults of all files."""
    from autofit.cli.yaml_check import check_file

    faults, has_unknown = [], False
    for path in paths:
        checked = check_file(path)
        is_unknown = checked.faults != "" and checked.kind == "file"
        if is_unknown and path.suffix.lower() not in _YAML_SUFFIXES and path.is_file():
            has_unknown = True
            faults.append(f"{path}:1: not a search space, workload, dialect or suite")
            continue
        say(f"{path}: a {'faulty' if checked.faults else 'good'} {checked.kind}")
        if checked.faults:
            faults.append(checked.faults)
            has_unknown = has_unknown or checked.kind == "file"
    if faults:
        hint = "the READMEs and files in runners/ and search_spaces/ explain the keys"
        if has_unknown:
            preset = shlex.quote(str(paths[0])) if len(paths) == 1 else "PRESET"
            hint = f"is it a preset? Then `autofit check {preset} --against-machine`; {hint}"
        raise UsageError("\n".join(faults), hint)


def _check_preset(given: str, section: str | None, runtime: str | None, *, as_json: bool) -> int:
    """Check a preset against this machine, print the result, and return the exit code."""
    from autofit.presets.verify.machine_check import check_machine
    from autofit.text_format import mib, one_line

    check = check_machine(given, section=section, runtime=runtime)
    if as_json:
        click.echo(json.dumps(check.to_dict()))
    else:
        for need in check.needs:
            needed = f"{mib(need.needed_mib)} ({need.source})"
            say(f"{need.name}: needs {needed}, {mib(need.free_mib)} free")
        say(f"{check.preset.label}: {'does not fit now' if check.reasons else 'fits'}")
    for note in check.notes:
        say(f"notice: {one_line(note)}", err=True)
    for reason in check.reasons:
        report(RegressionError(one_line(reason.message), one_line(reason.hint)))
    return RegressionError.exit_code if check.reasons else 0
