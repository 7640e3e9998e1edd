"""`autofit export`: write a study's winner as a file from which a server can be started."""

from __future__ import annotations

from pathlib import Path

import click

from autofit.cli.options.arguments import complete_studies
from autofit.cli.options.completion import complete_words
from autofit.cli.options.count_option import CountOption
from autofit.cli.options.paths import check_target
from autofit.errors import UsageError

# A copy of the formats' names, because importing the formats would make --help slow.
_NAMES = "ini|llama-swap|shell|systemd|compose|env|json|args|bat|powershell"


def _check_format(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    del context, parameter
    from autofit.presets.formats.registry import FORMATS

    if value in FORMATS:
        return str(value)
    message = f"unknown format '{value}'" if value else "--format is missing"
    raise UsageError(message, f"use one of: {', '.join(FORMATS)}")


@click.command("export")
@click.argument(
    "sources",
    nargs=-1,
    required=True,
    metavar="STUDY|PLAN...",
    shell_complete=complete_studies,
)
@click.option(
    "--format",
    "format_name",
    metavar=_NAMES,
    callback=_check_format,
    shell_complete=complete_words(lambda: _NAMES.split("|")),
    help="The kind of file.",
)
@click.option(
    "-o", "--output", default="-", metavar="FILE", help="The file to write; - is stdout."
)
@click.option("--trial", type=int, metavar="N", help="Export launch N instead of the winner.")
@click.option(
    "--unproven",
    is_flag=True,
    help="Export the best so far of a tune that has no winner. The file says what is not proven.",
)
@click.option("--name", metavar="NAME", help="The model's name in the file.")
@click.option(
    "--port",
    cls=CountOption,
    type=click.IntRange(1, 65535),
    help="The port to listen on.  [default: 8080]",
)
@click.option("--image", metavar="IMAGE", help="The container image, for compose.")
@click.option(
    "--runtime", metavar="PATH", help="The runtime to start instead of the one that was tuned."
)
@click.option("--merge", is_flag=True, help="Update the model's part of FILE, and keep the rest.")
@click.option("--verify", is_flag=True, help="Start a server from the preset before writing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    *,
    sources: tuple[str, ...],
    format_name: str,
    output: str,
    trial: int | None,
    unproven: bool,
    name: str | None,
    port: int | None,
    image: str | None,
    runtime: str | None,
    merge: bool,
    verify: bool,
    as_json: bool,
) -> int:
    """Write the winner of STUDY as a file from which a server can be started.

    With ini, llama-swap and compose, several studies go into one file. PLAN is a file with the
    output of `autofit plan MODEL --json`, or - for stdin.

    ini is for llama-server's router (--models-preset), shell is a script, env a file of
    LLAMA_ARG_* variables, args one command line, and json has everything for programs.

    \b
    Examples:
      autofit export STUDY --format systemd -o llama.service --verify
      autofit export STUDY --format llama-swap -o config.yaml --merge
    """  # noqa: D301 - click's mark for lines to keep
    from autofit.cli.export_run import run_export

    if len(sources) > 1 and (trial is not None or name is not None):
        raise UsageError(
            "--trial and --name allow only one study", "export the studies one by one"
        )
    if merge and output == "-":
        raise UsageError("--merge needs the file to merge into", "use -o FILE to name that file")
    check_target(output)
    target = Path(output).expanduser()
    if merge and target.exists() and not target.is_file():
        raise UsageError(f"{output} is not a regular file, so --merge cannot read it",
                         "leave --merge out")  # fmt: skip
    return run_export(
        sources,
        format_name,
        output,
        trial=trial,
        unproven=unproven,
        runtime_path=runtime,
        changes={"model_name": name, "port": port, "image": image},
        merges=merge,
        verifies=verify,
        as_json=as_json,
    )
