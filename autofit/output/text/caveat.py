"""What a reader of a study must know before relying on it."""

from __future__ import annotations

from collections.abc import Iterator

from autofit.output.text.conclusion import answer
from autofit.study.study_folder import Study
from autofit.text_format import mib, one_line


def caveats(study: Study) -> list[str]:
    """Remarks on the conclusion, then on the folder."""
    return [
        *_on_conclusion(study),
        *answer(study.result).notes,
        *_on_folder(study),
        *map(one_line, study.notices),
    ]


def _on_conclusion(study: Study) -> Iterator[str]:
    result, header = study.result, study.header
    if result is None or "winner" not in result:
        return
    if result["winner"]:
        workload = header.workload
        yield one_line(
            f"measured for the workload {workload.name} at {workload.context} tokens of context "
            "on this machine and build; for others the best may be another"
        )
    gain = result.get("gain") or {}
    if gain.get("median") is not None and gain.get("low") is None:
        yield "fewer than three rounds give the gain no interval: a larger --budget allows more"
    unproven = [row for row in result.get("boundary") or () if not row.get("proven")]
    if unproven:
        count = len(unproven)
        words = "1 fit boundary is" if count == 1 else f"{count} fit boundaries are"
        yield f"{words} in part the estimate's word; `autofit probe` launches both sides"
    limits = header.options.get("devices_mib") or {}
    if limits:
        told = ", ".join(f"{name} {mib(amount)}" for name, amount in limits.items())
        yield one_line(f"of the devices only so much was to be used: {told}")


def _on_folder(study: Study) -> Iterator[str]:
    skipped, cut_off = len(study.skipped()), study.cut_off()
    if skipped:
        words = "1 candidate was" if skipped == 1 else f"{skipped} candidates were"
        yield f"{words} ruled out without a launch"
    if cut_off:
        numbers = ", ".join(f"#{number}" for number in cut_off)
        yield f"cut off before they ended, and no trials: {numbers}"
