"""A study on the terminal: its conclusion, its launches, both sides of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.text import Text

from autofit.errors import UsageError
from autofit.output.text.best_so_far_text import study_conclusion
from autofit.output.text.conclusion import Conclusion, skipped_text
from autofit.output.text.console import print_facts, print_table
from autofit.output.text.event_line import launch_line
from autofit.output.text.result_table import comparison_table
from autofit.output.text.trial_row import (
    OWN_PARAMS,
    TrialRow,
    command_line,
    grouped_notes,
    trial_rows,
)
from autofit.presets.preset_heading import workload_line
from autofit.study.study_folder import Study
from autofit.study.study_header import StudyHeader
from autofit.text_format import mib, one_line
from autofit.trial.metric import Metric
from autofit.trial.trial import Trial

TRIAL_HEAD = ("#", "phase", "layout", "outcome", "s/request", "pp/s", "tg/s", "time", "params")
# On a narrower terminal a launch is a line.
_TABLE_COLUMNS = 120
_NUMERIC = ("#", "s/request", "pp/s", "tg/s", "time")


def print_study(study: Study, console: Console) -> None:
    """Print the conclusion of a study, then its task and all its trials."""
    trials = study.trials()
    rows, common = trial_rows(trials, study.header.workload)
    skipped = len(study.skipped())
    print_conclusion(study_conclusion(study), console)
    if "ratios" in (study.result or {}):  # a comparison of two sides
        console.print()
        sides = comparison_table(study.result or {})
        print_table(console, "", sides.head, sides.rows)
    console.print()
    print_facts(console, header_facts(study.header))
    if rows and console.width < _TABLE_COLUMNS:
        console.print(Text("\nlaunches; each with what differs from the first one with settings"))
        for line, row in zip(_launch_lines(study, trials, console.width), rows, strict=True):
            console.print(Text(line, style="" if row.is_completed else "yellow"))
    elif rows:
        console.print()
        styles = ["" if row.is_completed else "yellow" for row in rows]
        cells = map(launch_cells, rows)
        print_table(console, "launches", TRIAL_HEAD, cells, right=_NUMERIC, styles=styles)
        if common:
            print_facts(console, [("the same in all", common)])
    for row in rows:
        if not row.is_completed and row.evidence:
            console.print(
                Text(one_line(f"#{row.number} {row.outcome}: {row.evidence}"), style="dim")
            )
    if skipped:
        console.print(Text(skipped_text(skipped)))
    for notice in (*grouped_notes(rows), *study.notices):
        console.print(Text(f"notice: {one_line(notice)}"))


def _launch_lines(study: Study, trials: Sequence[Trial], columns: int) -> Iterator[str]:
    """Yield each launch as one line."""
    header = study.header
    metric: Metric = header.objective  # type: ignore[assignment]
    reference = next((t for t in trials if not OWN_PARAMS.issuperset(t.candidate.params)), None)
    first: dict[str, Trial] = {}
    for trial in trials:
        best = None if trial is reference else reference
        yield launch_line(trial, header.workload, metric, best=best, first=first, columns=columns)
        first.setdefault(trial.candidate.key, trial)


def print_conclusion(found: Conclusion, console: Console) -> None:
    """Print a conclusion with all its tables, and the command that starts the winner."""
    console.print()
    console.print(Text(found.headline, style="bold"))
    for warning in found.warnings:
        console.print(Text(warning, style="yellow"))
    print_facts(console, (*found.facts, *found.expert_facts, *found.effort))
    if found.settings:
        settings = " ".join(f"{name}={value}" for name, value in found.settings)
        print_facts(console, [("settings", settings)])
    for title, head, rows in (found.metrics._replace(title=""), *found.tables, found.spent):
        if rows:
            console.print()
            print_table(console, title, head, rows)
    for note in found.notes:
        console.print(Text(f"notice: {note}"))
    if found.command:
        console.print()
        console.print(Text("start it with:", style="dim"))
        # Only the terminal may break it: a line that rich breaks cannot be pasted.
        console.print(Text(found.command), soft_wrap=True)


def launch_command(study: Study, number: int, *, port: int, unset: Iterable[str] = ()) -> str:
    """Return the command that repeats a trial's launch by hand.

    `unset` are variables of the reader's environment that autofit removes.

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
    """Return the task and the machine of a study as names and texts."""
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
    """Return a launch as cells under `TRIAL_HEAD`."""
    return (
        *(str(row.number), row.phase, row.layout, row.outcome, row.request_s),
        *(row.pp_per_s, row.tg_per_s, row.seconds, row.params),
    )
