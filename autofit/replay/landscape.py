"""A recorded table of settings and what they gave: a machine that answers from a file.

One CSV file a machine and model, as `results/landscapes/README.md` says: comment lines that
begin with `#`, a header, one row a launch. Columns that are not known are ignored.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.errors import UsageError
from autofit.search.problem import Memory
from autofit.trial.candidate import ParamValue
from autofit.trial.metric import METRICS, Metric

# Columns that are settings, and the runtime params they stand for.
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
_WHOLE = frozenset({"ncmoe", "batch", "ubatch", "prefetch_slots", "n_ctx", "n_prompt", "n_gen"})
_MAY_BE_ZERO = frozenset({"ncmoe", "prefetch_slots", "n_prompt", "n_gen"})
_RATES = frozenset({"pp_tps", "tg_tps"})
_OK = frozenset({"", "ok"})
_LACKED: dict[str, Memory] = {
    "oom": "device",
    "oom_load": "device",
    "oom_run": "device",
    "spill": "device",
}
# Metrics in the order in which one is chosen where nobody asks for another.
_PREFERENCE: tuple[Metric, ...] = ("request_s", "tg", "pp")

Settings = tuple[ParamValue, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One recorded launch; `settings` holds a value for each of `PARAMS`, "" where blank."""

    settings: Settings
    n_ctx: int | None
    n_prompt: int | None
    n_gen: int | None
    pp_per_s: float | None
    tg_per_s: float | None
    status: str

    @property
    def group(self) -> tuple[int | None, int | None, int | None]:
        """What must be equal for rows to be compared."""
        return self.n_ctx, self.n_prompt, self.n_gen

    @property
    def is_ok(self) -> bool:
        """Whether the launch ran."""
        return self.status in _OK

    @property
    def lacked(self) -> Memory | None:
        """The memory that it failed for want of, None for any other failure."""
        return _LACKED.get(self.status)

    def value(self, metric: Metric) -> float | None:
        """The metric of a launch that ran; None where the row does not tell it."""
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
class Landscape:
    """The rows of a table that can be compared, and by which metric."""

    name: str
    rows: tuple[Row, ...]
    metric: Metric

    @property
    def repeats(self) -> dict[Settings, list[Row]]:
        """Rows by their settings, in the order of the table."""
        found: dict[Settings, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.settings, []).append(row)
        return found


def read_landscape(path: Path, objective: Metric | None = None) -> Landscape:
    """The largest group of comparable rows of a table in which something ran.

    The metric is the one asked for, else seconds per request where most rows tell them, else
    generation, else prompt processing. Rows that ran but do not tell it are left out.

    Raises:
        UsageError: the file cannot be read or is faulty, each fault as `file:line: what`; or
            no row tells the metric.
    """
    rows = _read(path)
    groups: dict[tuple[int | None, int | None, int | None], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    # A group in which nothing ran has nothing to find.
    running = [group for group in groups.values() if any(_tells(row, METRICS) for row in group)]
    if not running:
        raise UsageError(f"{path}: no row tells a speed", _HINT)
    largest = max(running, key=len)
    metric = objective or _best_told(largest)
    usable = [row for row in largest if not row.is_ok or row.value(metric) is not None]
    if not any(row.is_ok for row in usable):
        told = [name for name in METRICS if any(_tells(row, (name,)) for row in largest)]
        raise UsageError(
            f"{path}: no row of its largest group tells {metric}", f"it tells {', '.join(told)}"
        )
    return Landscape(path.stem, tuple(usable), metric)


def _tells(row: Row, metrics: Sequence[Metric]) -> bool:
    return any(row.value(metric) is not None for metric in metrics)


def _best_told(rows: Sequence[Row]) -> Metric:
    """The metric that most rows tell; of equals the first in the order of preference."""
    return max(_PREFERENCE, key=lambda metric: sum(row.value(metric) is not None for row in rows))


def _read(path: Path) -> list[Row]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(_numbered(file, path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not a text file: {error}", _HINT) from error
    if not lines:
        raise UsageError(f"{path}:1: no header", _HINT)
    (number, header), *body = lines
    names = [name.strip() for name in header]
    faults = [f"{path}:{number}: {what}" for what in _header_faults(names)]
    rows = []
    for line, cells in body if not faults else ():
        row, wrong = _row(names, cells)
        faults += [f"{path}:{line}: {what}" for what in wrong]
        if row is not None:
            rows.append(row)
    if not faults and not rows:
        faults = [f"{path}:{number}: no rows under the header"]
    if faults:
        raise UsageError("\n".join(faults), _HINT)
    return rows


_HINT = "results/landscapes/README.md says what a table looks like"


def _numbered(lines: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of cells with the line each begins in, comments and blank lines left out."""
    # A comment may hold what CSV reads as a quote, so it is emptied before.
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
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        yield f"column {', '.join(twice)} is there twice"
    if not set(names) & set(PARAMS):
        yield f"no column of settings; known: {', '.join(PARAMS)}"
    if not set(names) & _RATES:
        yield f"no column of speeds; known: {', '.join(sorted(_RATES))}"


def _row(names: Sequence[str], cells: Sequence[str]) -> tuple[Row | None, list[str]]:
    if len(cells) != len(names):
        return None, [f"{len(cells)} cells, the header has {len(names)}"]
    texts = {name: cell.strip() for name, cell in zip(names, cells, strict=True)}
    faults: list[str] = []
    counts = {name: _count(name, texts, faults) for name in _WHOLE}
    rates = {name: _rate(name, texts, faults) for name in _RATES}
    if faults:
        return None, sorted(faults)
    settings: list[ParamValue] = []
    for name in PARAMS:
        number = counts.get(name)
        settings.append(texts.get(name, "") if number is None else number)
    row = Row(
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
    if text.isascii() and text.isdigit() and int(text) >= least:
        return int(text)
    faults.append(f"{name} '{text}' is not a whole number of at least {least}")
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
    faults.append(f"{name} '{text}' is not a positive number")
    return None
