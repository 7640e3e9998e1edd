"""The warning, after the first launch, that the budget is too small for the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.runtime.server.request_plan import CONTEXT_RESERVE_TOKENS
from autofit.session.budget import Budget
from autofit.trial.metric import median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# A useful tune tries this many candidates after the baseline. Four rounds of two follow, then
# three launches for the winner's proof and answers.
_FEWEST_CANDIDATES = 3
_USUAL_CANDIDATES = 10
_ROUND_LAUNCHES = 8
_PROOF_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Need:
    """The need of a run: the least time and launches that give a result, and the usual time.

    `purpose` names the result that the least gives, such as "to compare both". A
    proof of `proof_s` seconds is launched even if the budget is used up.
    """

    least_s: float
    usual_s: float
    least_launches: int
    purpose: str
    proof_s: float = 0.0


def launches_need(launch_s: float, least: int, usual: int, purpose: str) -> Need:
    """Return the need of a run whose launches all take the same time."""
    return Need(least * launch_s, usual * launch_s, least, purpose)


def tune_need(first: Trial, workload: Workload, max_launches: int | None) -> Need:
    """Estimate the need of a tune from its first launch that completed."""
    most = max_launches if max_launches is not None else _USUAL_CANDIDATES + 1
    proof_s = proof_seconds(first, workload)
    least, usual = (min(count, most - 1) for count in (_FEWEST_CANDIDATES, _USUAL_CANDIDATES))
    rounds = _ROUND_LAUNCHES if least else 0  # without candidates there are no rounds

    def seconds(candidates: int) -> float:
        return first.seconds * (1 + candidates + rounds) + proof_s * _PROOF_LAUNCHES

    candidates = f"{least} candidate{'s' if least > 1 else ''}"
    return Need(
        seconds(least),
        seconds(usual),
        1 + least + rounds + _PROOF_LAUNCHES,
        f"to try {candidates} and prove the best" if least else "to prove the baseline",
        proof_s,
    )


def proof_seconds(first: Trial, workload: Workload) -> float:
    """Estimate from another launch the seconds that two requests at full context take."""
    pp = median_metric(first.measurement, workload, "pp")
    tg = median_metric(first.measurement, workload, "tg")
    if not pp or not tg or first.measurement is None:
        return first.seconds
    predicted = workload.longest_predicted_tokens
    prompt = max(1, workload.slot_context - predicted - CONTEXT_RESERVE_TOKENS)
    requests_s = 2 * (prompt / pp + predicted / tg)
    return max(first.seconds, (first.measurement.load_s or 0.0) + requests_s)


def shortage(budget: Budget, launch_s: float, need: Need) -> str | None:
    """Return a warning with a better budget if the budget is too small, or None if it is not."""
    if budget.total_s is None or budget.total_s >= need.least_s:
        return None
    count = max(1, int(budget.total_s / max(0.1, launch_s)))
    launches = "1 launch" if count == 1 else f"about {count} launches"
    text = (
        f"use --budget {_format_option(need.usual_s)}: a launch takes "
        f"{_round_seconds(launch_s)}, so {_format_budget(budget.total_s)} is enough for "
        f"{launches}, but it takes {need.least_launches} {need.purpose}"
    )
    if need.proof_s and need.proof_s > budget.total_s - launch_s:
        text += f" (the proof alone takes {_round_seconds(need.proof_s)}, whatever the budget)"
    return text


def first_shortage(
    trials: Sequence[Trial], budget: Budget, need_of: Callable[[Trial], Need]
) -> str | None:
    """Return the warning of `shortage` if the last trial is the first that completed."""
    completed = [trial for trial in trials if trial.is_completed]
    if len(completed) != 1 or completed[0] is not trials[-1]:
        return None
    return shortage(budget, completed[0].seconds, need_of(completed[0]))


def _round_seconds(seconds: float) -> str:
    """Format an estimated duration, rounded to a sensible number of digits."""
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    return f"{seconds / 60:.0f} min"


def _format_budget(seconds: float) -> str:
    """Format a budget as the user typed it."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g} min" if minutes > 1 and not rest else f"{seconds:g} s"


def _format_option(seconds: float) -> str:
    """Format a duration as a value for `--budget`, rounded up."""
    if seconds <= 50:  # noqa: PLR2004
        return f"{math.ceil(seconds / 10) * 10}s"
    if seconds <= 90 * 60:
        return f"{math.ceil(seconds / 60)}m"
    return f"{math.ceil(seconds / 1800) / 2:g}h"
