"""`autofit show`: a study on the terminal, and one launch to repeat by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.errors import UsageError
from autofit.output.text.conclusion import (
    BOUNDARY_HEAD,
    CLIFF_HEAD,
    FRONT_HEAD,
    METRIC_HEAD,
    Answer,
    answer,
)
from autofit.output.text.spending_table import SPENT_HEAD, SPENT_TITLE
from autofit.output.text.trial_row import TrialRow, command_line, grouped_notes, trial_rows
from autofit.presets.preset_heading import workload_line
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.text_format import mib, one_line

TRIAL_HEAD = ("#", "phase", "layout", "outcome", "s/request", "pp/s", "tg/s", "time", "params")
_LEFT = {"phase", "layout", "outcome", "params"}


def print_study(study: Study, console: Console) -> None:
    """Print what a study is about, what it concluded, and all its trials."""
    rows, common = trial_rows(study.trials(), study.header.workload)
    skipped = len(study.skipped())
    _print_facts(console, header_facts(study.header))
    print_answer(answer(study.result, study.path), console)
    if rows:
        console.print()
        console.print(_trial_table(rows))
        if common:
            _print_facts(console, [("the same in all", common)])
    for row in rows:
        if not row.is_completed and row.evidence:
            console.print(Text(f"#{row.number} {row.outcome}: {row.evidence}", style="dim"))
    if skipped:
        candidates = "1 candidate was" if skipped == 1 else f"{skipped} candidates were"
        console.print(Text(f"{candidates} ruled out without a launch"))
    for notice in (*grouped_notes(rows), *study.notices):
        console.print(Text(f"notice: {one_line(notice)}"))


def print_answer(found: Answer, console: Console) -> None:
    """Print a conclusion: what was found, how sure that is, what it costs."""
    console.print()
    console.print(Text(found.headline, style="bold"))
    _print_facts(console, found.facts)
    if found.settings:
        settings = " ".join(f"{name}={value}" for name, value in found.settings)
        _print_facts(console, [("settings", settings)])
    for title, head, rows in (
        ("", METRIC_HEAD, found.metrics),
        ("fit boundary (host expert layers)", BOUNDARY_HEAD, found.boundary),
        ("cliffs", CLIFF_HEAD, found.cliffs),
        ("beaten by nothing in all of", FRONT_HEAD, found.front),
        (SPENT_TITLE, SPENT_HEAD, found.spent),
    ):
        if rows:
            console.print()
            console.print(_table(title, head, rows))
    for note in found.notes:
        console.print(Text(f"notice: {note}"))
    if found.command:
        console.print()
        console.print(Text("to start it, paste:", style="dim"))
        # Whole, for a terminal to break: what rich breaks cannot be pasted.
        console.print(Text(found.command), soft_wrap=True)


def launch_command(study: Study, number: int, *, port: int, unset: Iterable[str] = ()) -> str:
    """The command that starts by hand what a trial started.

    `unset` are variables of the reader's environment that autofit would have taken away.

    Raises:
        UsageError: there is no such trial.
    """
    trials = study.trials()
    for trial in trials:
        if trial.number == number:
            return command_line(trial.argv, trial.env, port=port, unset=unset)
    last = trials[-1].number if trials else 0
    raise UsageError(
        f"the study has no trial {number}",
        f"its trials go up to {last}; `autofit show {study.path}` lists them",
    )


def header_facts(header: StudyHeader) -> list[tuple[str, str]]:
    """What a study is about, as names and texts."""
    environment = header.environment
    devices = ", ".join(environment.devices) or "none"
    machine = f"{environment.cpu}, {environment.cpu_count} CPUs, {mib(environment.memory_mib)}"
    facts = [
        ("model", f"{header.model_name} ({header.model_path})"),
        ("runtime", f"{header.dialect}, build {environment.build} ({header.runtime_path})"),
        ("workload", workload_line(header.workload)),
        ("machine", machine),
        ("devices", f"{devices}; driver {environment.driver or 'none'}"),
    ]
    return [(name, one_line(text)) for name, text in facts]


def launch_cells(row: TrialRow) -> tuple[str, ...]:
    """A launch as cells under `TRIAL_HEAD`."""
    return (
        *(str(row.number), row.phase, row.layout, row.outcome, row.request_s),
        *(row.pp_per_s, row.tg_per_s, row.seconds, row.params),
    )


def _print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in facts:
        grid.add_row(Text(name, style="dim"), Text(text))
    if grid.row_count:
        console.print(grid)


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _trial_table(rows: Sequence[TrialRow]) -> Table:
    table = Table(title="launches", title_justify="left", box=None, pad_edge=False)
    for name in TRIAL_HEAD:
        table.add_column(name, justify="left" if name in _LEFT else "right", overflow="fold")
    for row in rows:
        style = "" if row.is_completed else "yellow"
        table.add_row(*(Text(cell) for cell in launch_cells(row)), style=style)
    return table
