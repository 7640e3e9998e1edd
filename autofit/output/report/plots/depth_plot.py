"""The plot of speed against depth: the cost of a full context."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median

from autofit.output.report.plots.figure import BASELINE, WINNER, NoPlot, Plot, axis, new_figure
from autofit.output.report.plots.plot_data import PlotData
from autofit.text_format import METRIC_WORDS, number
from autofit.trial.measurement import Sample
from autofit.trial.trial import Trial

_TITLE = "Speed against depth"
_X = "tokens in the cache when generation began"
# The rate of shorter generations is too inexact.
_LEAST_STEPS = 8


def depth_plot(data: PlotData) -> Plot | NoPlot:
    """Plot median rates by depth of baseline and winner, the full context included."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for role, trial in data.shown_pair():
        launches = data.of_candidate(trial)
        curves["tg", role] = _by_depth(launches, _generated)
        curves["pp", role] = _by_depth(launches, lambda sample: sample.pp_per_s)
    depths = sorted({depth for curve in curves.values() for depth in curve})
    if len(depths) < 2:  # noqa: PLR2004 - one depth is no curve
        return NoPlot(_TITLE, "only prompts of one length were measured")
    figure = new_figure(
        _X,
        METRIC_WORDS["tg"],
        xaxis=axis(_X, anchor="y2", rangemode="tozero"),
        yaxis=axis("generated tokens/s", domain=[0.55, 1.0], rangemode="tozero"),
        yaxis2=axis("prompt tokens/s", domain=[0.0, 0.45], rangemode="tozero"),
    )
    for (rate, role), curve in curves.items():
        is_baseline = role in ("baseline", "A")
        figure.add_scatter(
            x=sorted(curve),
            y=[curve[depth] for depth in sorted(curve)],
            mode="lines+markers",
            name=role,
            legendgroup=role,
            showlegend=rate == "tg",
            yaxis="y" if rate == "tg" else "y2",
            line={"color": BASELINE, "dash": "dash"} if is_baseline else {"color": WINNER},
            marker={"symbol": "diamond" if is_baseline else "circle", "size": 9},
            hovertemplate="%{x:,} tokens deep: %{y:,.4r} tokens/s<extra></extra>",
        )
    return Plot(
        _TITLE,
        "Medians over all launches of each; the upper half is generation, the lower half "
        "processing of prompts of that length.",
        figure,
        height=480,
        head=("depth", *(f"{role}, {rate}/s" for rate, role in curves)),
        rows=[
            (f"{depth:,}", *(number(c[depth]) if depth in c else "" for c in curves.values()))
            for depth in depths
        ],
    )


def _generated(sample: Sample) -> float | None:
    return sample.tg_per_s if sample.predicted_tokens > _LEAST_STEPS else None


def _by_depth(
    launches: Iterable[Trial], rate: Callable[[Sample], float | None]
) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for trial in launches:
        for sample in trial.measurement.samples if trial.measurement else ():
            value = rate(sample)
            if not sample.is_warmup and value is not None:
                values.setdefault(sample.depth, []).append(value)
    return {depth: median(found) for depth, found in values.items()}
