"""`autofit sweep`: measure a suite, as a CI job does every night, and report regressions."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.completion import complete_names
from autofit.cli.options.paths import check_target, deliver
from autofit.cli.options.shared_options import wait_option
from autofit.cli.say import say
from autofit.errors import AutofitError, RegressionError, UsageError

if TYPE_CHECKING:
    from autofit.sweep.entry_record import EntryRecord
    from autofit.sweep.night_folder import NightFolder
    from autofit.sweep.sweep_plan import SweepPlan
    from autofit.sweep.verdict import EntryVerdict

_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})")


@click.command("sweep")
@click.argument("suite", shell_complete=complete_names("suite"))
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    help="The file with measurements of earlier nights. Default: the one in the suite.",
)
@click.option("--update-baseline", is_flag=True, help="Add this night to the baseline.")
@click.option("--junit", metavar="FILE", help="Write the verdicts as JUnit XML.")
@click.option("--summary", metavar="FILE", help="Write a summary as Markdown.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this entry; repeat for several.")
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts of the entries.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder for the measurements. Default: results/sweeps/SUITE-DATE-N.",
)
@click.option("--resume", is_flag=True, help="Continue the latest sweep of this suite.")
@click.option(
    "--storage",
    metavar="URL",
    help="Divide the entries among several runners through this storage: "
    "postgresql+psycopg://USER@HOST/DATABASE, sqlite:///FILE, or FILE.journal in a shared "
    "folder.",
)
@click.option(
    "--study-name",
    metavar="NAME",
    help="The name of the shared night. Default: SUITE, its digest, and the date.",
)
@wait_option
@click.option(
    "--merge",
    is_flag=True,
    help="Measure nothing: judge the shards in FOLDERS, or the night in --storage.",
)
@click.option("--dry-run", is_flag=True, help="Print entries and commands, and launch nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def command(
    *,
    suite: str,
    folders: tuple[Path, ...],
    baseline: Path | None,
    update_baseline: bool,
    junit: str | None,
    summary: str | None,
    only: tuple[str, ...],
    shard: str | None,
    folder: Path | None,
    resume: bool,
    storage: str | None,
    study_name: str | None,
    wait_s: float | None,
    merge: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Measure the entries of SUITE, a YAML file, and report what got worse than the baseline.

    Each entry runs in processes of its own, with its own time limit. The measurements are saved
    in results/sweeps/SUITE-DATE-N. A sweep that was stopped or killed continues with --resume
    and repeats no launch. With --merge, FOLDERS are the folders of the shards.

    With --storage, any number of runners, each on its own machine, take entries from one night
    until none is left. The entry of a runner that died is taken over once. The last runner judges
    the night and writes the reports; the others exit with 0.

    \b
    Exit codes: 0 nothing got worse, 1 the sweep itself failed, 2 usage or a faulty suite,
    4 another autofit measures here, 5 a regression, 130 interrupted.
    """  # noqa: D301 - click's mark for lines to keep
    from autofit.cli.commands.tune import print_commands
    from autofit.cli.machine_ready import ready_machine
    from autofit.sweep.shared_night import SharedStudy
    from autofit.sweep.sweep_plan import SweepPlan
    from autofit.sweep.sweep_run import Sweep, read_shards

    _refuse_contradictions(folders, merge=merge, measures=bool(resume or shard or folder))
    _refuse_shared_parts(storage, study_name, folders, is_part=bool(shard or only), merge=merge)
    targets = (junit, summary, "-" if as_json else None)
    if targets.count("-") > 1:
        raise UsageError("only one report can go to stdout", "write the other reports to files")
    for target in (junit, summary):
        if target is not None:
            check_target(target)
    plan = SweepPlan.read(
        suite,
        only=only,
        shard=_parse_shard(shard) if shard else None,
        baseline=baseline,
        updates_baseline=update_baseline,
    )
    if dry_run:
        print_commands(plan.commands(), as_json=as_json)
        return 0
    shared = SharedStudy(storage, study_name) if storage else None

    def conclude(records: Sequence[EntryRecord], night: NightFolder | None = None) -> int:
        verdicts = plan.judge(records)
        document = plan.document(records, verdicts, night)
        _print_verdicts(
            verdicts, plan, night, updates_baseline=update_baseline, to_stderr="-" in targets
        )
        _write_reports(
            verdicts, document, night, sweep=plan.suite.name, junit=junit, summary=summary
        )
        if update_baseline:
            plan.update_baseline(records)
            say(f"updated {plan.baseline_path}", err=True)
        if as_json:
            click.echo(json.dumps(document))
        return _report_code(document)

    if merge:
        return conclude(shared.records(plan, _report) if shared else read_shards(plan, folders))
    with ready_machine(wait_s, f"of the sweep {plan.suite.name}"):
        sweep = Sweep(
            plan=plan,
            folder=folder,
            resume=resume,
            locks_machine=wait_s is None,
            report=_report,
            command=sys.argv[1:],
            shared=shared,
        )
        code = sweep.run(conclude)
    if code is None and as_json:  # another runner judges
        click.echo(json.dumps(plan.document([], [], None)))
    return code or 0


def _report(line: str) -> None:
    say(line, err=True)


def _refuse_contradictions(folders: Sequence[Path], *, merge: bool, measures: bool) -> None:
    if merge and measures:
        raise UsageError("--merge measures nothing", "leave out --resume, --shard and --folder")
    if folders and not merge:
        raise UsageError(
            f"unexpected {folders[0]}",
            "leave it out, or use --merge to judge the shards in FOLDERS",
        )


def _refuse_shared_parts(
    storage: str | None,
    name: str | None,
    folders: Sequence[Path],
    *,
    is_part: bool,
    merge: bool,
) -> None:
    if merge and bool(folders) == bool(storage):
        raise UsageError(
            "--merge needs the folders of the shards, or --storage",
            "give the folders after the suite's name, or the storage of the night",
        )
    if name is not None and storage is None:
        raise UsageError("--study-name is only for a night in --storage", "add --storage URL")
    if storage is not None and is_part:
        raise UsageError(
            "--storage shares the whole suite",
            "leave out --shard and --only; `needs` in the suite"
            " says which machine may measure an entry",
        )


def _parse_shard(text: str) -> tuple[int, int]:
    found = _SHARD.fullmatch(text.strip())
    number, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(
            f"--shard '{text}' must have the form I/N",
            "for example --shard 1/3 for the first of three shards",
        )
    return number, count


def _print_verdicts(
    verdicts: Sequence[EntryVerdict],
    plan: SweepPlan,
    night: NightFolder | None,
    *,
    updates_baseline: bool,
    to_stderr: bool,
) -> None:
    from autofit.output.sweep_report import print_sweep_result
    from autofit.output.text.console import make_console
    from autofit.text_format import shown_path

    baseline = shown_path(plan.baseline_path)
    if not plan.baseline.entries and not updates_baseline:
        baseline += " does not exist yet; --update-baseline creates it"
    links = [("baseline", baseline)]
    if night is not None:
        links.append(("summary", shown_path(night.path / "summary.md")))
    console = make_console(sys.stderr if to_stderr else sys.stdout)
    print_sweep_result(verdicts, console, sweep=plan.suite.name, links=links)


def _write_reports(
    verdicts: Sequence[EntryVerdict],
    document: Mapping[str, Any],
    night: NightFolder | None,
    *,
    sweep: str,
    junit: str | None,
    summary: str | None,
) -> None:
    """Write all reports to their targets, and to the sweep's folder if it has one."""
    from autofit.output.junit import junit_xml
    from autofit.output.sweep_report import markdown_summary

    xml = junit_xml(verdicts, sweep=sweep, hostname=platform.node() or "localhost")
    markdown = markdown_summary(verdicts, sweep=sweep)
    if night is not None:
        night.write("junit.xml", xml)
        night.write("summary.md", markdown)
        night.write("verdicts.json", json.dumps(document, indent=1) + "\n")
    for text, target in ((xml, junit), (markdown, summary)):
        if target is not None:
            deliver(text, target)


def _report_code(document: dict[str, Any]) -> int:
    """Return the exit code for the verdicts, and print its reason on stderr."""
    worse, broken = document["regressions"], document["broken"]
    if worse:
        say(f"autofit: worse than before: {', '.join(worse)}", err=True)
    if broken:
        say(f"autofit: not measured: {', '.join(broken)}", err=True)
        again = "--resume measures them again"
        if document["folder"] is None:
            again = "measure them with --resume in their shard, and merge again"
        say(f"hint: the report gives the reason; {again}", err=True)
    if worse:
        return RegressionError.exit_code
    return AutofitError.exit_code if broken else 0
