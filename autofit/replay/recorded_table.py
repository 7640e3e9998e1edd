"""Recorded tables of launches: their settings, and the speeds that were measured.

A table is one CSV file for each machine and model, in the format of
`results/landscapes/README.md`: comment lines that begin with `#`, a header, one row per launch.
Unknown columns are ignored.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit import yaml_files
from autofit.errors import UsageError
from autofit.input_files import read_input
from autofit.memory.demand import Memory
from autofit.trial.candidate import ParamValue
from autofit.trial.metric import METRICS, Metric

# The columns of settings, and the runtime parameter of each.
PARAMS = {
    "ncmoe": "n_cpu_moe",
    "batch": "batch",
    "ubatch": "ubatch",
    "ctk": "cache_type_k",
    "ctv": "cache_type_v",
    "tensor_split": "tensor_split",
    "prefetch_slots": "prefetch_slots",
    "load_mode": "load_mode",
}
_INTEGERS = frozenset({"ncmoe", "batch", "ubatch", "prefetch_slots", "n_ctx", "n_prompt", "n_gen"})
_MOST_DIGITS = 18
_MAY_BE_ZERO = frozenset({"ncmoe", "prefetch_slots", "n_prompt", "n_gen"})
_RATES = frozenset({"pp_tps", "tg_tps"})
_OK = frozenset({"", "ok"})
_EXHAUSTED: dict[str, Memory] = {
    "oom": "device",
    "oom_load": "device",
    "oom_run": "device",
    "spill": "device",
}
# The metrics in order of preference, for a replay without an objective.
_PREFERENCE: tuple[Metric, ...] = ("request_s", "tg", "pp")
_LARGEST_BYTES = 4 << 20
_HINT = "results/landscapes/README.md describes the format of a table"
# The folders with tables below each root: a wheel, the repository, and the user's data.
_FOLDERS = ("landscapes", "results/landscapes")

Settings = tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One recorded launch. `settings` has a value for each of `PARAMS`, "" if it is blank."""

    settings: Settings
    n_ctx: int | None
    n_prompt: int | None
    n_gen: int | None
    pp_per_s: float | None
    tg_per_s: float | None
    status: str

    @property
    def group(self) -> tuple[int | None, int | None, int | None]:
        """Context, prompt and generation. Only rows with the same group can be compared."""
        return self.n_ctx, self.n_prompt, self.n_gen

    @property
    def is_ok(self) -> bool:
        """True if the launch ran."""
        return self.status in _OK

    @property
    def exhausted_memory(self) -> Memory | None:
        """The memory that the launch ran out of, or None for any other result."""
        return _EXHAUSTED.get(self.status)

    def value(self, metric: Metric) -> float | None:
        """Return the metric of a launch that ran, or None if the row does not have it."""
        if not self.is_ok:
            return None
        if metric == "pp":
            return self.pp_per_s
        if metric == "tg":
            return self.tg_per_s
        if self.pp_per_s is None or not self.n_prompt:
            return None
        prompt_s = self.n_prompt / self.pp_per_s
        if metric == "ttft":
            return prompt_s
        if self.tg_per_s is None or not self.n_gen:
            return None
        return prompt_s + self.n_gen / self.tg_per_s


@dataclass(frozen=True, slots=True)
class RecordedTable:
    """A recorded table: rows that can be compared, and the metric that compares them."""

    name: str
    rows: tuple[TableRow, ...]
    metric: Metric

    @property
    def repeats(self) -> dict[Settings, list[TableRow]]:
        """A dict from settings to their rows, in the order of the table."""
        found: dict[Settings, list[TableRow]] = {}
        for row in self.rows:
            found.setdefault(row.settings, []).append(row)
        return found


def find_tables() -> dict[str, Path]:
    """Return the files of the bundled tables by name."""
    found: dict[str, Path] = {}
    for root in yaml_files.roots():
        for folder in _FOLDERS:
            for table in sorted((root / folder).glob("*.csv")):
                found.setdefault(table.stem, table)
    return found


def find_table(name: str) -> Path:
    """Find the file of a table from its path, or from the name of a bundled table.

    Raises:
        UsageError: there is no such table. The hint lists the bundled tables.
    """
    path = Path(name).expanduser()
    if path.is_file():
        return path
    if "/" in name or path.suffix:
        raise UsageError(f"no such table: {path}", "use the path of a CSV file")
    found = find_tables()
    if name not in found:
        known = {stem: str(table.parent) for stem, table in found.items()}
        raise yaml_files.unknown_name("table", name, known)
    return found[name]


def read_table(path: Path, objective: Metric | None = None) -> RecordedTable:
    """Read the largest group of comparable rows in which a launch ran.

    The metric is the objective. Without an objective it is the metric that most rows have; if
    several are equal, it is seconds per request, then generation, then prompt processing. Rows
    that ran but do not have the metric are left out.

    Raises:
        UsageError: the file cannot be read, or no row has the metric, or the file is faulty. Each
            fault has the form `file:line: fault`.
    """
    rows = _read_rows(path)
    groups: dict[tuple[int | None, int | None, int | None], list[TableRow]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    # A group in which nothing ran cannot be searched.
    running = [group for group in groups.values() if any(_has(row, METRICS) for row in group)]
    if not running:
        raise UsageError(f"{path}: no row has a speed", _HINT)
    largest = max(running, key=len)
    metric = objective or _most_frequent_metric(largest)
    usable = [row for row in largest if not row.is_ok or row.value(metric) is not None]
    if not any(row.is_ok for row in usable):
        available = [name for name in METRICS if any(_has(row, (name,)) for row in largest)]
        raise UsageError(
            f"{path}: no row of its largest group has {metric}",
            f"use --objective with a metric that they have: {', '.join(available)}",
        )
    return RecordedTable(path.stem, tuple(usable), metric)


def _has(row: TableRow, metrics: Sequence[Metric]) -> bool:
    """Return whether a row has one of the metrics."""
    return any(row.value(metric) is not None for metric in metrics)


def _most_frequent_metric(rows: Sequence[TableRow]) -> Metric:
    """Return the metric that most rows have, and among equals the first by preference."""
    return max(_PREFERENCE, key=lambda metric: sum(row.value(metric) is not None for row in rows))


def _read_rows(path: Path) -> list[TableRow]:
    try:
        text = read_input(path, _LARGEST_BYTES).decode("utf-8-sig")
        lines = list(_numbered_cells(io.StringIO(text, newline=""), path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file: {error}", _HINT) from error
    if not lines:
        raise UsageError(f"{path}:1: no header", _HINT)
    (number, header), *body = lines
    names = [name.strip() for name in header]
    faults = [f"{path}:{number}: {fault}" for fault in _header_faults(names)]
    rows = []
    for line, cells in body if not faults else ():
        row, row_faults = _row(names, cells)
        faults += [f"{path}:{line}: {fault}" for fault in row_faults]
        if row is not None:
            rows.append(row)
    if not faults and not rows:
        faults = [f"{path}:{number}: there are no rows below the header"]
    if faults:
        raise UsageError(yaml_files.list_faults(faults), _HINT)
    return rows


def _numbered_cells(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line number and cells, without comments and blank lines."""
    # A comment may contain quotes, which CSV would interpret, so comments are emptied first.
    reader = csv.reader(("\n" if line.startswith("#") else line for line in lines), strict=True)
    before = 0
    try:
        for cells in reader:
            number, before = before + 1, reader.line_num
            if any(cell.strip() for cell in cells):
                yield number, cells
    except csv.Error as error:
        raise UsageError(f"{path}:{before + 1}: not CSV: {error}", _HINT) from error


def _header_faults(names: Sequence[str]) -> Iterator[str]:
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        yield f"column {', '.join(repeated)} occurs twice"
    if not set(names) & set(PARAMS):
        yield f"there is no column of settings; known: {', '.join(PARAMS)}"
    if not set(names) & _RATES:
        yield f"there is no column of speeds; known: {', '.join(sorted(_RATES))}"


def _row(names: Sequence[str], cells: Sequence[str]) -> tuple[TableRow | None, list[str]]:
    """Convert cells to a row; return it without faults, or None with the faults."""
    if len(cells) != len(names):
        return None, [f"the row has {len(cells)} cells, but the header has {len(names)}"]
    texts = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    faults: list[str] = []
    counts = {name: _count(name, texts, faults) for name in _INTEGERS}
    rates = {name: _rate(name, texts, faults) for name in _RATES}
    if faults:
        return None, sorted(faults)
    settings: list[ParamValue] = []
    for name in PARAMS:
        number = counts.get(name)
        settings.append(texts.get(name, "") if number is None else number)
    row = TableRow(
        tuple(settings),
        counts["n_ctx"],
        counts["n_prompt"],
        counts["n_gen"],
        rates["pp_tps"],
        rates["tg_tps"],
        texts.get("status", ""),
    )
    return row, []


def _count(name: str, texts: Mapping[str, str], faults: list[str]) -> int | None:
    text = texts.get(name, "")
    if not text:
        return None
    least = 0 if name in _MAY_BE_ZERO else 1
    # Python refuses to convert thousands of digits.
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else -1
    if value >= least:
        return value
    faults.append(f"{name} '{text}' must be a whole number of at least {least}")
    return None


def _rate(name: str, texts: Mapping[str, str], faults: list[str]) -> float | None:
    text = texts.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if 0 < value < math.inf:
        return value
    faults.append(f"{name} '{text}' must be a positive number")
    return None
