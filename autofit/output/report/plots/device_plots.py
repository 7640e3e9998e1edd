"""The plots of devices: memory at the peak, and the layers on each device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from autofit.output.layer_map import PlacedLayer, layer_map
from autofit.output.report.plots.figure import COLOURS, GREY, NoPlot, Plot, axis, new_figure, safe
from autofit.output.report.plots.plot_data import PlotData
from autofit.text_format import mib, one_line
from autofit.trial.device import HOST_NAME
from autofit.trial.measurement import Measurement

_MEMORY_TITLE = "Memory at the peak, by device"
_HOST_ROWS = ("Host", "CPU", "CPU_Mapped", "CPU_REPACK")
PARTS: Mapping[str, str] = {
    "weights": COLOURS[0],
    "KV cache": COLOURS[1],
    "compute": COLOURS[2],
    "pools and other": COLOURS[3],
    "free": "rgba(138,138,138,.25)",
}


def memory_plot(data: PlotData) -> Plot | NoPlot:
    """Plot stacked bars for baseline and winner, without the memory of other programs."""
    bars: dict[tuple[str, str], Mapping[str, float | None]] = {}
    others: dict[str, float] = {}
    for role, trial in data.shown_pair():
        if trial.measurement is not None:
            for device, parts in memory_parts(trial.measurement).items():
                bars[one_line(device), f"{role} #{trial.number}"] = parts
            others |= _held_by_others(trial.measurement)
    if not bars:
        return NoPlot(_MEMORY_TITLE, "no launch that ended well has memory counters")
    ordered = sorted(bars, key=lambda bar: (bar[0] == HOST_NAME, bar[0]))
    # The free memory of a large host would make the bars of devices too small.
    left_out = ("free", HOST_NAME) if any(device != HOST_NAME for device, _ in bars) else None
    figure = new_figure("", "MiB", barmode="stack", bargap=0.35)
    figure.update_yaxes(tickformat=",d")
    for part, colour in PARTS.items():
        figure.add_bar(
            # Two rows of labels: the device below its launches.
            x=[[safe(bar[0]) for bar in ordered], [safe(bar[1]) for bar in ordered]],
            y=[None if (part, bar[0]) == left_out else bars[bar].get(part) for bar in ordered],
            name=part,
            marker={"color": colour, "line": {"width": 1, "color": GREY}},
            hovertemplate="%{x}: %{y:,.0f} MiB<extra>" + part + "</extra>",
        )
    held = ", ".join(f"{mib(amount)} on {one_line(name)}" for name, amount in others.items())
    return Plot(
        _MEMORY_TITLE,
        "Memory of the server on each device at its peak, and free memory."
        + " The free memory of the host is only in the table." * bool(left_out)
        + (f" Used by other programs and not drawn: {held}." if held else ""),
        figure,
        height=440,
        head=("device", "launch", *PARTS),
        rows=[(*bar, *(mib(bars[bar].get(part)) for part in PARTS)) for bar in ordered],
    )


def memory_parts(measurement: Measurement) -> dict[str, dict[str, float | None]]:
    """Return the MiB of each part by device; a part that no source reports is None, never 0."""
    taken = measurement.taken_mib()
    devices: dict[str, dict[str, float | None]] = {}
    reported = [name for name in measurement.reported if name not in _HOST_ROWS]
    for device in dict.fromkeys((*measurement.peak_mib, *reported)):
        names = _HOST_ROWS if device == HOST_NAME else (device,)
        rows = [row for name in names if (row := measurement.reported.get(name))]
        known: dict[str, float | None] = {}
        if rows:
            known["weights"] = sum(row.model_mib for row in rows)
            known["KV cache"] = sum(row.context_mib for row in rows)
            known["compute"] = sum(row.compute_mib for row in rows)
        held = taken.get(device)
        if held is not None:
            listed = sum(amount or 0.0 for amount in known.values())
            # Below 0 if weights are mapped from a file and only partly resident.
            known["pools and other"] = max(0.0, held - listed)
        known["free"] = measurement.free_mib.get(device)
        if any(amount is not None for amount in known.values()):
            devices[device] = known
    return devices


def _held_by_others(measurement: Measurement) -> dict[str, float]:
    """Return the MiB in use before the server started, by device, without small amounts."""
    if not measurement.readings:
        return {}
    used = measurement.readings[0].device_used_mib
    return {
        name: amount
        for name, amount in used.items()
        if amount is not None and amount > _LITTLE_MIB and name in measurement.peak_mib
    }


_LITTLE_MIB = 512.0


_SLICES_TITLE = "Layers over devices"
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
        return NoPlot(_SLICES_TITLE, "no launch reported the number of layers")
    placed = layer_map(trial.candidate, data.layers)
    if not placed:
        return NoPlot(_SLICES_TITLE, "the runtime placed the layers itself, or there is no device")
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
        _SLICES_TITLE,
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
