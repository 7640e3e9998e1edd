"""A memory plan as tables: what each layout needs on each device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autofit.knowledge.expectation import ExpectedRates
from autofit.plan.memory_plan import Plan, PlannedLayout
from autofit.text_format import number

_COLUMNS = (
    "device",
    "layers",
    "experts in RAM",
    "weights",
    "KV",
    "compute",
    "other",
    "total",
    "usable",
    "verdict",
)


def print_plan(plan: Plan, console: Console) -> None:
    """Print a table per layout, the memory of each step, the arguments to paste, and a verdict.

    Equal layouts have one table.
    """
    for layout in plan.layouts:
        if layout.same_as is None:
            equal = [other.name for other in plan.layouts if other.same_as == layout.name]
            print_layout(layout, console, equal, is_recommended=plan.recommended is layout)
    for notice in plan.notices:
        console.print(Text(f"notice: {notice}"))
    rates = plan.exchange
    if rates.expert_layer_mib:
        console.print(Text(f"experts of one layer: {rates.expert_layer_mib:,.0f} MiB"))
    context_mib = ", ".join(f"{name} {mib:,.1f}" for name, mib in rates.context_1k_mib.items())
    console.print(Text(f"1,000 tokens of context, MiB: {context_mib}"))
    console.print(Text(f"ubatch larger by 512: {rates.ubatch_512_mib:,.0f} MiB"))
    contexts = ", ".join(
        f"{name} {count:,}" if count else f"{name} none"
        for name, count in plan.max_context.items()
    )
    console.print(Text(f"largest context that fits: {contexts}{_f16_remark(plan)}"))
    if plan.recommended is not None:
        _print_arguments(plan.recommended, console)
    console.print(Text(f"\n{plan.verdict}"), soft_wrap=True)


def _print_arguments(layout: PlannedLayout, console: Console) -> None:
    console.print(Text(f"\narguments for {layout.name}:"))
    console.print(Text(shlex.join(layout.args)), soft_wrap=True)
    if layout.env:
        settings = [f"{name}={value}" for name, value in layout.env.items()]
        console.print(Text(f"variables: {shlex.join(settings)}"), soft_wrap=True)


def _f16_remark(plan: Plan) -> str:
    """Return why a narrower type allows less context than f16, empty if none does."""
    contexts = plan.max_context
    if not any(count < contexts.get("f16", 0) for count in contexts.values()):
        return ""
    return " (for long prompts, attention converts a narrower cache to f16)"


def print_layout(
    layout: PlannedLayout,
    console: Console,
    equal: Sequence[str] = (),
    *,
    is_recommended: bool = False,
) -> None:
    """Print the memory of one layout on each device, and the names of equal layouts."""
    mark = " (recommended)" if is_recommended else "" if layout.fits else " (does not fit)"
    names = f"{layout.name}, equal to {', '.join(equal)}" if equal else layout.name
    title, caption = f"{names}{mark}", _caption(layout)
    if layout.estimate.devices:
        console.print(_table(layout, title, caption))
    else:
        console.print(Text(title, style="bold"))
        console.print(Text(caption))
    if layout.expected is not None:
        console.print(Text(f"expected, not measured: {_rates(layout.expected)}"))


def _rates(expected: ExpectedRates) -> str:
    """Return the rates with the factor by which each may be wrong."""
    return ", ".join(
        f"{number(rate.median)} {unit} (within a factor of {rate.factor:.2g})"
        for rate, unit in ((expected.pp_per_s, "pp/s"), (expected.tg_per_s, "tg/s"))
    )


def _caption(layout: PlannedLayout) -> str:
    host = layout.estimate.host
    parts = _expert_memory(layout) + _headroom(layout)
    parts += (
        f"RAM: weights {host.weights_mib:,.0f}, repacked {host.repack_mib:,.0f}, "
        f"KV {host.kv_mib:,.0f}, compute {host.compute_mib:,.0f} MiB; "
    )
    if layout.host_mib is not None:
        free_mib = layout.host_mib - host.total_mib
        parts += (
            f"total {host.total_mib:,.0f} of {layout.host_mib:,.0f} MiB, {_verdict(free_mib)}; "
        )
    return f"{parts}{_SOURCES[layout.estimate.estimator]}"


def _expert_memory(layout: PlannedLayout) -> str:
    """Return how much of `other` is for experts in system RAM, by device."""
    amounts = [
        f"{use} {mib:,.0f} MiB on {row.name}"
        for row in layout.estimate.devices
        for use, mib in (("prefetch", row.prefetch_mib), ("expert cache", row.expert_cache_mib))
        if mib
    ]
    return f"of other: {', '.join(amounts)}; " if amounts else ""


def _headroom(layout: PlannedLayout) -> str:
    """Return how much of the free memory is not usable, by device."""
    rows = layout.estimate.devices
    if len(rows) > 1 and len({row.headroom_mib for row in rows}) == 1:
        return f"headroom: {rows[0].headroom_mib:,.0f} MiB on each; "
    amounts = [f"{row.headroom_mib:,.0f} MiB on {row.name}" for row in rows if row.headroom_mib]
    return f"headroom: {', '.join(amounts)}; " if amounts else ""


def _table(layout: PlannedLayout, title: str, caption: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=None,
    )
    for column in _COLUMNS:
        is_text = column in ("device", "layers", "verdict")
        table.add_column(column, justify="left" if is_text else "right")
    for row in layout.estimate.devices:
        layers = f"{row.layers[0]}-{row.layers[1]}" if row.layers else "none"
        table.add_row(
            Text(row.name),
            layers + (" + output" if row.output else ""),
            str(row.host_expert_layers),
            *(
                f"{mib:,.0f}"
                for mib in (
                    row.weights_mib,
                    row.kv_mib,
                    row.compute_mib,
                    row.other_mib,
                    row.total_mib,
                    row.usable_mib,
                )
            ),
            _verdict(row.free_mib, row.headroom_mib),
        )
    return table


def _verdict(free_mib: float, headroom_mib: float = 0.0) -> str:
    return (
        f"{free_mib + headroom_mib:,.0f} free" if free_mib >= 0 else f"{-free_mib:,.0f} too much"
    )


_SOURCES = {"runtime": "calculated by the runtime", "arithmetic": "estimated"}
