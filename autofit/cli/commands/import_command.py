"""`autofit import`: what a user's own launch command or preset says, as a baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.cli.options.output_file import check_target, deliver
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.output.import_summary import Imported
    from autofit.presets.read_preset import ReadPreset
    from autofit.runtime.discovery.found_runtime import Runtime


@click.command("import")
@click.argument("given", nargs=-1, required=True, metavar="FILE|COMMAND")
@click.option("--section", metavar="NAME", help="The part that is meant of a file with several.")
@click.option("-o", "--output", metavar="FILE", help="Write it as a script, or as JSON (.json).")
@click.option("--runtime", metavar="PATH", help="The runtime whose flags it has.")
@click.option("--dialect", metavar="NAME", help="The runtime's dialect; found out by itself.")
@click.option("--json", "as_json", is_flag=True, help="Print what was read as JSON.")
def command(
    given: tuple[str, ...],
    section: str | None,
    output: str | None,
    runtime: str | None,
    dialect: str | None,
    *,
    as_json: bool,
) -> None:
    """Read your own launch command or preset: what autofit makes of it, and what it leaves out.

    FILE is a shell script, a router preset (.ini), a llama-swap or compose file, a systemd unit,
    a file of variables, or one that autofit has written. A COMMAND comes in quotes, or word by
    word after `--`. What -o writes is what `tune --baseline` and `compare` take; they also take
    the FILE itself.
    """
    import shlex  # noqa: PLC0415 - --help is quick

    from autofit.output.import_summary import (  # noqa: PLC0415
        import_document,
        import_lines,
        import_script,
    )
    from autofit.presets.read_preset import read_preset  # noqa: PLC0415

    if output is not None:
        check_target(output)
    preset = read_preset(given[0] if len(given) == 1 else shlex.join(given), section=section)
    found = _imported(preset, runtime, dialect)
    document = json.dumps(import_document(found), indent=2)
    if as_json:
        click.echo(document)
    elif output != "-":
        click.echo("\n".join(import_lines(found, output)))
    if output is None or (output == "-" and as_json):
        return
    is_json = Path(output).suffix == ".json"
    deliver(document if is_json else import_script(found), output, is_program=not is_json)
    if output != "-":
        click.echo(f"wrote {output}", err=True)


def _imported(preset: ReadPreset, path: str | None, dialect: str | None) -> Imported:
    from autofit.cli.options.own_command import taken_apart  # noqa: PLC0415 - --help is quick
    from autofit.output.import_summary import Imported  # noqa: PLC0415

    runtime, notices = _runtime(preset, path, dialect)
    own = taken_apart(preset, runtime).noting(*notices)
    return Imported(
        preset=preset,
        runtime=own.runtime,
        command=own.command,
        wrapper=own.wrapper,
        model=own.model,
        notices=own.notices,
    )


def _runtime(
    preset: ReadPreset, path: str | None, dialect: str | None
) -> tuple[Runtime, tuple[str, ...]]:
    """The runtime that starts it; where that is not here, another that knows its flags."""
    from autofit.cli.options.own_command import runtime_of  # noqa: PLC0415 - --help is quick
    from autofit.runtime.discovery.find_runtime import (  # noqa: PLC0415
        find_runtime,
        make_offline_runtime,
    )

    try:
        return runtime_of(preset, path, dialect)
    except UsageError as error:
        if path is not None:
            raise
        reason = error.message
    try:
        found = find_runtime(None, dialect)
    except UsageError:
        found = make_offline_runtime(dialect or "llama_server")
    return found, (f"{reason}; its flags are read as those of {found.name}",)
