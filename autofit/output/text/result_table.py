"""The tables of a result: speed, fit boundary, cliffs, trade-offs, time, both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from autofit.model.sizes.unreported_memory import select_expert_settings
from autofit.output.text.trial_row import common_params, params_cell
from autofit.text_format import (
    UNKNOWN,
    as_fast,
    duration,
    estimate,
    headroom,
    mib,
    number,
    one_line,
    param,
)

Row = tuple[str, ...]
# The figures of a result, by key, as tables name them.
METRIC_NAMES = (
    ("request_s", "seconds per request"),
    ("pp_per_s", "prompt tokens/s"),
    ("tg_per_s", "generated tokens/s"),
    ("ttft_s", "seconds to first token"),
)
BOUNDARY_TITLE = "fit boundary (layers with experts in RAM)"
_BOUNDARY_HEAD: Row = ("layout", "KV type", "ubatch", "fits", "fails", "outcome", "proven")
_CLIFF_HEAD: Row = ("parameter", "step", "loss", "layout", "KV type")
FRONT_HEAD: Row = ("prompt t/s", "generated t/s", "s/request", "headroom", "settings")
_SPENT_HEAD: Row = ("phase", "length of test", "launches", "time", "share")
_COMPARISON_HEAD: Row = ("", "A", "B", "speed of B")
_REQUESTS = (("first_request", "first request"), ("second_request", "second request"))
_SPEED_NAMES = {
    "pp": "prompt speed",
    "tg": "generation speed",
    "request_s": "request speed",
    "ttft": "first-token speed",
}
_FIDELITIES = {
    "load": "load and first ubatches",
    "short": "short requests",
    "full": "full requests",
}


class ResultTable(NamedTuple):
    """A table with a title and the names of its columns."""

    title: str = ""
    head: Row = ()
    rows: tuple[Row, ...] = ()

    @property
    def heading(self) -> str:
        """The title with a capital letter, for a report."""
        return self.title[:1].upper() + self.title[1:]


def metric_table(baseline: Mapping[str, Any], winner: Mapping[str, Any]) -> ResultTable:
    """Return a table with a row for each figure that was measured."""
    rows = (
        (name, estimate(baseline.get(key)), estimate(winner.get(key)))
        for key, name in METRIC_NAMES
        if baseline.get(key) or winner.get(key)
    )
    return ResultTable("speed", ("", "baseline", "tuned"), tuple(rows))


def finding_tables(result: Mapping[str, Any]) -> tuple[ResultTable, ...]:
    """Return the tables of fit boundaries, cliffs and trade-offs that have rows."""
    tables = (
        ResultTable(
            BOUNDARY_TITLE, _BOUNDARY_HEAD, tuple(map(boundary_row, result.get("boundary") or ()))
        ),
        ResultTable("cliffs", _CLIFF_HEAD, tuple(map(cliff_row, result.get("cliffs") or ()))),
        ResultTable("best trade-offs", FRONT_HEAD, tuple(front_rows(result.get("pareto") or ()))),
    )
    return tuple(table for table in tables if table.rows)


def boundary_row(row: Mapping[str, Any]) -> Row:
    """Return the cells of a fit boundary."""
    # A probe reports only what it launched: a side that it left open is not estimated.
    is_estimated = "launches" not in row and row.get("source") != "launch"
    proven = "yes" if row.get("proven") else "no, estimated" if is_estimated else "no"
    cells = (
        row.get("layout"),
        row.get("cache_type"),
        ubatch_cell(row),
        _layers(row, "fits"),
        _layers(row, "fails"),
        _outcome_kind(row.get("outcome")),
        proven,
    )
    return tuple(one_line("" if cell is None else cell) for cell in cells)


def ubatch_cell(row: Mapping[str, Any]) -> str:
    """Return the ubatch of a boundary and its memory for experts: `512, prefetch_slots 4`."""
    ubatch = UNKNOWN if row.get("ubatch") is None else str(row["ubatch"])
    experts = select_expert_settings(row.get("params") or {})
    return ", ".join((ubatch, *(f"{name} {param(value)}" for name, value in experts.items())))


def _layers(row: Mapping[str, Any], side: str) -> str:
    """Return a side of a boundary: a number, `none`, or unknown if a probe left it open."""
    if row.get(side) is not None:
        return f"{row[side]} layer{'s' * (row[side] != 1)}"
    return UNKNOWN if "launches" in row and not row.get("proven") else "none"


def _outcome_kind(outcome: object) -> str:
    kind = outcome.get("kind") if isinstance(outcome, Mapping) else outcome
    return str(kind or "").replace("_", " ")


def cliff_row(row: Mapping[str, Any]) -> Row:
    """Return the cells of a cliff."""
    ratio, low, high = row.get("ratio"), row.get("low"), row.get("high")
    metric = str(row.get("metric"))
    loss = f"{_SPEED_NAMES.get(metric, metric)} {_change(ratio)}"
    if low is not None and high is not None:
        loss += f" ({_change(low)} to {_change(high)})"
    step = f"{row.get('from')} to {row.get('to')}"
    cells = (row.get("param"), step, loss, row.get("layout"), row.get("cache_type"))
    return tuple(one_line("" if cell is None else cell) for cell in cells)


def _change(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio - 1:+.0%}"


def front_rows(front: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the candidates that no other beats in every respect, as cells under `FRONT_HEAD`.

    Settings that all of them share are left out.
    """
    params = [row.get("params") or {} for row in front]
    common = common_params(params)
    return [
        (
            number(row.get("pp_per_s")),
            number(row.get("tg_per_s")),
            number(row.get("request_s")),
            one_line(headroom(row.get("free_mib") or {})),
            one_line("(preset) " * bool(row.get("is_preset")) + params_cell(own, common)),
        )
        for row, own in zip(front, params, strict=True)
    ]


def spent_table(result: Mapping[str, Any]) -> ResultTable:
    """Return a row for each phase and length of test, then the rest; older results have none."""
    spent = result.get("spent")
    return ResultTable("time spent", _SPENT_HEAD, tuple(_spent_rows(spent)) if spent else ())


def _spent_rows(spent: Mapping[str, Any]) -> Iterator[Row]:
    launches, asked = spent["by_phase"], spent["by_fidelity"]["estimate"]
    overhead_s = spent["own_seconds"]
    total_s = sum(row["seconds"] for row in launches) + asked["seconds"] + overhead_s

    def cells(phase: str, length: str, count: str, seconds: float) -> Row:
        share = f"{seconds / total_s:.0%}" if total_s else ""
        return (one_line(phase), length, count, duration(seconds), share)

    for row in launches:
        length = _FIDELITIES.get(row["fidelity"], "not recorded")
        yield cells(row["phase"], length, str(row["launches"]), row["seconds"])
    if asked["questions"]:
        yield cells("memory estimates", "no launch", "", asked["seconds"])
    yield cells("overhead", "no launch", "", overhead_s)


def comparison_table(result: Mapping[str, Any]) -> ResultTable:
    """Return each figure of both sides of a comparison."""
    rows = (tuple(map(one_line, row)) for row in _comparison_rows(result))
    return ResultTable("both sides", _COMPARISON_HEAD, tuple(rows))


def _comparison_rows(result: Mapping[str, Any]) -> Iterator[Row]:
    a, b, ratios = result["a"], result["b"], result["ratios"]
    yield "preset", a["name"], b["name"], ""
    yield "runtime", a["runtime"], b["runtime"], ""
    for key, name in METRIC_NAMES:
        sides = (estimate(side["estimates"].get(key)) for side in (a, b))
        yield (name, *sides, _speed(ratios.get(key)))
    for request, request_name in _REQUESTS:
        for key, unit in (("pp_per_s", "prompt tokens/s"), ("ttft_s", "s to first token")):
            sides = (estimate(side[request].get(key)) for side in (a, b))
            yield (f"{request_name}, {unit}", *sides, _speed(ratios.get(f"{request}_{key}")))
    yield "seconds to load", estimate(a["load_s"]), estimate(b["load_s"]), ""
    for device in dict.fromkeys((*a["peak_mib"], *b["peak_mib"])):
        used = (mib(side["peak_mib"].get(device)) for side in (a, b))
        yield (f"{device} at the peak", *used, "")
        free = (mib(side["free_mib"].get(device)) for side in (a, b))
        yield (f"{device} left free", *free, "")


def _speed(ratio: Mapping[str, Any] | None) -> str:
    return as_fast(ratio["median"], ratio["low"], ratio["high"]) if ratio else UNKNOWN
