"""A suite as the program knows it: entries with all defaults filled in."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from autofit.errors import UsageError
from autofit.runtime.command.redaction import redact_command, redact_variables
from autofit.sweep.entry_record import Mode
from autofit.trial.metric import Metric
from autofit.trial.workload import Workload

Missing = Literal["skip", "fail"]
# Stands for the small model that `autofit demo` makes.
DEMO_MODEL = "demo"

_BUDGETS_S: Mapping[Mode, float] = {"tune": 3600.0, "remeasure": 1200.0, "compare": 1200.0}
_TIME_OUT_FACTOR = 1.5
_TIME_OUT_MORE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing that a sweep measures; see `autofit.sweep.suite_file` for each field.

    Paths are absolute, texts of `--set` and `--device` as on the command line. Thresholds are
    percent by metric, and MiB for `memory_mib`. `place` counts the file's entries from 0.
    """

    name: str
    place: int
    model: str
    mode: Mode = "tune"
    runtime: str | None = None
    against: str | None = None
    dialect: str | None = None
    workload: str = "chat"
    space: str | None = None
    preset: str | None = None
    context: int | None = None
    parallel: int | None = None
    objective: Metric = "request_s"
    require: tuple[str, ...] = ()
    kv_floor: str = "q8_0"
    budget_s: float | None = None
    max_launches: int = 30
    # Finds 6% at 3% noise beside two kept nights; five find four of five (results/benchmarks).
    rounds: int = 8
    time_out_s: float | None = None
    neighbours: bool = True
    boundary: bool = True
    thresholds: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    rpc: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    wrapper: str = ""
    args: tuple[str, ...] = ()
    answers: bool = True
    seed: int = 1
    missing: Missing = "fail"

    @property
    def wanted_s(self) -> float:
        """Seconds that the entry would measure for where no budget is shared."""
        return self.budget_s or _BUDGETS_S[self.mode]

    def time_limit_s(self, granted_s: float) -> float:
        """Seconds after which the entry is ended when it has so long to measure."""
        return self.time_out_s or granted_s * _TIME_OUT_FACTOR + _TIME_OUT_MORE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What a sweep runs; `budget_s` is for all entries together, None without a limit."""

    name: str
    path: Path
    about: str
    budget_s: float | None
    baseline: Path
    entries: tuple[Entry, ...]

    def chosen(self, only: Sequence[str], shard: tuple[int, int] | None) -> tuple[Entry, ...]:
        """The entries of these names (all without any) that belong to a shard, in order.

        A name also stands for the entries that were made of it (`NAME+...`). Shard i of n has
        every n-th name of the suite in alphabetical order, beginning with the i-th.

        Raises:
            UsageError: there is no entry of a name.
        """
        for name in only:
            if not any(_is_called(entry, name) for entry in self.entries):
                known = ", ".join(entry.name for entry in self.entries)
                raise UsageError(f"no entry '{name}' in {self.path}", f"it has: {known}")
        names = sorted(entry.name for entry in self.entries)
        if shard is not None:
            names = names[shard[0] - 1 :: shard[1]]
        return tuple(
            entry
            for entry in self.entries
            if entry.name in names and (not only or any(_is_called(entry, n) for n in only))
        )


def _is_called(entry: Entry, name: str) -> bool:
    return entry.name == name or entry.name.startswith(f"{name}+")


def granted_s(entry: Entry, later: Sequence[Entry], left_s: float | None) -> float:
    """Seconds that an entry may measure for, of what is left for it and all later ones.

    Where that is less than all of them want it is shared evenly, and what one does not want of
    its part the others have.
    """
    if left_s is None:
        return entry.wanted_s
    rest_s = max(0.0, left_s)
    wanted = sorted(one.wanted_s for one in (entry, *later))
    for place, wanted_s in enumerate(wanted):
        part_s = rest_s / (len(wanted) - place)
        if wanted_s > part_s:
            return min(entry.wanted_s, part_s)
        rest_s -= wanted_s
    return entry.wanted_s


def task_words(entry: Entry, workload: Workload) -> str:
    """All that is asked of a model and said to its runtime beside settings, on one line.

    Nights of an entry that was changed in it are not to be compared.
    """
    requests = ", ".join(
        f"{one.prompt_tokens}+{one.predicted_tokens} (weight {one.weight:g})"
        for one in workload.requests
    )
    told = [f"context {workload.context}, parallel {workload.parallel}, requests {requests}"]
    # Where a text lies differs between runners.
    told += [f"text {Path(workload.text).name}"] if workload.text else []
    told += [shlex.join(redact_command(entry.args))] if entry.args else []
    told += [f"under {entry.wrapper}"] if entry.wrapper else []
    told += [f"{name}={value}" for name, value in sorted(redact_variables(entry.env).items())]
    return "; ".join(told)
