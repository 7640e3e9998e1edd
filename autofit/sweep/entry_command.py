"""The autofit commands that measure an entry of a sweep."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autofit.sweep.entry_record import BoundaryRow, EntryRecord, MeasuredSettings
from autofit.sweep.suite import SuiteEntry

# With -P a file in the working directory cannot replace one of our modules.
PROGRAM = (sys.executable, "-P", "-m", "autofit")
_LEAST_BUDGET_S = 1
# If the entry gets less time than its budget, this share is reserved for the fit boundary.
_BOUNDARY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class EntryCommand:
    """One command of an entry. Its study is in the entry's folder and has the command's name.

    `runtime_args` come after `--`.
    """

    name: str
    arguments: tuple[str, ...]
    runtime_args: tuple[str, ...] = ()

    def argv(self, folder: Path) -> tuple[str, ...]:
        """Return the command line. It resumes the study if there is one."""
        study = folder / self.name
        resume = ("--resume",) if (study / "study.json").is_file() else ()
        tail = ("--", *self.runtime_args) if self.runtime_args else ()
        return (*PROGRAM, *self.arguments, "--study", str(study), *resume, "--json", *tail)

    def shell_line(self, folder: Path) -> str:
        """Return the command line for a shell."""
        return shlex.join(("autofit", *self.argv(folder)[len(PROGRAM) :]))


def measuring_command(
    entry: SuiteEntry, before: EntryRecord | None, budget_s: float
) -> EntryCommand:
    """Return the first command of an entry, which measures its settings.

    If an entry of mode remeasure has no settings yet, it is tuned, so that the next night has
    some. `budget_s` is the time that was granted to the entry.
    """
    budget_s -= boundary_budget_s(entry, budget_s)
    settings = _settings_options(entry, before)
    if entry.mode == "tune" or (entry.mode == "remeasure" and not settings):
        return _tune_command(entry, budget_s)
    options = [*_task_options(entry), *settings, *_option("--against", entry.against)]
    options += _option("--rounds", entry.rounds) + _option("--budget", _duration(budget_s))
    options += ["--neighbours"] if entry.mode == "remeasure" and entry.neighbours else []
    options += [] if entry.answers else ["--no-answers"]
    return EntryCommand("remeasure", ("remeasure", *options), entry.args)


def recheck_command(entry: SuiteEntry, before: EntryRecord, budget_s: float) -> EntryCommand:
    """Return the command that launches the baseline's winner once, if a tune found another."""
    options = [*_task_options(entry), *_settings_options(entry, before)]
    options += ["--rounds", "1", "--no-answers", *_option("--budget", _duration(budget_s))]
    return EntryCommand("kept", ("remeasure", *options), entry.args)


def boundary_command(
    entry: SuiteEntry, rows: tuple[BoundaryRow, ...], winner: MeasuredSettings, budget_s: float
) -> EntryCommand:
    """Return the command that finds the boundary of each layout with each KV type in `rows`."""
    options = [*_task_options(entry), *_option("--space", entry.space)]
    options += _option("--kv-floor", entry.kv_floor)
    for layout in dict.fromkeys(row.layout for row in rows):
        options += ["--layout", layout]
    options += ["--kv", ",".join(dict.fromkeys(row.cache_type for row in rows))]
    options += _option("--ubatch", winner.params.get("ubatch"))
    for name, value in entry.pins.items():
        options += ["--set", f"{name}={value}"] if name != "ubatch" else []
    options += _option("--budget", _duration(budget_s))
    return EntryCommand("probe", ("probe", *options, "--yes"), entry.args)


def boundary_budget_s(entry: SuiteEntry, budget_s: float) -> float:
    """Return the seconds that are reserved for the fit boundary.

    An entry with its full budget needs no reserve, because only its time-out limits the search
    for the boundary.
    """
    is_short = budget_s < entry.full_budget_s
    has_boundary = entry.boundary and entry.mode != "compare"
    return _BOUNDARY_SHARE * budget_s if is_short and has_boundary else 0.0


def _settings_options(entry: SuiteEntry, before: EntryRecord | None) -> list[str]:
    """Return the options with the settings to measure again, or none without settings."""
    if entry.preset is not None:
        return ["--preset", entry.preset]
    if before is None or before.winner is None:
        return []
    return ["--params", json.dumps(dict(before.winner.params))]


def _tune_command(entry: SuiteEntry, budget_s: float) -> EntryCommand:
    options = [*_task_options(entry), *_option("--space", entry.space)]
    for requirement in entry.require:
        options += ["--require", requirement]
    for name, value in entry.pins.items():
        options += ["--set", f"{name}={value}"]
    options += _option("--objective", entry.objective) + _option("--kv-floor", entry.kv_floor)
    options += _option("--max-launches", entry.max_launches)
    options += _option("--budget", _duration(budget_s)) + _option("--seed", entry.seed)
    options += [] if entry.answers else ["--no-answers"]
    return EntryCommand("tune", ("tune", *options, "--yes"), entry.args)


def _task_options(entry: SuiteEntry) -> Iterator[str]:
    """Yield the model and the options of the task, which all commands have."""
    yield entry.model
    for option, value in (
        ("--runtime", entry.runtime),
        ("--dialect", entry.dialect),
        ("--workload", entry.workload),
        ("--context", entry.context),
        ("--parallel", entry.parallel),
        ("--rpc", entry.rpc or None),
        ("--wrapper", entry.wrapper or None),
    ):
        yield from _option(option, value)
    for name, mib in entry.devices.items():
        yield from ("--device", f"{name}={mib}")
    for name, value in entry.env.items():
        yield from ("--env", f"{name}={value}")


def _option(name: str, value: object) -> list[str]:
    return [] if value is None else [name, str(value)]


def _duration(seconds: float) -> str:
    return f"{max(_LEAST_BUDGET_S, round(seconds))}s"
