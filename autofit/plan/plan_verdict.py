"""The verdict of a plan: one sentence about what fits, where, and what stays free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofit.model.sizes.inventory import ModelInventory
from autofit.text_format import one_line
from autofit.units import MIB

if TYPE_CHECKING:
    from autofit.plan.memory_plan import PlannedLayout

_MIB_PER_GIB = 1024
_MOST_NAMED = 3  # devices that are named one by one


def describe_verdict(inventory: ModelInventory, layout: PlannedLayout) -> str:
    """Return whether a layout fits, with the model's size, the context and the units.

    Args:
        inventory: the model.
        layout: the recommended layout, or the first one if none fits.
    """
    context = layout.candidate.get_int("context", 0) or inventory.context_train
    subject = (
        f"{one_line(inventory.path.stem)} ({_size(inventory.total_bytes / MIB)}) with "
        f"{context:,} tokens of context"
    )
    rows = [row for row in layout.estimate.devices if row.layers or row.output]
    if layout.host_mib is not None:
        total_mib = layout.estimate.host.total_mib
        needs = f"{_size(total_mib)} of {_size(layout.host_mib)}"
        verb = "fits in" if layout.fits else "does not fit in"
        return f"{subject} {verb} system RAM: it needs {needs}."
    if not layout.fits:
        lacking = [
            f"{one_line(row.name)} lacks {-row.free_mib:,.0f} MiB" for row in rows if not row.fits
        ]
        return f"{subject} does not fit: in the layout {layout.name}, {_joined(lacking)}."
    left = {one_line(row.name): row.free_mib + row.headroom_mib for row in rows}
    if len(left) > _MOST_NAMED:
        names, free = f"{len(left)} devices", f"at least {min(left.values()):,.0f} MiB on each"
    else:
        names = _joined([*left])
        free = _joined([f"{mib:,.0f} MiB on {name}" for name, mib in left.items()])
    return f"{subject} fits on {names}: {_on_host(inventory, layout)}, and {free} stay free."


def _on_host(inventory: ModelInventory, layout: PlannedLayout) -> str:
    units = layout.candidate.get_int("n_gpu_layers", inventory.units)
    whole = max(0, inventory.units - units) if units >= 0 else 0
    experts = len(inventory.expert_blocks)
    parts = []
    if whole:
        parts.append(f"{whole} of {inventory.block_count} layers are in system RAM")
    if layout.host_expert_layers:
        parts.append(
            f"the experts of {layout.host_expert_layers} of {experts} layers are in system RAM"
        )
    return _joined(parts) or "the whole model is there"


def _size(mib: float) -> str:
    return f"{mib / _MIB_PER_GIB:,.1f} GiB" if mib >= _MIB_PER_GIB else f"{mib:,.0f} MiB"


def _joined(parts: Sequence[str]) -> str:
    *others, last = parts or [""]
    return f"{', '.join(others)} and {last}" if others else last
