"""`autofit sweep`: what a CI job runs every night, compared with a kept baseline."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.errors import AutofitError, RegressionError, UsageError

if TYPE_CHECKING:
    from autofit.cli.sweep_run import Sweep

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@click.command("sweep")
@click.argument("suite")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="What earlier nights measured; the suite says which file when this does not.",
)
@click.option("--update-baseline", is_flag=True, help="Keep tonight in the baseline.")
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML.")
@click.option("--summary", metavar="FILE", help="Write a summary as Markdown.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this entry; repeat for several.")
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts of the entries.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the sweep is kept.")
@click.option("--resume", is_flag=True, help="Go on with the last such sweep.")
@click.option("--merge", is_flag=True, help="Measure nothing: judge what FOLDERS hold together.")
@click.option("--dry-run", is_flag=True, help="Print entries and commands, launch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(**given: Any) -> int:  # noqa: ANN401 - click's keyword arguments
    """Measure the entries of SUITE, a YAML file, and say what got worse since the baseline.

    Each entry is run by programs of its own, under its own time-out. What was measured is kept
    in results/sweeps/SUITE-DATE-N; a sweep that was stopped or killed goes on with --resume and
    repeats no launch. With --merge, FOLDERS are those of the shards.

    \b
    Exit codes: 0 nothing got worse, 1 the sweep itself failed, 2 usage or a faulty suite,
    4 another autofit measures here, 5 a regression, 130 interrupted.
    """  # noqa: D301 - click's mark for lines to keep
    as_json, is_dry = given.pop("as_json"), given.pop("dry_run")
    if [given["junit"], given["summary"], "-" if as_json else None].count("-") > 1:
        raise UsageError("stdout takes one report", "write the others to files")
    sweep = _sweep(**given, has_document=as_json)
    if is_dry:
        from autofit.cli.commands.tune import print_commands  # noqa: PLC0415 - heavy, --help is quick

        print_commands(sweep.commands(), as_json=as_json)
        return 0
    document = sweep.execute()
    if as_json:
        click.echo(json.dumps(document, ensure_ascii=False))
    return _code(document)


def _sweep(  # noqa: PLR0917 - click passes them by name
    suite: str,
    folders: tuple[Path, ...],
    baseline: Path | None,
    update_baseline: bool,  # noqa: FBT001
    junit: str | None,
    summary: str | None,
    only: tuple[str, ...],
    shard: str | None,
    folder: Path | None,
    resume: bool,  # noqa: FBT001
    merge: bool,  # noqa: FBT001
    has_document: bool,  # noqa: FBT001
) -> Sweep:
    from autofit.cli.sweep_output import Outputs  # noqa: PLC0415 - heavy
    from autofit.cli.sweep_run import Sweep  # noqa: PLC0415

    if merge and not folders:
        raise UsageError("--merge needs the folders of the shards", "after the suite's name")
    if merge and (resume or shard or folder):
        raise UsageError("--merge measures nothing", "leave out --resume, --shard and --folder")
    if folders and not merge:
        raise UsageError(f"unexpected {folders[0]}", "folders of shards come with --merge")
    return Sweep.of(
        suite,
        only=only,
        shard=_read_shard(shard) if shard else None,
        baseline=baseline,
        outputs=Outputs(junit, summary, update_baseline, has_document),
        folder=folder,
        resume=resume,
        merged=folders,
        words=sys.argv[1:],
    )


def _read_shard(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text.strip())
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard '{text}' is not I/N", "--shard 1/3 is the first of three")
    return number, count


def _code(document: dict[str, Any]) -> int:
    """The exit code that the verdicts ask for, with what it means told on stderr."""
    worse, broken = document["regressions"], document["broken"]
    if worse:
        click.echo(f"autofit: worse than before: {', '.join(worse)}", err=True)
    if broken:
        click.echo(f"autofit: not measured: {', '.join(broken)}", err=True)
        again = "--resume tries these again"
        if document["folder"] is None:
            again = "measure them with --resume in their shard, and merge again"
        click.echo(f"hint: the report says why; {again}", err=True)
    if worse:
        return RegressionError.exit_code
    return AutofitError.exit_code if broken else 0
