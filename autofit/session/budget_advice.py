"""Whether a budget is enough for what a run is to make with it, known after its first launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autofit.runtime.server.request_plan import CONTEXT_RESERVE_TOKENS
from autofit.session.budget import Budget
from autofit.trial.metric import median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

# A tune that is worth its time: beside the baseline so many candidates are tried, then four
# rounds of two are made, and the winner's proof and its answers take three launches.
_LEAST_CANDIDATES = 3
_SENSIBLE_CANDIDATES = 10
_ROUND_LAUNCHES = 8
_PROOF_LAUNCHES = 3


@dataclass(frozen=True, slots=True)
class Need:
    """What a run takes at least, and what it sensibly takes, in seconds and launches.

    `purpose` says what the least is for, such as "telling which is faster". A proof of `proof_s`
    is made even where the budget is spent.
    """

    least_s: float
    sensible_s: float
    least_launches: int
    purpose: str
    proof_s: float = 0.0


def launches_need(launch_s: float, least: int, sensible: int, purpose: str) -> Need:
    """The need of launches that all take about as long."""
    return Need(least * launch_s, sensible * launch_s, least, purpose)


def tune_need(first: Trial, workload: Workload, max_launches: int | None) -> Need:
    """What a tune takes, by its first launch that completed."""
    most = max_launches if max_launches is not None else _SENSIBLE_CANDIDATES + 1
    proof_s = proof_seconds(first, workload)

    least = min(_LEAST_CANDIDATES, most - 1)
    sensible = min(_SENSIBLE_CANDIDATES, most - 1)
    rounds = _ROUND_LAUNCHES if least else 0  # the baseline alone meets nobody

    def seconds(candidates: int) -> float:
        return first.seconds * (1 + candidates + rounds) + proof_s * _PROOF_LAUNCHES

    candidates = f"{least} candidate{'s' if least > 1 else ''}"
    return Need(
        seconds(least),
        seconds(sensible),
        1 + least + rounds + _PROOF_LAUNCHES,
        f"trying {candidates}, confirming the best and proving it"
        if least
        else "proving the baseline",
        proof_s,
    )


def proof_seconds(first: Trial, workload: Workload) -> float:
    """About how long a launch with two requests that fill the context takes, by another launch."""
    pp = median_metric(first.measurement, workload, "pp")
    tg = median_metric(first.measurement, workload, "tg")
    if not pp or not tg or first.measurement is None:
        return first.seconds
    predicted = workload.longest_predicted_tokens
    prompt = max(1, workload.slot_context - predicted - CONTEXT_RESERVE_TOKENS)
    requests_s = 2 * (prompt / pp + predicted / tg)
    return max(first.seconds, (first.measurement.load_s or 0.0) + requests_s)


def shortage(budget: Budget, launch_s: float, need: Need) -> str | None:
    """In words that a budget is too small and what would be sensible; None where it is enough."""
    if budget.total_s is None or budget.total_s >= need.least_s:
        return None
    allowed = int(budget.total_s / max(0.1, launch_s))
    count = f"about {allowed} launches" if allowed > 1 else "no more than one launch"
    proof = ""
    if need.proof_s > budget.total_s - launch_s:
        proof = (
            f"; the proof at full context, without which there is no result, takes "
            f"{_rounded(need.proof_s)} or more whatever the budget"
        )
    return (
        f"a launch takes about {_rounded(launch_s)} here, so the budget of "
        f"{_exact(budget.total_s)} allows {count}; {need.purpose} takes about "
        f"{need.least_launches}, {_rounded(need.least_s)} in all: a budget of "
        f"{_option(need.sensible_s)} would be sensible{proof}"
    )


def first_shortage(
    trials: Sequence[Trial], budget: Budget, need_of: Callable[[Trial], Need]
) -> str | None:
    """Return the warning of `shortage` if the last trial is the first one that completed."""
    completed = [trial for trial in trials if trial.is_completed]
    if len(completed) != 1 or completed[0] is not trials[-1]:
        return None
    return shortage(budget, completed[0].seconds, need_of(completed[0]))


def _rounded(seconds: float) -> str:
    """A span of time with as many digits as an estimate has."""
    if seconds < 120:  # noqa: PLR2004 - two minutes
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"  # noqa: PLR2004
    return f"{seconds / 60:.0f} min"


def _exact(seconds: float) -> str:
    """A budget as it was given."""
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g} min" if minutes > 1 and not rest else f"{seconds:g} s"


def _option(seconds: float) -> str:
    """A span rounded up to what a user would give as `--budget`."""
    if seconds <= 50:  # noqa: PLR2004
        return f"{math.ceil(seconds / 10) * 10}s"
    if seconds <= 90 * 60:
        return f"{math.ceil(seconds / 60)}m"
    return f"{math.ceil(seconds / 1800) / 2:g}h"
