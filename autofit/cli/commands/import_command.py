"""`autofit import`: a user's own launch command or preset, parsed as a baseline."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autofit.cli.options.paths import check_target, deliver
from autofit.cli.say import say
from autofit.errors import UsageError

if TYPE_CHECKING:
    from autofit.presets.preset_command import PresetCommand
    from autofit.presets.read_preset import ParsedPreset


@click.command("import")
@click.argument("given", nargs=-1, required=True, metavar="FILE|COMMAND")
@click.option(
    "--section", metavar="NAME", help="The section to read in a file with several servers."
)
@click.option(
    "-o", "--output", metavar="FILE", help="Write the command to a script, or to JSON (.json)."
)
@click.option("--runtime", metavar="PATH", help="The runtime for which the flags are read.")
@click.option("--dialect", metavar="NAME", help="The runtime's dialect.  [default: detected]")
@click.option("--json", "as_json", is_flag=True, help="Print the parsed command as JSON.")
def command(
    given: tuple[str, ...],
    section: str | None,
    output: str | None,
    runtime: str | None,
    dialect: str | None,
    *,
    as_json: bool,
) -> None:
    """Show how autofit reads your own launch command or preset, and what it leaves out.

    FILE is a shell script, a router preset (.ini), a llama-swap or compose file, a systemd unit,
    a file of variables, or a file that autofit has written. COMMAND is a command in quotes, or
    word by word after `--`. `tune --baseline` and `compare` accept the same FILE, and also a
    file written with -o.
    """
    from autofit.output.import_summary import import_document, import_lines, import_script
    from autofit.presets.read_preset import read_preset

    if output is not None:
        check_target(output)
    preset = read_preset(given[0] if len(given) == 1 else shlex.join(given), section=section)
    found = _parse(preset, runtime, dialect)
    document = json.dumps(import_document(found), indent=2)
    if as_json:
        click.echo(document)
    elif output != "-":
        say("\n".join(import_lines(found, output)))
    if output is None or (output == "-" and as_json):
        return
    is_json = Path(output).suffix == ".json"
    deliver(document if is_json else import_script(found), output, is_program=not is_json)
    if output != "-":
        say(f"wrote {output}", err=True)


def _parse(preset: ParsedPreset, path: str | None, dialect: str | None) -> PresetCommand:
    """Parse a command with its own runtime, or with another runtime if its own is missing."""
    from autofit.presets.preset_command import find_preset_runtime, parse_preset_command
    from autofit.runtime.discovery.find_runtime import find_runtime, make_offline_runtime

    is_missing = False
    try:
        runtime, notices = find_preset_runtime(preset, path, dialect)
    except UsageError as error:
        is_missing = True
        if path is not None:
            raise
        try:
            runtime = find_runtime(None, dialect)
        except UsageError:
            runtime = make_offline_runtime(dialect or "llama_server")
        notices = (f"{error.message}; reading its flags as those of {runtime.name}",)
    found = parse_preset_command(preset, runtime, is_other_build=is_missing)
    return found.with_notices(*notices)
