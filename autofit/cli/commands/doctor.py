"""`autofit doctor`: show what this machine has for a tune, and how to get what is missing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from autofit.errors import NothingFitsError

if TYPE_CHECKING:
    from autofit.doctor.examine import Examination, ExaminedRuntime
    from autofit.doctor.findings import Finding

_COLOURS = {"fatal": "red", "warning": "yellow", "note": "cyan"}


@click.command("doctor")
@click.option(
    "--runtime", metavar="PATH", help="Examine only the runtime with this file or folder."
)
@click.option("--rpc", default="", metavar="HOST:PORT,...", help="Remote devices.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(runtime: str | None, rpc: str, *, as_json: bool) -> int:
    """Show devices, drivers and runtimes, and what is missing with the command that repairs it.

    The exit code is 0 if a tune would work, else 3.
    """
    from autofit.doctor.examine import examine

    examination = examine(runtime, rpc)
    if as_json:
        click.echo(json.dumps(examination.to_dict()))
    else:
        # Headings are bold, and foreign text in the lines is escaped where it is put in.
        for line in _lines(examination):
            click.echo(line)
    return 0 if examination.would_work else NothingFitsError.exit_code


def _fold(line: str) -> str:
    """Return a line folded to the terminal's width, or as it is if stdout is no terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    first = line[: len(line) - len(line.lstrip())]
    return click.wrap_text(line.lstrip(), width, first, first + "  ")


def _lines(examination: Examination) -> Iterator[str]:
    yield click.style("runtimes", bold=True)
    for index, runtime in enumerate(examination.runtimes):
        yield from _runtime_lines(runtime, is_chosen=index == 0)
    if not examination.runtimes:
        yield "  none"
    yield from _device_lines(examination)
    yield from _host_lines(examination)
    yield from _knowledge_lines(examination)
    if examination.findings:
        yield click.style("findings", bold=True)
    for finding in examination.findings:
        yield from _finding_lines(finding)
    verdict = "a tune would work here"
    if not examination.would_work:
        verdict = "a tune would NOT work here"
    yield click.style(verdict, bold=True)


def _runtime_lines(examined: ExaminedRuntime, *, is_chosen: bool) -> Iterator[str]:
    from autofit.text_format import one_line

    found = examined.runtime
    if found is None:
        yield f"  {one_line(examined.program)}: unusable: {one_line(examined.fault)}"
        return
    yield f"  {one_line(found.name)}{' (a tune uses this one)' if is_chosen else ''}"
    yield f"    {one_line(' '.join(found.command))}"
    if found.version.text:
        yield f"    {one_line(found.version.text.splitlines()[0])}"
    yield _fold(f"    settings: {one_line(', '.join(found.parameters))}")
    yield _fold(f"    KV types: {one_line(', '.join(found.kv_types))}")
    yield f"    companion programs: {one_line(', '.join(found.companions)) or 'none'}"


def _device_lines(examination: Examination) -> Iterator[str]:
    from autofit.text_format import mib, one_line

    yield click.style("devices", bold=True)
    for device in examination.devices or ():
        shared = ", shared with the host" if device.is_unified else ""
        link = "" if device.link_gb_s is None else f", link {device.link_gb_s:g} GB/s"
        yield _fold(
            f"  {one_line(device.name)}: {one_line(device.description)}, "
            f"{mib(device.usable_mib)} free of {mib(device.total_mib)}{shared}{link}"
        )
    if examination.devices is None:
        yield "  not listed"
    elif not examination.devices:
        yield "  none: a tune would use the CPU alone"
    if examination.drivers:
        yield f"  drivers: {one_line(', '.join(examination.drivers))}"


def _host_lines(examination: Examination) -> Iterator[str]:
    from autofit.text_format import mib

    host = examination.host
    if host is None:
        return
    cores = host.cores
    yield click.style("host", bold=True)
    kinds = f" ({cores.performance} fast)" if cores.performance < cores.physical else ""
    nodes = f", {cores.nodes} memory nodes" if cores.nodes > 1 else ""
    yield (
        f"  {cores.physical} cores{kinds}, {cores.usable} of {cores.logical} threads usable{nodes}"
    )
    yield f"  {mib(host.memory_available_mib)} of {mib(host.memory_total_mib)} memory available"


def _knowledge_lines(examination: Examination) -> Iterator[str]:
    from autofit.text_format import one_line, params_line, shown_path

    known = examination.knowledge
    if known is None or not (known.studies or known.notices):
        return
    yield click.style("machine knowledge", bold=True)
    for text in known.notices:
        yield f"  {one_line(text)}"
    if not known.studies:
        return
    launches = sum(len(study.launches) for study in known.studies)
    yield f"  {launches} launches in {len(known.studies)} studies, {len(known.builds)} builds"
    yield _fold(f"  models: {one_line(', '.join(known.models))}")
    yield _fold(f"  fastest in most studies: {one_line(params_line(known.best_settings))}")
    for path in known.files:
        yield f"  {shown_path(path)} (delete it to forget, copy it to an identical machine)"


def _finding_lines(finding: Finding) -> Iterator[str]:
    from autofit.text_format import one_line

    level = click.style(finding.level, fg=_COLOURS[finding.level])
    yield _fold(f"  {level}: {one_line(finding.message)}")
    if finding.fix:
        yield f"    {one_line(finding.fix)}"
