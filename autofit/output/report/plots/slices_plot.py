"""The plot of the winner's slices: its layers on their devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from autofit.output.layer_map import PlacedLayer, layer_map
from autofit.output.report.plots.figure import COLOURS, GREY, NoPlot, Plot, axis, new_figure, safe
from autofit.output.report.plots.plot_data import PlotData
from autofit.text_format import one_line

_TITLE = "Layers over devices"
_X = "layer"
_LOOKS = {
    "on the device": (COLOURS[0], ""),
    "partly in system RAM": (COLOURS[4], "/"),
    "in system RAM": (COLOURS[1], "x"),
}


def slices_plot(data: PlotData) -> Plot | NoPlot:
    """Plot a cell for each layer in the row of its device, marked by the place of its experts."""
    pair = data.shown_pair()
    role, trial = pair[-1] if pair else ("", None)
    if trial is None or data.layers is None:
        return NoPlot(_TITLE, "no launch reported the number of layers")
    placed = layer_map(trial.candidate, data.layers)
    if not placed:
        return NoPlot(_TITLE, "the runtime placed the layers itself, or there is no device")
    devices = list(dict.fromkeys(layer.device for layer in placed))
    figure = new_figure(
        _X,
        "",
        barmode="overlay",
        bargap=0.3,
        xaxis=axis(_X, range=[-0.6, len(placed) - 0.4], showgrid=False),
        yaxis=axis("", categoryorder="array", categoryarray=[safe(d) for d in devices[::-1]]),
    )
    for experts, (colour, pattern) in _LOOKS.items():
        shown = [layer for layer in placed if layer.experts == experts]
        if shown:
            figure.add_bar(
                orientation="h",
                base=[layer.number - 0.5 for layer in shown],
                x=[1] * len(shown),
                y=[safe(layer.device) for layer in shown],
                customdata=[layer.number for layer in shown],
                name=f"{data.hosted} {experts}",
                hovertemplate=f"layer %{{customdata}}: {data.hosted} {experts}<extra></extra>",
                marker={
                    "color": colour,
                    "line": {"width": 1, "color": GREY},
                    "pattern": {"shape": pattern, "fillmode": "overlay"},
                },
            )
    return Plot(
        _TITLE,
        f"{role} #{trial.number}: ".capitalize()
        + "; ".join(_device_words(placed, device, data.hosted) for device in devices)
        + ". The other tensors of a layer and its KV cache are on its device.",
        figure,
        height=150 + 50 * len(devices),
    )


def _device_words(placed: Sequence[PlacedLayer], device: str, hosted: str) -> str:
    own = [layer for layer in placed if layer.device == device]
    text = f"{one_line(device)} has layers {_spans([layer.number for layer in own])}"
    for experts in ("in system RAM", "partly in system RAM"):
        away = [layer.number for layer in own if layer.experts == experts]
        if away:
            text += f", with the {hosted} of {_spans(away)} {experts}"
    return text


def _spans(numbers: Sequence[int]) -> str:
    """Return rising numbers as runs: `0 to 3, 7`."""
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(f"{r[0]} to {r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
