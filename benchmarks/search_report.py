"""Results of searches on simulated machines, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.search_rivals import STRATEGIES
from benchmarks.search_run import GOOD_ENOUGH, MOST_LAUNCHES, Outcome
from benchmarks.search_store import OURS, MachineFacts


@dataclass(frozen=True, slots=True)
class MachineResult:
    """All searches of one machine, by strategy."""

    facts: MachineFacts
    runs: dict[str, list[Outcome]]


def censored(outcome: Outcome) -> int:
    """Launches until good enough, 200 where never."""
    return MOST_LAUNCHES if outcome.reached is None else outcome.reached


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def summary_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """One line for each strategy, over all its runs.

    A strategy that was not run on all machines is compared with ours on those where it was.
    """
    yield (
        "| search | machines | runs | median | 90th percentile | reached | failures | times ours |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in (OURS, *STRATEGIES):
        searched = [result for result in results if result.runs.get(name)]
        runs = _runs(searched, name)
        if not runs:
            continue
        launches = [censored(run) for run in runs]
        middle = median(launches)
        ours = [censored(run) for run in _runs(searched, OURS)]
        reached = sum(run.reached is not None for run in runs) / len(runs)
        failures = median(run.failures for run in runs)
        times = f"{middle / median(ours):.1f}" if ours else ""
        yield (
            f"| {name} | {len(searched)} | {len(runs)} | {middle:g} "
            f"| {quantile(launches, 0.9):g} | {reached:.0%} | {failures:g} | {times} |"
        )


def _runs(results: Sequence[MachineResult], name: str) -> list[Outcome]:
    return [run for result in results for run in result.runs.get(name, ())]


def own_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """Yield the rows of tunes and of the two references that need no launch."""
    runs = [(result.facts, run) for result in results for run in result.runs.get(OURS, ())]
    if not runs:
        return
    last = [run.share for _, run in runs]
    confirmed = [run.confirmed for _, run in runs]
    yield "| what | value |"
    yield "| --- | --- |"
    yield f"| launches until the search ends, median | {median(r.launches for _, r in runs):g} |"
    yield f"| last pick of the search within 2% | {_share_good(last)} |"
    yield f"| winner of the confirmation within 2% | {_share_good(confirmed)} |"
    yield f"| winner within 5% | {sum(s >= 0.95 for s in confirmed) / len(confirmed):.0%} |"
    for name in results[0].facts.references:
        yield from _reference_lines(name, runs)
    yield from _second_lines(results)


def group_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """Yield a table of winners and launches: all machines, by number of devices, by effect."""
    groups: dict[str, list[MachineResult]] = {"all machines": list(results)}
    for result in results:
        count = "one device" if result.facts.devices == 1 else "several devices"
        groups.setdefault(count, []).append(result)
        for effect in result.facts.effects or ("none",):
            groups.setdefault(f"{effect.replace('_', ' ')}, {count}", []).append(result)
    yield (
        "| machines | number | winner, geometric mean | within 5% | launches of the search, "
        "median | 90th percentile | failures, most | equal launches | placement again |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for name in sorted(groups, key=lambda name: (", " in name, name)):
        runs = _runs(groups[name], OURS)
        if not runs:
            continue
        shares = [max(run.confirmed, 0.01) for run in runs]
        launches = [run.launches for run in runs]
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        close = sum(share >= 0.95 for share in shares) / len(shares)
        yield (
            f"| {name} | {len(groups[name])} | {mean:.3f} | {close:.0%} | {median(launches):g} "
            f"| {quantile(launches, 0.9):g} | {max(run.failures for run in runs)} "
            f"| {sum(run.equal for run in runs) / sum(launches):.1%} "
            f"| {sum(run.same_placement for run in runs) / sum(launches):.1%} |"
        )


def _reference_lines(name: str, runs: Sequence[tuple[MachineFacts, Outcome]]) -> Iterator[str]:
    known = [(facts, run) for facts, run in runs if facts.references[name] > 0 and run.confirmed]
    if not known:
        return
    ratios = [run.confirmed / facts.references[name] for facts, run in known]
    slower = sum(ratio < 1 - 1e-9 for ratio in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    share = math.exp(sum(math.log(facts.references[name]) for facts, _ in known) / len(known))
    yield (
        f"| winner over {name} (which is at {share:.0%} of the best, geometric mean) "
        f"| {mean:.2f} times as fast, slower in {slower} of {len(ratios)} |"
    )


def _second_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """Own computing, of the searches that were timed."""
    timed = [run.seconds for result in results for run in result.runs.get(OURS, ()) if run.seconds]
    if timed:
        every = [one for seconds in timed for one in seconds]
        longest = [max(seconds) for seconds in timed]
        yield (
            f"| own computing for a proposal | {median(every):.2f} s median, "
            f"{quantile(every, 0.9):.2f} s 90th percentile; the longest of a search "
            f"{median(longest):.2f} s median, {max(longest):.2f} s at most |"
        )


def _share_good(shares: Sequence[float]) -> str:
    return f"{sum(share >= GOOD_ENOUGH for share in shares) / len(shares):.0%}"


def machine_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """One line for each machine: medians of every search."""
    names = [name for name in (OURS, *STRATEGIES) if any(r.runs.get(name) for r in results)]
    head = ["machine", "devices", "noise", "effects without a term", *names, "90% of ours"]
    yield f"| {' | '.join(head)} | failures | winner |"
    yield "| " + " | ".join("---" for _ in range(len(head) + 2)) + " |"
    for result in results:
        facts, ours = result.facts, result.runs.get(OURS, [])
        cells = [
            str(facts.seed),
            str(facts.devices),
            f"{facts.noise:.1%}",
            ", ".join(facts.effects).replace("_", " ") or "-",
        ]
        for name in names:
            runs = result.runs.get(name)
            cells.append(f"{median(map(censored, runs)):g}" if runs else "")
        if ours:
            cells += [
                f"{quantile([censored(run) for run in ours], 0.9):g}",
                f"{median(run.failures for run in ours):g}",
                f"{median(run.confirmed for run in ours):.3f}",
            ]
        else:
            cells += ["", "", ""]
        yield f"| {' | '.join(cells)} |"
