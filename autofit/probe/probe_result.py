"""The document that `probe --json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autofit.memory.boundary_walk import BoundaryWalk
from autofit.search.space import Point
from autofit.session.budget import spending
from autofit.session.runner import go_on
from autofit.session.task import Task
from autofit.study.study_folder import Study
from autofit.trial.trial import Overhead, Trial


@dataclass(slots=True)
class Line:
    """One boundary that is asked for: a layout and a KV type, with the walk along it.

    `trials` are indices of launches by number of host layers, `ruled_out` those of the failed
    launches that rule a number out; `stopped_by` is the launch that ended the walk for a reason
    that is not memory.
    """

    layout: str
    cache_type: str
    ubatch: int
    point: Point
    walk: BoundaryWalk
    trials: dict[int, int] = field(default_factory=dict)
    ruled_out: dict[int, int] = field(default_factory=dict)
    stopped_by: int | None = None


class ToldOf(Protocol):
    """A number of host layers along a line, that fits or does not, as people are told it."""

    def __call__(self, line: Line, host_layers: int | None, *, fits: bool = True) -> int | None:
        """The number; None where there is none."""


def probe_document(
    task: Task,
    *,
    study: Study,
    lines: Sequence[Line],
    trials: Sequence[Trial],
    told_of: ToldOf,
    rest: Overhead,
    seconds: float,
    is_cut_off: bool,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The result as JSON data.

    `trials` are with their outcomes as finally judged; `rest` was spent after the last.
    """
    return {
        "study": str(study.path),
        "model": str(task.model_path),
        "runtime": task.runtime.name,
        "workload": task.workload.name,
        "boundary": [_boundary(line, trials, told_of) for line in lines],
        "launches": len(study.started()),
        "outcomes": dict(Counter(trial.outcome.kind for trial in trials)),
        "skipped": len(study.skipped()),
        "spent": spending(trials, rest),
        "ended_by": "budget" if is_cut_off else "done",
        "seconds": round(seconds, 1),
        "notes": list(notes),
    }


def _boundary(line: Line, trials: Sequence[Trial], told_of: ToldOf) -> dict[str, Any]:
    """One boundary: the keys of `tune`, then what shows it.

    Where one device is used, counts are values of `n_cpu_moe`, which counts leading layers
    without experts too, and those that are not among the `units` on the device; with several
    devices they are host expert layers in all.
    """
    walk = line.walk
    fits, fails = walk.fits, walk.fails
    best = None if fits is None else trials[line.trials[fits]]
    failure = _failure(line, trials)
    failed = None if failure is None else trials[failure]

    is_proven = walk.is_closed and line.stopped_by is None
    measured = best.measurement if best else None
    return {
        "layout": line.layout,
        "cache_type": line.cache_type,
        "ubatch": line.ubatch,
        "n_cpu_moe": told_of(line, fits),
        "fits": told_of(line, fits),
        "fails": told_of(line, fails, fits=False),
        "outcome": failed.outcome.kind if failed else None,
        "proven": is_proven,
        "source": "launch" if walk.known else "estimate",
        "host_expert_layers": fits,
        "also_fits": [told_of(line, n) for n, fits_too in walk.exceptions.items() if fits_too],
        "params": dict(best.candidate.params) if best else None,
        "free_mib": dict(measured.free_mib) if measured else None,
        "launches": [trials[index].number for _, index in sorted(line.trials.items())],
        "failed_launches": sum(not trials[index].is_completed for index in line.trials.values()),
        "evidence": failed.outcome.evidence if failed else None,
    }


def budget_words(lines: Sequence[Line], study: Study, told_of: ToldOf) -> Iterator[str]:
    """What is known of each boundary that a spent budget has left open, and how to go on."""
    yield f"the budget is spent; with a larger --budget {go_on(study)}"
    for line in lines:
        if not line.walk.is_closed and line.stopped_by is None:
            yield f"{line.layout}, {line.cache_type}: {_known_words(line, told_of)}"


def _known_words(line: Line, told_of: ToldOf) -> str:
    walk = line.walk
    if not walk.known:
        return "nothing was launched"
    fits, fails = told_of(line, walk.fits), told_of(line, walk.fails, fits=False)
    if fits is None:
        return f"host expert layers: {fails} do not fit, more were not launched"
    if fails is None:
        return f"host expert layers: {fits} fit, fewer were not launched"
    return f"host expert layers: {fits} fit, {fails} do not; the rest was not launched"


def _failure(line: Line, trials: Sequence[Trial]) -> int | None:
    """The launch that shows the side that does not fit, None where there is none."""
    if line.stopped_by is not None:
        return line.stopped_by
    fails = line.walk.fails
    if fails is not None:
        return line.trials.get(fails, line.ruled_out.get(fails))
    if line.walk.fits is not None:
        return None
    failed = [index for index in line.trials.values() if not trials[index].is_completed]
    return failed[-1] if failed else None
