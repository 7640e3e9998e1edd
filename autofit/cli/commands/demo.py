"""`autofit demo`: a complete tune of a small model on any machine, and two examples for GPUs."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.shared_options import RunOptions
from autofit.cli.say import say
from autofit.session.task_options import TaskOptions
from autofit.text_format import number

if TYPE_CHECKING:
    from rich.console import Console

    from autofit.plan.memory_plan import PlannedLayout
    from autofit.replay.recorded_table import RecordedTable, TableRow
    from autofit.study.study_folder import Study

_BUDGET_S = 120.0
_MAX_LAUNCHES = 14

# A recorded table of an 8 GB card whose driver moves video memory to system RAM silently.
TABLE = "rtx5060ti-8gb_qwen36-35b_win"
_SEEDS = 20
# A model of 18 GB for the plan. Only its header is written; the rest of the file is a hole.
_PLANNED_MODEL = {
    "layers": 40,
    "experts": 256,
    "used": 8,
    "embd": 2048,
    "ff": 512,
    "heads": 16,
    "kv_heads": 2,
    "head_dim": 256,
    "vocab": 32768,
    "ctx": 131072,
    "type": "q4_k",
    "embd_type": "q8_0",
    "header_only": True,
}
_PLANNED_CARDS_MIB = {"CUDA0": 12288.0, "CUDA1": 8192.0}


@click.command("demo")
@click.option(
    "--study",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder for all measurements (the study). Default: a new one in results/.",
)
@click.option(
    "--resume", is_flag=True, help="Continue the study in --study; no launch is repeated."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="Print all settings and figures of each launch."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(study: Path | None, *, resume: bool, verbose: bool, as_json: bool) -> int:
    """Tune a small model of random weights on this machine's CPU, in under three minutes.

    It writes a preset, a report and a study folder. The result is printed last, after two
    examples of what autofit does with GPUs: a replay of a recorded table, and a plan for two
    cards.
    """
    from autofit.cli.commands.tune import tune_model
    from autofit.cli.options.shared_options import require_study
    from autofit.model.synth.demo_model import make_demo_model

    require_study(study, resume=resume)
    model = make_demo_model()
    options = TaskOptions(
        model=model,
        dialect="embedded" if find_spec("xllamacpp") else None,
        space="cpu",
        workload="demo",
    )
    say(f"tuning {model.name} (random weights) on this machine's CPU", err=True)
    done = tune_model(
        options,
        # Speeds of random weights are only an example: other runs may disturb them.
        RunOptions(study, resume, _BUDGET_S, verbose, locks_machine=False, keeps_knowledge=False),
        max_launches=_MAX_LAUNCHES,
        is_fresh=True,
        checks_answers=False,  # answers of random weights mean nothing
    )
    return 0 if done is None else print_demo(*done, options, as_json=as_json)


def print_demo(
    result: dict[str, Any], study: Study, options: TaskOptions, *, as_json: bool
) -> int:
    """Print the examples, and then the result of the tune on the same stream."""
    from rich.text import Text

    from autofit.cli.commands.tune import print_result
    from autofit.output.text.console import make_console
    from autofit.output.text.plan_table import print_layout

    console: Console = make_console(sys.stderr if as_json else sys.stdout)
    for line in _replay_lines():
        console.print(Text(line))
    console.print(Text("\nPLANNED, nothing launched: an 18 GB model on cards of 12 and 8 GB"))
    print_layout(_plan_two_cards(options), console)
    return print_result(result, study, as_json=as_json)


def _replay_lines() -> Iterator[str]:
    """Yield lines about the cliff in a recorded table, and about the search on that table."""
    from autofit.replay.recorded_table import find_table, read_table
    from autofit.replay.replay_table import TableProblem, replay, summarize

    path = find_table(TABLE)
    recorded = read_table(path)
    yield "\nRECORDED, not measured here: the effect of one setting on a real GPU"
    # The first line names the publication, and then machine, model and build.
    source = path.read_text(encoding="utf-8").splitlines()[0]
    yield source.removeprefix("# source:").partition(";")[2].strip()
    yield from _cliff_lines(recorded)
    table = TableProblem(recorded)
    runs = [replay(table, seed=seed, max_launches=None) for seed in range(_SEEDS)]
    found = summarize(table, runs)
    launches = found["launches_to_98pct"]
    reached = "in most replays it stayed more than 2% below that"
    if launches is not None:
        reached = (
            f"it came within 2% of that after {launches:g} of {found['settings']} launches "
            "(median)"
        )
    yield (
        f"in {_SEEDS} replays the search found {number(found['best_found'])} of at best "
        f"{number(found['best_possible'])} t/s; {reached}"
    )


def _cliff_lines(table: RecordedTable) -> Iterator[str]:
    """Yield a line with the speed for each count of host expert layers, down to the cliff."""
    from autofit.replay.recorded_table import PARAMS

    column = list(PARAMS).index("ncmoe")
    rows_by_layers: dict[int, list[TableRow]] = {}
    for row in table.rows:
        if row.settings[column] != "":
            rows_by_layers.setdefault(int(row.settings[column]), []).append(row)
    last: tuple[int, float] | None = None
    for host_layers, rows in sorted(rows_by_layers.items(), reverse=True):
        speeds = [row.tg_per_s for row in rows if row.tg_per_s is not None]
        if not speeds:
            continue
        speed, runs = median(speeds), all(row.is_ok for row in rows)
        state = "runs" if runs else f"{rows[0].status} (no error was shown)"
        yield f"  n_cpu_moe {host_layers:>3}: {speed:5.1f} t/s generated, {state}"
        if last is not None and not runs:
            yield (
                f"  boundary: {last[0]} fits, {host_layers} does not; "
                f"cliff: with {last[0] - host_layers} more layers on the card, "
                f"{speed / last[1]:.0%} of the speed is left"
            )
            return
        last = (host_layers, speed)


def _plan_two_cards(options: TaskOptions) -> PlannedLayout:
    """Return the best layout of an 18 GB model on two cards, which need not exist."""
    from autofit.model.synth.random_model import SynthSpec, write_model
    from autofit.plan.memory_plan import make_plan
    from autofit.session.build_task import build_task

    with tempfile.TemporaryDirectory(prefix="autofit-demo-") as folder:
        model = Path(folder) / "planned.gguf"
        write_model(SynthSpec(**_PLANNED_MODEL), model)  # type: ignore[arg-type]
        planned = replace(
            options,
            model=model,
            dialect="llama_server",
            space="moe",
            workload="chat",
            devices_mib=_PLANNED_CARDS_MIB,
            pins={"threads": 8},
        )
        plan = make_plan(build_task(planned, allow_missing=True), None)
    return plan.recommended or plan.layouts[0]
