"""`autofit doctor`: what this machine has for a tune, what is missing, and what mends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from autofit.doctor.examine import Examination, SeenRuntime
    from autofit.doctor.finding import Finding

_WOULD_NOT_WORK = 3
_COLOURS = {"fatal": "red", "warning": "yellow", "note": "cyan"}


@click.command("doctor")
@click.option("--runtime", metavar="PATH", help="Look at this runtime only: a file or folder.")
@click.option("--rpc", default="", metavar="HOST:PORT,...", help="Remote devices.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(context: click.Context, runtime: str | None, rpc: str, *, as_json: bool) -> None:
    """Show devices, drivers and runtimes, what is missing, and the command that mends it.

    Exit code 0 when a tune would work, else 3.
    """
    from autofit.doctor.examine import examine  # noqa: PLC0415 - heavy, and --help must be quick

    seen = examine(runtime, rpc)
    if as_json:
        click.echo(json.dumps(seen.to_dict()))
    else:
        for line in _lines(seen):
            click.echo(line)
    context.exit(0 if seen.would_work else _WOULD_NOT_WORK)


def _lines(seen: Examination) -> Iterator[str]:
    yield click.style("runtimes", bold=True)
    for index, each in enumerate(seen.runtimes):
        yield from _runtime_lines(each, is_chosen=index == 0)
    if not seen.runtimes:
        yield "  none"
    yield from _device_lines(seen)
    yield from _host_lines(seen)
    if seen.findings:
        yield click.style("findings", bold=True)
    for finding in seen.findings:
        yield from _finding_lines(finding)
    verdict = "a tune would work here" if seen.would_work else "a tune would NOT work here"
    yield click.style(verdict, bold=True)


def _runtime_lines(seen: SeenRuntime, *, is_chosen: bool) -> Iterator[str]:
    from autofit.text_format import one_line  # noqa: PLC0415

    found = seen.runtime
    if found is None:
        yield f"  {one_line(seen.program)}: cannot be used: {one_line(seen.fault)}"
        return
    yield f"  {found.name}{', which a tune takes' if is_chosen else ''}"
    yield f"    {one_line(' '.join(found.command))}"
    if found.version.text:
        yield f"    {one_line(found.version.text.splitlines()[0])}"
    yield f"    settings: {', '.join(found.parameters)}"
    yield f"    KV types: {', '.join(found.kv_types)}"
    yield f"    companions: {', '.join(found.companions) or 'none'}"


def _device_lines(seen: Examination) -> Iterator[str]:
    from autofit.text_format import mib, one_line  # noqa: PLC0415

    yield click.style("devices", bold=True)
    for device in seen.devices or ():
        shared = ", shared with the host" if device.is_unified else ""
        yield (
            f"  {one_line(device.name)}: {one_line(device.description)}, "
            f"{mib(device.usable_mib)} free of {mib(device.total_mib)}{shared}"
        )
    if seen.devices is None:
        yield "  not asked"
    elif not seen.devices:
        yield "  none: a tune would use the CPU alone"
    if seen.drivers:
        yield f"  drivers: {', '.join(seen.drivers)}"


def _host_lines(seen: Examination) -> Iterator[str]:
    from autofit.text_format import mib  # noqa: PLC0415

    if seen.host is None:
        return
    cores = seen.host.cores
    yield click.style("host", bold=True)
    yield f"  {cores.physical} cores, {cores.usable} of {cores.logical} threads usable"
    available, total = seen.host.memory_available_mib, seen.host.memory_total_mib
    yield f"  {mib(available)} of {mib(total)} memory available"


def _finding_lines(finding: Finding) -> Iterator[str]:
    from autofit.text_format import one_line  # noqa: PLC0415

    level = click.style(finding.level, fg=_COLOURS[finding.level])
    yield f"  {level}: {one_line(finding.message)}"
    if finding.mend:
        yield f"    {one_line(finding.mend)}"
