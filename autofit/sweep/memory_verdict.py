"""Whether an entry needs more memory, and whether its fit boundary moved."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from autofit.sweep.entry_record import BoundaryRow, EntryRecord
from autofit.sweep.kept_night import Kept
from autofit.sweep.thresholds import Thresholds
from autofit.sweep.verdict import Finding, MetricVerdict
from autofit.trial.device import HOST_NAME

# Of a mapped model more or fewer pages are resident, as the host has room.
_HOST_SHARE = 0.05


def memory_verdicts(
    kept: Kept | None, now: EntryRecord, thresholds: Thresholds
) -> Iterator[MetricVerdict]:
    """The peak of each device against the nights of the level.

    Other settings need other memory, so these are not compared. What no night needed before is
    a change, once it lies the threshold beyond all of them.
    """
    before, winner = (kept.record.winner if kept else None), now.winner
    is_comparable = not (before and winner and before.digest != winner.digest)
    for device, mib in now.peak_mib.items():
        nights = kept.peaks_mib(device) if kept and is_comparable else []
        if mib is None and not nights:
            continue
        usual = median(nights) if nights else None
        threshold = thresholds.memory_mib
        if device == HOST_NAME:
            threshold = max(thresholds.host_memory_mib, _HOST_SHARE * (usual or 0.0))
        verdict = _memory_finding(nights, mib, threshold)
        yield MetricVerdict(
            metric=f"peak_mib {device}",
            verdict=verdict,
            words=_memory_words(verdict, usual, mib),
            kept=usual,
            now=mib,
            ratio=mib / usual if mib and usual else None,
            threshold=threshold,
            nights=(*nights, mib) if mib is not None else (),
        )


def _memory_finding(nights: list[float], mib: float | None, threshold: float) -> Finding:
    if mib is None or not nights:
        return "unknown"
    if mib > max(nights) + threshold:
        return "more_memory"
    return "less_memory" if mib < min(nights) - threshold else "same"


def _memory_words(verdict: Finding, usual: float | None, mib: float | None) -> str:
    if mib is None:
        return "not counted tonight"
    if usual is None:
        return f"{mib:,.0f} MiB; nothing is kept to compare with"
    words = f"{mib:,.0f} MiB beside the kept {usual:,.0f} MiB"
    if verdict == "more_memory":
        return f"{mib - usual:,.0f} MiB more memory: {words}"
    return f"{usual - mib:,.0f} MiB less memory: {words}" if verdict == "less_memory" else words


def boundary_verdicts(
    kept: Kept | None, now: EntryRecord, thresholds: Thresholds
) -> Iterator[MetricVerdict]:
    """The fewest host layers that fit, for each layout and KV type of both nights.

    A launch must show a move: of the kept value failing tonight, or of one that failed before.
    With another ubatch, or with experts prefetched or cached otherwise, the boundary is
    another, and no move.
    """
    before = {(row.layout, row.cache_type): row for row in (kept.record.boundary if kept else ())}
    for row in now.boundary:
        old = before.get((row.layout, row.cache_type))
        verdict = _boundary_finding(old, row, thresholds.boundary_layers)
        yield MetricVerdict(
            metric=f"boundary {row.layout} {row.cache_type}",
            verdict=verdict,
            words=_boundary_words(verdict, old, row),
            kept=old.fits if old else None,
            now=row.fits,
            threshold=thresholds.boundary_layers,
        )


def _boundary_finding(old: BoundaryRow | None, now: BoundaryRow, step: int) -> Finding:
    if old is None or _have_other_settings(old, now) or (old.fits is None and now.fits is None):
        return "unknown"
    if old.fits is None:
        return "boundary_gained"
    if now.fits is None:
        return "boundary_moved" if _failed(now, old.fits) else "undecided"
    if now.fits >= old.fits + step:
        return "boundary_moved" if _failed(now, old.fits) else "undecided"
    if now.fits <= old.fits - step:
        return "boundary_gained" if _failed(old, now.fits) else "undecided"
    return "same"


def _have_other_settings(old: BoundaryRow, now: BoundaryRow) -> bool:
    return any(
        before is not None and after is not None and before != after
        for before, after in ((old.ubatch, now.ubatch), (old.experts, now.experts))
    )


def _settings(row: BoundaryRow) -> str:
    told = {"ubatch": row.ubatch, **(row.experts or {})}
    return " ".join(f"{name} {value}" for name, value in told.items() if value is not None)


def _failed(row: BoundaryRow, host_layers: int) -> bool:
    """Whether a launch of this night failed with so many host layers, or with more."""
    was_launched = row.proven or row.outcome is not None
    return was_launched and row.fails is not None and row.fails >= host_layers


def _boundary_words(verdict: Finding, old: BoundaryRow | None, now: BoundaryRow) -> str:
    if old is None:
        return f"{_fits(now)}; nothing is kept to compare with"
    words = f"{_fits(now)}, kept was: {_fits(old)}"
    if _have_other_settings(old, now):
        return f"{words}; not compared, with {_settings(now)} and {_settings(old)}"
    if verdict == "boundary_moved" and now.fits is not None and old.fits is not None:
        layers = now.fits - old.fits
        return f"{layers} layer{'s' * (layers > 1)} fewer fit on the devices: {words}"
    if verdict == "boundary_moved":
        return f"nothing fits any more: {words}"
    return f"{words}; no launch shows it" if verdict == "undecided" else words


def _fits(row: BoundaryRow) -> str:
    if row.fits is None:
        return "nothing fits"
    failed = ""
    if row.fails is not None:
        failed = (
            f", {row.fails} fails" if row.proven or row.outcome else f", not {row.fails} (guess)"
        )
    return f"{row.fits} host layers fit{failed}"
