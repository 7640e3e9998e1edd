"""How many launches a search needs, on simulated machines and on recorded tables.

    python tests/benchmarks/bench_search.py [--machines 30] [--seeds 20] [--rival-seeds 20]
        [--first 0] [--jobs 2] [--only NAME ...] [--cache FILE] [--output FILE]

Every search has the same space, baseline and memory filter. Launches are those of baseline,
boundary and search, failures included, until the pick is within 2% of the best point of the
space, both without noise; a search that never gets there counts as 200.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# The benchmark is also run as a program, from any folder.
sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.search_machine import SearchMachine
from benchmarks.search_rivals import STRATEGIES
from benchmarks.search_run import MOST_LAUNCHES, Outcome, run_autofit, run_rival
from benchmarks.search_table import table_lines
from fakes.random_machine import random_case

OURS = "autofit"
HABITS = {"ubatch": 2048, "load_mode": "none", "cache_type_k": "q8_0", "cache_type_v": "q8_0"}


@dataclass(slots=True)
class MachineResult:
    """All searches of one machine; `references` are what needs no launch, as shares."""

    seed: int
    devices: int
    effects: tuple[str, ...]
    noise: float
    best_s: float
    references: dict[str, float]
    runs: dict[str, list[Outcome]] = field(default_factory=dict)


def measure(seed: int, best: float | None, counts: dict[str, int]) -> MachineResult:
    """Search one machine with every strategy, as often as `counts` says."""
    with tempfile.TemporaryDirectory(prefix="bench-search-") as folder:
        machine = SearchMachine(random_case(seed), Path(folder))
        best_s = machine.optimum()[0] if best is None else best
        noise = machine.case.machine.noise
        fitted, habits = machine.fitted_truth(), machine.fitted_truth(**HABITS)
        result = MachineResult(
            seed=seed,
            devices=len(machine.situation.devices),
            effects=machine.case.machine.effects,
            noise=max(noise.launch_prompt, noise.launch_decode),
            best_s=best_s,
            references={
                "the runtime's own fit": best_s / fitted if fitted else 0.0,
                "that fit and three habits": best_s / habits if habits else 0.0,
            },
        )
        for name, count in counts.items():
            result.runs[name] = [
                run_autofit(machine, best_s, k)
                if name == OURS
                else run_rival(machine, best_s, k, name)
                for k in range(count)
            ]
    return result


def censored(outcome: Outcome) -> int:
    """Launches until good enough, 200 where never."""
    return MOST_LAUNCHES if outcome.reached is None else outcome.reached


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that is at least as large as that share of them."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def summary_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """One line for each strategy, over all runs of all machines."""
    yield "| search | median | 90th percentile | reached | failures | times ours |"
    yield "| --- | --- | --- | --- | --- | --- |"
    ours = None
    for name in (OURS, *STRATEGIES):
        runs = [run for result in results for run in result.runs.get(name, ())]
        if not runs:
            continue
        launches = [censored(run) for run in runs]
        middle = median(launches)
        ours = middle if name == OURS else ours
        reached = sum(run.reached is not None for run in runs) / len(runs)
        failures = median(run.failures for run in runs)
        times = f"{middle / ours:.1f}" if ours else ""
        yield (
            f"| {name} | {middle:g} | {quantile(launches, 0.9):g} | {reached:.0%} "
            f"| {failures:g} | {times} |"
        )


def own_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """What a tune ends with, and the two references that need no launch."""
    runs = [(result, run) for result in results for run in result.runs.get(OURS, ())]
    if not runs:
        return
    last = [run.share for _, run in runs]
    confirmed = [run.confirmed for _, run in runs]
    seconds = [one for _, run in runs for one in run.seconds]
    yield "| what | value |"
    yield "| --- | --- |"
    yield f"| launches until the search ends, median | {median(r.launches for _, r in runs):g} |"
    yield f"| last pick of the search within 2% | {_share_good(last)} |"
    yield f"| winner of the confirmation within 2% | {_share_good(confirmed)} |"
    yield f"| winner within 5% | {sum(s >= 0.95 for s in confirmed) / len(confirmed):.0%} |"
    for name in results[0].references:
        ratios = [
            run.confirmed / result.references[name]
            for result, run in runs
            if result.references[name] > 0 and run.confirmed > 0
        ]
        slower = sum(ratio < 1 - 1e-9 for ratio in ratios)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        share = math.exp(
            sum(math.log(r.references[name]) for r in results if r.references[name] > 0)
            / sum(r.references[name] > 0 for r in results)
        )
        yield (
            f"| winner over {name} (which is at {share:.0%} of the best, geometric mean) "
            f"| {mean:.2f} times as fast, slower in {slower} of {len(ratios)} |"
        )
    yield (
        f"| own computing for a proposal | {median(seconds):.2f} s median, "
        f"{quantile(seconds, 0.9):.2f} s 90th percentile |"
    )


def _share_good(shares: Sequence[float]) -> str:
    return f"{sum(share >= 0.98 for share in shares) / len(shares):.0%}"


def machine_lines(results: Sequence[MachineResult]) -> Iterator[str]:
    """One line for each machine: medians of every search."""
    names = [name for name in (OURS, *STRATEGIES) if results[0].runs.get(name)]
    head = ["machine", "devices", "noise", "effects without a term", *names, "90% of ours"]
    yield f"| {' | '.join(head)} | failures | winner |"
    yield "| " + " | ".join("---" for _ in range(len(head) + 2)) + " |"
    for result in results:
        ours = result.runs.get(OURS, [])
        cells = [
            str(result.seed),
            str(result.devices),
            f"{result.noise:.1%}",
            ", ".join(result.effects).replace("_", " ") or "-",
        ]
        cells += [f"{median(map(censored, result.runs[name])):g}" for name in names]
        cells += [
            f"{quantile([censored(run) for run in ours], 0.9):g}",
            f"{median(run.failures for run in ours):g}",
            f"{median(run.confirmed for run in ours):.3f}",
        ]
        yield f"| {' | '.join(cells)} |"


def report(results: Sequence[MachineResult], seeds: int) -> str:
    """The whole table as Markdown."""
    odd = sum(bool(result.effects) for result in results)
    noises = [result.noise for result in results]
    lines = [
        "# Launches until the search is good enough",
        "",
        (
            f"Made by `tests/benchmarks/bench_search.py`: {len(results)} simulated machines, "
            f"{odd} of them with effects that"
        ),
        (
            f"the model has no term for, noise {min(noises):.1%} to {max(noises):.0%} between "
            f"launches, {seeds} searches of each machine."
        ),
        (
            "Launches are those of baseline, boundary and search, failures included, until "
            "the pick is within 2% of the"
        ),
        (
            "best point of the space (both without noise); a search that never gets there "
            f"counts as {MOST_LAUNCHES}. All have"
        ),
        (
            "the same space (`search_spaces/moe.yaml`), baseline, and memory filter. Rivals pick "
            "what they measured as fastest."
        ),
        "",
        *summary_lines(results),
        "",
        *own_lines(results),
        "",
        "## By machine",
        "",
        *machine_lines(results),
        "",
    ]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed of the first machine")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rival-seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="strategies; all without it")
    parser.add_argument("--tables", action="store_true", help="recorded tables only")
    parser.add_argument("--cache", type=Path, help="keeps optima and finished machines")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _kept(path: Path | None) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path and path.exists() else {}


def _machines(options: argparse.Namespace) -> list[MachineResult]:
    counts = {OURS: options.seeds, **dict.fromkeys(STRATEGIES, options.rival_seeds)}
    if options.only:
        counts = {name: count for name, count in counts.items() if name in options.only}
    optima = _kept(options.cache)
    results = []
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = {
            pool.submit(measure, seed, optima.get(str(seed)), counts): seed
            for seed in range(options.first, options.first + options.machines)
        }
        for done in as_completed(waiting):
            result = done.result()
            results.append(result)
            optima[str(result.seed)] = result.best_s
            print(json.dumps(_short(result)), file=sys.stderr, flush=True)
            if options.cache:
                options.cache.write_text(json.dumps(optima), "utf-8")
    return sorted(results, key=lambda result: result.seed)


def _short(result: MachineResult) -> dict[str, Any]:
    told = asdict(result)
    told["runs"] = {
        name: {
            "launches": [censored(run) for run in runs],
            "failures": [run.failures for run in runs],
            "ended": [run.launches for run in runs],
            "share": [round(run.share, 3) for run in runs],
            "confirmed": [round(run.confirmed, 3) for run in runs],
        }
        for name, runs in result.runs.items()
    }
    return told


def main() -> None:
    """Run and print."""
    options = _arguments()
    text = "" if options.tables else report(_machines(options), options.seeds)
    if options.tables or not options.only:
        text += "\n".join(table_lines(options.seeds)) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
