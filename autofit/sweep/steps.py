"""The commands that an entry of a sweep is measured by: each is an autofit of its own."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autofit.sweep.entry_record import BoundaryRow, EntryRecord, Winner
from autofit.sweep.suite import Entry

# -P: what lies in the working directory is no module of ours.
PROGRAM = (sys.executable, "-P", "-m", "autofit")
LEAST_BUDGET_S = 1
# Of an entry that has less time than it wants so much is kept for its fit boundary.
_BOUNDARY_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """One command of an entry; its study lies in the entry's folder under the same name.

    What comes `after` goes behind the double dash.
    """

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()

    def argv(self, folder: Path) -> tuple[str, ...]:
        """The command; it goes on where there is a study already."""
        study = folder / self.name
        resume = ("--resume",) if (study / "study.json").is_file() else ()
        tail = ("--", *self.after) if self.after else ()
        return (*PROGRAM, *self.words, "--study", str(study), *resume, "--json", *tail)

    def line(self, folder: Path) -> str:
        """The command for a shell."""
        return shlex.join(("autofit", *self.argv(folder)[len(PROGRAM) :]))


def first_step(entry: Entry, kept: EntryRecord | None, budget_s: float) -> Step:
    """What measures an entry's settings, in the seconds that the entry was granted.

    To remeasure where nothing was kept is to tune, so that there is something to keep.
    """
    budget_s -= boundary_part_s(entry, budget_s)
    settings = kept_settings(entry, kept)
    if entry.mode == "tune" or (entry.mode == "remeasure" and not settings):
        return _tune(entry, budget_s)
    words = [*_task(entry), *settings, *_given("--against", entry.against)]
    words += _given("--rounds", entry.rounds) + _given("--budget", _seconds(budget_s))
    words += ["--neighbours"] if entry.mode == "remeasure" and entry.neighbours else []
    words += [] if entry.answers else ["--no-answers"]
    return Step("remeasure", ("remeasure", *words), entry.args)


def boundary_part_s(entry: Entry, budget_s: float) -> float:
    """Seconds that are kept for the fit boundary, of those that an entry was granted.

    None of an entry that has all that it wants: only its time-out ends what comes after.
    """
    is_short = budget_s < entry.wanted_s
    has_boundary = entry.boundary and entry.mode != "compare"
    return _BOUNDARY_SHARE * budget_s if is_short and has_boundary else 0.0


def kept_settings(entry: Entry, kept: EntryRecord | None) -> list[str]:
    """The words that name the settings to measure again, none where there are none."""
    if entry.preset is not None:
        return ["--preset", entry.preset]
    if kept is None or kept.winner is None:
        return []
    return ["--params", json.dumps(dict(kept.winner.params))]


def kept_step(entry: Entry, kept: EntryRecord, budget_s: float) -> Step:
    """One launch of the kept winner, beside a tune that has found another."""
    words = [*_task(entry), *kept_settings(entry, kept), "--rounds", "1", "--no-answers"]
    return Step("kept", ("remeasure", *words, *_given("--budget", _seconds(budget_s))), entry.args)


def boundary_step(
    entry: Entry, rows: tuple[BoundaryRow, ...], winner: Winner, budget_s: float
) -> Step:
    """What finds the fit boundaries of the same layouts and KV types by launches."""
    layouts = dict.fromkeys(row.layout for row in rows)
    kinds = dict.fromkeys(row.cache_type for row in rows)
    words = [*_task(entry), *_given("--space", entry.space), *_given("--kv-floor", entry.kv_floor)]
    words += [word for layout in layouts for word in ("--layout", layout)]
    words += ["--kv", ",".join(kinds)]
    words += _given("--ubatch", winner.params.get("ubatch"))
    pins = {name: value for name, value in entry.pins.items() if name != "ubatch"}
    words += [word for name, value in pins.items() for word in ("--set", f"{name}={value}")]
    words += _given("--budget", _seconds(budget_s))
    return Step("probe", ("probe", *words, "--yes"), entry.args)


def _tune(entry: Entry, budget_s: float) -> Step:
    words = [*_task(entry), *_given("--space", entry.space)]
    words += [word for one in entry.require for word in ("--require", one)]
    words += [word for one in entry.pins.items() for word in ("--set", "=".join(one))]
    words += _given("--objective", entry.objective) + _given("--kv-floor", entry.kv_floor)
    words += _given("--max-launches", entry.max_launches)
    words += _given("--budget", _seconds(budget_s)) + _given("--seed", entry.seed)
    words += [] if entry.answers else ["--no-answers"]
    return Step("tune", ("tune", *words, "--yes"), entry.args)


def _task(entry: Entry) -> Iterator[str]:
    """The words that say what is measured, which all commands take."""
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
        yield from _given(option, value)
    for name, mib in entry.devices.items():
        yield from ("--device", f"{name}={mib}")
    for name, value in entry.env.items():
        yield from ("--env", f"{name}={value}")


def _given(option: str, value: object) -> list[str]:
    return [] if value is None else [option, str(value)]


def _seconds(budget_s: float) -> str:
    return f"{max(LEAST_BUDGET_S, round(budget_s))}s"
