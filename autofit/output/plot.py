"""The plots of the report, drawn by plotly; each with a title and a text that replaces it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autofit.output.text import METRIC_WORDS, mib, number, one_line
from autofit.output.trial_row import brief_params, outcome_text
from autofit.trial.candidate import Candidate
from autofit.trial.metric import METRICS, Metric, median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

if TYPE_CHECKING:
    import plotly.graph_objects as go

# Distinct for eyes that do not tell red from green: Okabe and Ito's palette.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_FAILED = "#D55E00"
_GREY = "#888888"
_HEIGHT = 380


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot as a piece of HTML that needs plotly.js on the page."""

    title: str
    alternative: str
    html: str


def plots(
    trials: Sequence[Trial], workload: Workload, objective: str, result: Mapping[str, Any] | None
) -> list[Plot]:
    """Every plot that the trials have data for."""
    metric: Metric = next((m for m in METRICS if m == objective), "request_s")
    winner = Candidate(((result or {}).get("winner") or {}).get("params") or {})
    found = (
        _speed(trials, workload, metric),
        _memory(trials, winner),
        _rounds(trials, workload, metric, winner),
    )
    return [plot for plot in found if plot is not None]


def _speed(trials: Sequence[Trial], workload: Workload, metric: Metric) -> Plot | None:
    placed = [t for t in trials if isinstance(t.candidate.params.get("n_cpu_moe"), int)]
    measured = [
        (trial, value)
        for trial in placed
        if trial.is_completed and (value := median_metric(trial.measurement, workload, metric))
    ]
    failed = [trial for trial in placed if not trial.is_completed]
    if not measured:
        return None
    figure = _figure("host expert layers (n_cpu_moe)", METRIC_WORDS[metric])
    groups = sorted({_group(trial) for trial, _ in measured})
    for index, group in enumerate(groups):
        points = sorted(
            ((t, v) for t, v in measured if _group(t) == group),
            key=lambda point: _layers(point[0]),
        )
        figure.add_scatter(
            x=[_layers(trial) for trial, _ in points],
            y=[value for _, value in points],
            mode="markers",
            name=_safe(group),
            text=[_hover(trial) for trial, _ in points],
            hovertemplate="%{text}<br>%{y:.4g}<extra></extra>",
            marker={"color": _COLOURS[index % len(_COLOURS)], "size": 9},
        )
    if failed:
        figure.add_scatter(
            x=[_layers(trial) for trial in failed],
            y=[0] * len(failed),
            mode="markers",
            name="failed",
            text=[_hover(trial) for trial in failed],
            hovertemplate="%{text}<extra></extra>",
            marker={"color": _FAILED, "symbol": "x", "size": 10},
        )
    best = (min if metric in ("request_s", "ttft") else max)(measured, key=lambda point: point[1])
    return Plot(
        f"{METRIC_WORDS[metric].capitalize()} against host expert layers",
        f"{len(measured)} launches measured with {min(map(_layers, placed))} to "
        f"{max(map(_layers, placed))} host expert layers; best {number(best[1])} at "
        f"{_layers(best[0])}. {len(failed)} failed"
        + (f", at {', '.join(str(n) for n in sorted(set(map(_layers, failed))))}." * bool(failed)),
        _html(figure),
    )


def _memory(trials: Sequence[Trial], winner: Candidate) -> Plot | None:
    """Stacked memory of every device, for the last baseline and the last winner."""
    shown = {
        name: trial
        for name, trial in (
            ("baseline", _last(t for t in trials if t.phase == "baseline")),
            ("winner", _last(t for t in trials if t.candidate == winner and winner.params)),
        )
        if trial is not None
    }
    bars = {
        f"{name} {one_line(device)}": parts
        for name, trial in shown.items()
        for device, parts in _memory_parts(trial).items()
    }
    if not bars:
        return None
    figure = _figure("", "MiB")
    figure.update_layout(barmode="stack")
    colours = {**dict(zip(_PARTS, _COLOURS, strict=False)), "other": _GREY, "free": "#DDDDDD"}
    for part in (*_PARTS, "other", "free"):
        figure.add_bar(
            x=[_safe(bar) for bar in bars],
            y=[parts.get(part) for parts in bars.values()],
            name=part,
            marker={"color": colours[part]},
            hovertemplate="%{y:.0f} MiB<extra>" + part + "</extra>",
        )
    told = "; ".join(
        f"{bar}: " + ", ".join(f"{part} {mib(value)}" for part, value in parts.items())
        for bar, parts in bars.items()
    )
    return Plot("Memory at the peak, by device", f"{told}.", _html(figure))


_PARTS = ("weights", "context", "compute")


def _memory_parts(trial: Trial) -> dict[str, dict[str, float]]:
    measurement = trial.measurement
    if measurement is None:
        return {}
    devices: dict[str, dict[str, float]] = {}
    for device, peak in measurement.peak_mib.items():
        reported = measurement.reported.get(device)
        known = (
            dict(
                zip(
                    _PARTS,
                    (reported.model_mib, reported.context_mib, reported.compute_mib),
                    strict=True,
                )
            )
            if reported
            else {}
        )
        free = measurement.free_mib.get(device)
        if peak is not None:
            known["other"] = max(0.0, peak - sum(known.values()))
        if free is not None:
            known["free"] = free
        if known:
            devices[device] = known
    return devices


def _rounds(
    trials: Sequence[Trial], workload: Workload, metric: Metric, winner: Candidate
) -> Plot | None:
    """The launches of the confirmation in the order they were made."""
    values: dict[Candidate, list[float]] = {}
    for trial in trials:
        value = median_metric(trial.measurement, workload, metric)
        if trial.phase == "confirm" and trial.is_completed and value is not None:
            values.setdefault(trial.candidate, []).append(value)
    if not values:
        return None
    figure = _figure("round", METRIC_WORDS[metric])
    told = []
    for index, (candidate, row) in enumerate(values.items()):
        name = "winner" if candidate == winner else brief_params(candidate.params) or "baseline"
        figure.add_scatter(
            x=list(range(1, len(row) + 1)),
            y=row,
            mode="lines+markers",
            name=_safe(name),
            hovertemplate="round %{x}: %{y:.4g}<extra></extra>",
            line={"color": _COLOURS[index % len(_COLOURS)]},
        )
        told.append(f"{name}: {', '.join(number(value) for value in row)}")
    return Plot("Rounds of the confirmation", f"{'; '.join(told)}.", _html(figure))


def _last(trials: Iterable[Trial]) -> Trial | None:
    completed = [trial for trial in trials if trial.is_completed]
    return completed[-1] if completed else None


def _layers(trial: Trial) -> int:
    return trial.candidate.get_int("n_cpu_moe", 0)


def _group(trial: Trial) -> str:
    return f"{trial.layout or 'launch'}, {trial.candidate.get_str('cache_type_k', 'f16')}"


def _hover(trial: Trial) -> str:
    lines = (
        f"#{trial.number} {trial.phase} {trial.layout}",
        brief_params(trial.candidate.params),
        "" if trial.is_completed else f"{outcome_text(trial.outcome)}: {trial.outcome.evidence}",
    )
    return "<br>".join(_safe(line) for line in lines if line)


def _safe(text: str) -> str:
    """Text that plotly does not take for markup of its own."""
    return html.escape(one_line(text))


def _figure(x_title: str, y_title: str) -> go.Figure:
    import plotly.graph_objects as go  # noqa: PLC0415 - heavy, and an extra

    return go.Figure(
        layout={
            "template": "none",
            "height": _HEIGHT,
            "margin": {"l": 70, "r": 10, "t": 10, "b": 60},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": _GREY},
            "legend": {"orientation": "h", "y": -0.25},
            "xaxis": {"title": {"text": x_title}, "gridcolor": "rgba(128,128,128,.2)"},
            "yaxis": {
                "title": {"text": y_title},
                "rangemode": "tozero",
                "gridcolor": "rgba(128,128,128,.2)",
            },
        }
    )


def _html(figure: go.Figure) -> str:
    text: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        default_width="100%",
        default_height=f"{_HEIGHT}px",
        config={"displayModeBar": False, "responsive": True},
    )
    return text
