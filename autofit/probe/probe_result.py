"""The document that `probe --json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from autofit.probe.boundary_line import BoundaryLine
from autofit.session.budget import spending
from autofit.session.runner import resume_command
from autofit.session.task import Task
from autofit.study.study_folder import Study
from autofit.trial.trial import Overhead, Trial


def probe_document(
    task: Task,
    *,
    study: Study,
    lines: Sequence[BoundaryLine],
    trials: Sequence[Trial],
    rest: Overhead,
    seconds: float,
    is_cut_off: bool,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Return the result as JSON data.

    `trials` have their outcomes as finally judged; `rest` was spent after the last launch.
    """
    return {
        "study": str(study.path),
        "model": str(task.model_path),
        "runtime": task.runtime.name,
        "workload": task.workload.name,
        "boundary": [_boundary(line) for line in lines],
        "launches": len(study.started()),
        "outcomes": dict(Counter(trial.outcome.kind for trial in trials)),
        "skipped": len(study.skipped()),
        "spent": spending(trials, rest),
        "ended_by": "budget" if is_cut_off else "done",
        "seconds": round(seconds, 1),
        "notes": list(notes),
    }


def _boundary(line: BoundaryLine) -> dict[str, Any]:
    """Return one boundary: the keys of `tune`, then the evidence."""
    search, launches = line.search, line.launches
    best = line.launch(search.fits)
    failed = line.failure
    fits = line.reported(search.fits)
    measured = best.measurement if best else None
    exceptions = search.exceptions.items()
    return {
        "layout": line.layout,
        "cache_type": line.cache_type,
        "ubatch": line.ubatch,
        "n_cpu_moe": fits,
        "fits": fits,
        "fails": line.reported(search.fails, fits=False),
        "outcome": failed.outcome.kind if failed else None,
        "proven": search.is_closed and line.stopped_by is None,
        "source": "launch" if search.known else "estimate",
        "host_expert_layers": search.fits,
        "also_fits": [line.reported(n) for n, fits_too in exceptions if fits_too],
        "params": dict(best.candidate.params) if best else None,
        "free_mib": dict(measured.free_mib) if measured else None,
        "launches": [launches[n].number for n in sorted(launches)],
        "failed_launches": sum(not trial.is_completed for trial in launches.values()),
        "evidence": failed.outcome.evidence if failed else None,
    }


def open_boundary_texts(lines: Sequence[BoundaryLine], study: Study) -> Iterator[str]:
    """Describe each boundary that a spent budget has left open, and how to continue."""
    yield f"the budget is spent; continue with a larger --budget: `{resume_command(study)}`"
    for line in lines:
        if not line.search.is_closed and line.stopped_by is None:
            yield f"{line.layout}, {line.cache_type}: {_known_text(line)}"


def _known_text(line: BoundaryLine) -> str:
    """Describe the known sides of an open boundary."""
    if not line.search.known:
        return "nothing was launched"
    fits = line.reported(line.search.fits)
    fails = line.reported(line.search.fails, fits=False)
    if fits is None and fails is None:
        return "neither side is known"
    if fits is None:
        return f"{fails} layers with experts in RAM do not fit, more were not launched"
    if fails is None:
        return f"{fits} layers with experts in RAM fit, fewer were not launched"
    return f"{fits} layers with experts in RAM fit, {fails} do not; the rest was not launched"
