"""Number of launches that a search needs, on simulated machines and on recorded tables.

    python benchmarks/bench_search.py [--machines 30] [--seeds 20] [--rival-seeds 20]
        [--first 0] [--jobs 2] [--only NAME ...] [--effects] [--store FOLDER] [--no-run]
        [--tables] [--output FILE]

With `--effects` the machines are those of `tests/fakes/effect_machine.py`: one effect each that
decides which settings are best.

Every search has the same space, baseline and memory filter. Launches are those of baseline,
boundary and search, failures included, until the pick is within 2% of the best point of the
space, both without noise; a search that never gets there counts as 200. What is finished lies
in the store: the benchmark can be stopped, resumed, and printed while it runs (`--no-run`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

# The benchmark is also run as a program, from any folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from fakes.effect_machine import effect_case
from fakes.random_machine import Case, random_case

from benchmarks.search_machine import SearchMachine
from benchmarks.search_optimum import optimum
from benchmarks.search_report import (
    MachineResult,
    group_lines,
    machine_lines,
    own_lines,
    summary_lines,
)
from benchmarks.search_rivals import STRATEGIES
from benchmarks.search_run import MOST_LAUNCHES, run_autofit, run_rival
from benchmarks.search_store import OURS, MachineFacts, SearchStore
from benchmarks.search_table import table_lines

HABITS = {"ubatch": 2048, "load_mode": "none", "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
STORES = {
    False: Path(tempfile.gettempdir()) / "autofit-bench-search",
    True: Path(tempfile.gettempdir()) / "autofit-bench-search-effects",
}
# Machines whose searches were looked at while the model was made; the others were held out.
SEEN = frozenset(seed for seed in range(30) if seed % 4 in (0, 1))


def measure(
    seed: int, counts: dict[str, int], folder: Path, make_case: Callable[[int], Case]
) -> int:
    """Search one machine with every strategy, as often as `counts` says; its seed again."""
    store = SearchStore(folder)
    missing = [
        (name, k)
        for name, count in counts.items()
        for k in range(count)
        if store.outcome(name, seed, k) is None
    ]
    facts = store.machine(seed)
    if facts is not None and not missing:
        return seed
    with tempfile.TemporaryDirectory(prefix="bench-search-") as place:
        machine = SearchMachine(make_case(seed), Path(place))
        if facts is None:
            facts = _facts(seed, machine)
            store.keep_machine(facts)
        for name, k in missing:
            if name == OURS:
                outcome = run_autofit(machine, facts.best_s, k)
            else:
                outcome = run_rival(machine, facts.best_s, k, name)
            store.keep(name, seed, k, outcome)
    return seed


def _facts(seed: int, machine: SearchMachine) -> MachineFacts:
    best_s, _ = optimum(machine)
    noise = machine.case.machine.noise
    fitted, habits = machine.fitted_truth(), machine.fitted_truth(**HABITS)
    return MachineFacts(
        seed=seed,
        devices=len(machine.task.devices),
        effects=(*machine.case.effects, *machine.case.machine.effects),
        noise=max(noise.launch_prompt, noise.launch_decode),
        best_s=best_s,
        references={
            "the runtime's own fit": best_s / fitted if fitted else 0.0,
            "that fit and three habits": best_s / habits if habits else 0.0,
        },
    )


def report(results: Sequence[MachineResult], *, has_effects: bool) -> str:
    """The whole table as Markdown."""
    odd = sum(bool(result.facts.effects) for result in results)
    noises = [result.facts.noise for result in results]
    held_out = [] if has_effects else [r for r in results if r.facts.seed not in SEEN]
    lines = [
        "# Launches until the search is good enough",
        "",
        (
            f"Made by `benchmarks/bench_search.py`: {len(results)} simulated machines, "
            f"{odd} of them with effects that"
        ),
        (
            f"the model has no term for, noise {min(noises):.1%} to {max(noises):.0%} between "
            "launches."
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
        *group_lines(results),
        "",
    ]
    if held_out and len(held_out) < len(results):
        lines += [
            f"## The {len(held_out)} machines that were not looked at while the model was made",
            "",
            *summary_lines(held_out),
            "",
            *own_lines(held_out),
            "",
        ]
    lines += ["## By machine", "", *machine_lines(results), ""]
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--machines", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="seed of the first machine")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rival-seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="strategies; all without it")
    parser.add_argument("--effects", action="store_true", help="machines with one effect each")
    parser.add_argument("--tables", action="store_true", help="recorded tables only")
    parser.add_argument("--store", type=Path, help="keeps what is finished")
    parser.add_argument("--no-run", action="store_true", help="print the contents of the store")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def _run(options: argparse.Namespace, seeds: Sequence[int]) -> None:
    counts = {OURS: options.seeds, **dict.fromkeys(STRATEGIES, options.rival_seeds)}
    if options.only:
        counts = {name: count for name, count in counts.items() if name in options.only}
    with ProcessPoolExecutor(options.jobs) as pool:
        case = effect_case if options.effects else random_case
        waiting = [pool.submit(measure, seed, counts, options.store, case) for seed in seeds]
        for done in as_completed(waiting):
            print(f"machine {done.result()} is done", file=sys.stderr, flush=True)


def _results(store: SearchStore, seeds: Sequence[int]) -> Iterator[MachineResult]:
    for seed in seeds:
        facts = store.machine(seed)
        if facts is not None:
            names = (OURS, *STRATEGIES)
            yield MachineResult(facts, {name: list(store.outcomes(name, seed)) for name in names})


def main() -> None:
    """Run and print."""
    options = _arguments()
    options.store = options.store or STORES[options.effects]
    seeds = range(options.first, options.first + options.machines)
    text = ""
    if not options.tables:
        if not options.no_run:
            _run(options, seeds)
        results = list(_results(SearchStore(options.store), seeds))
        text = report(results, has_effects=options.effects)
    if options.tables or not options.only:
        text += "\n".join(table_lines(options.seeds)) + "\n"
    print(text, end="")
    if options.output:
        options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
