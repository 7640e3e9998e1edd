"""The tables of a result, as rows of cells: speed, fit boundary, cliffs, trade-offs, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autofit.model.sizes.unreported_memory import select_expert_settings
from autofit.output.text.trial_row import common_params, params_cell
from autofit.text_format import UNKNOWN, duration, estimate, headroom, number, one_line, param

Row = tuple[str, ...]
# The figures of a result, by key, as tables name them.
METRIC_NAMES = (
    ("request_s", "seconds per request"),
    ("pp_per_s", "prompt tokens/s"),
    ("tg_per_s", "generated tokens/s"),
    ("ttft_s", "seconds to first token"),
)
METRIC_HEAD: Row = ("", "baseline", "tuned")
BOUNDARY_TITLE = "fit boundary (layers with experts in RAM)"
BOUNDARY_HEAD: Row = ("layout", "KV type", "ubatch", "fits", "fails", "outcome", "proven")
CLIFF_HEAD: Row = ("parameter", "step", "loss", "layout", "KV type")
FRONT_TITLE = "best trade-offs"
FRONT_HEAD: Row = ("prompt t/s", "generated t/s", "s/request", "headroom", "settings")
SPENT_TITLE = "time spent"
SPENT_HEAD: Row = ("phase", "length of test", "launches", "time", "share")
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


def metric_rows(baseline: Mapping[str, Any], winner: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return a row for each figure that was measured, under `METRIC_HEAD`."""
    return tuple(
        (name, estimate(baseline.get(key)), estimate(winner.get(key)))
        for key, name in METRIC_NAMES
        if baseline.get(key) or winner.get(key)
    )


def boundary_row(row: Mapping[str, Any]) -> Row:
    """Return a fit boundary as cells under `BOUNDARY_HEAD`."""
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
    """Return a cliff as cells under `CLIFF_HEAD`."""
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
    """Return the candidates that no other beats in every respect, under `FRONT_HEAD`.

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


def spent_rows(result: Mapping[str, Any]) -> tuple[Row, ...]:
    """Return a row for each phase and length of test, then the rest, under `SPENT_HEAD`.

    Results of older versions have none.
    """
    spent = result.get("spent")
    return tuple(_spent_rows(spent)) if spent else ()


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
