"""`autofit replay`: run the search on a recorded table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.arguments import MODEL
from autofit.cli.options.completion import complete_tables
from autofit.cli.options.count_option import CountOption
from autofit.cli.say import say
from autofit.errors import UsageError
from autofit.session.task_options import parse_devices
from autofit.text_format import number
from autofit.trial.metric import METRICS, Metric

if TYPE_CHECKING:
    from autofit.replay.replay_table import TableMachine

_UNITS = {"request_s": "s", "ttft": "s", "pp": "t/s", "tg": "t/s"}


@click.command("replay")
@click.argument("table", shell_complete=complete_tables)
@click.option(
    "--objective",
    type=click.Choice(METRICS),
    help="The metric to improve. Default: the one that most rows have.",
)
@click.option(
    "--model",
    type=MODEL,
    help="The table's model as a GGUF file, to predict memory.",
)
@click.option(
    "--device",
    "device",
    multiple=True,
    metavar="NAME=MIB",
    help="A device of the table's machine, to predict memory. Repeat for several.",
)
@click.option(
    "--max-launches",
    cls=CountOption,
    type=click.IntRange(1),
    help="Stop after this many launches.",
)
@click.option(
    "--seeds",
    cls=CountOption,
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Number of replays.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
def command(
    table: str,
    *,
    objective: Metric | None,
    model: Path | None,
    device: tuple[str, ...],
    max_launches: int | None,
    seeds: int,
    as_json: bool,
) -> None:
    """Run the search on TABLE, a recorded CSV file or the name of a bundled one.

    Each seed is one search. Its launches can only be rows of the table, from the largest group
    with equal context, prompt and generation.
    """
    # Imported late, so that --help is quick.
    from autofit.replay.recorded_table import find_table, read_table
    from autofit.replay.replay_table import TableProblem, replay, summarize

    recorded = read_table(find_table(table), objective)
    problem = TableProblem(recorded, _read_machine(model, device))
    runs = [replay(problem, seed=seed, max_launches=max_launches) for seed in range(seeds)]
    result = summarize(problem, runs)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        for line in _lines(result):
            say(line)


def _read_machine(model: Path | None, devices: tuple[str, ...]) -> TableMachine | None:
    if (model is None) != (not devices):
        raise UsageError("--model and --device must be given together", "give both or neither")
    if model is None:
        return None
    from autofit.model.sizes.inventory import read_inventory
    from autofit.replay.replay_table import TableMachine
    from autofit.trial.device import Device

    found = []
    for name, mib in parse_devices(devices).items():
        if mib is None:
            raise UsageError(
                f"--device {name} has no size", f"give one, for example --device {name}=12288"
            )
        found.append(Device(name, "", mib, mib))
    return TableMachine(read_inventory(model), tuple(found))


def _lines(result: dict[str, Any]) -> Iterator[str]:
    unit = _UNITS[result["metric"]]
    group = ", ".join(f"{name} {value}" for name, value in result["group"].items() if value)
    yield (
        f"{result['table']}: {result['rows']} rows of {result['settings']} settings"
        f"{f' ({group})' if group else ''}, by {result['metric']}"
    )
    reached = result["launches_to_98pct"]
    seeds = result["per_seed"]
    count = len(seeds)
    successes = sum(seed["launches_to_98pct"] is not None for seed in seeds)
    of_seeds = f" ({successes} of {count} seeds reached it)" if count > 1 else ""
    launches = "not reached" if reached is None else f"{reached:g}"
    yield f"  launches to 98% of the best  {launches}{of_seeds}"
    yield f"  failed launches              {result['failures']:g}"
    best = result["best_found"]
    found = "nothing" if best is None else f"{number(best)} {unit}"
    yield f"  found                        {found}"
    yield f"  best possible                {number(result['best_possible'])} {unit}"
    yield f"  medians of {count} seeds" if count > 1 else "  of one seed"
