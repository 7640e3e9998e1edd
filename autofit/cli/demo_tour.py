"""What the demo shows beside its own tune: a recorded cliff, and a plan for two cards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.text import Text

from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.output.text.plan_table import print_layout
from autofit.plan.memory_plan import PlannedLayout, make_plan
from autofit.replay.recorded_table import PARAMS, RecordedTable, TableRow, find_table, read_table
from autofit.replay.replay_table import TableProblem, replay, summarize
from autofit.session.build_task import build_task
from autofit.session.task_options import TaskOptions
from autofit.text_format import number

# A sweep on an 8 GB card that pages video memory to system RAM without an error.
TABLE = "rtx5060ti-8gb_qwen36-35b_win"
_SEEDS = 20

# A model of 18 GB for the plan: its header alone, the data a hole.
_PLANNED = SynthSpec(
    layers=40,
    experts=256,
    used=8,
    embd=2048,
    ff=512,
    heads=16,
    kv_heads=2,
    head_dim=256,
    vocab=32768,
    ctx=131072,
    type="q4_k",
    embd_type="q8_0",
    header_only=True,
)
_CARDS_MIB = {"CUDA0": 12288.0, "CUDA1": 8192.0}


def tour(console: Console, task: TaskOptions) -> None:
    """Print both; `task` are the demo's own options, with which the plan shares defaults."""
    _say(console, "\nRECORDED, not measured here: what the search is for on a real GPU")
    recorded = read_table(find_table(TABLE))
    _say(console, f"{_source(find_table(TABLE))}")
    for line in _walk(recorded):
        _say(console, line)
    table = TableProblem(recorded)
    told = summarize(
        table, [replay(table, seed=seed, max_launches=None) for seed in range(_SEEDS)]
    )
    reached = told["launches_to_98pct"]
    _say(
        console,
        f"replayed {_SEEDS} times, the search found {number(told['best_found'])} of at best "
        f"{number(told['best_possible'])} t/s, "
        + (
            f"within 2% of it after {reached:g} of {told['settings']} launches (median)"
            if reached is not None
            else "in most replays more than 2% below it"
        ),
    )
    _say(console, "\nPLANNED, nothing launched: an 18 GB model on cards of 12 and 8 GB")
    print_layout(_two_cards(task), console)


def _say(console: Console, text: str) -> None:
    console.print(Text(text))


def _source(path: Path) -> str:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    # Where it was published, then the machine, model and build.
    return first.removeprefix("# source:").partition(";")[2].strip()


def _walk(table: RecordedTable) -> Iterator[str]:
    """The sweep over host expert layers, from many to few, with the edge and its cliff."""
    layers = list(PARAMS).index("ncmoe")
    by_layers: dict[int, list[TableRow]] = {}
    for row in table.rows:
        if row.settings[layers] != "":
            by_layers.setdefault(int(row.settings[layers]), []).append(row)
    last: tuple[int, float] | None = None
    for host_layers in sorted(by_layers, reverse=True):
        rows = by_layers[host_layers]
        speeds = [row.tg_per_s for row in rows if row.tg_per_s is not None]
        if not speeds:
            continue
        speed, ran = median(speeds), all(row.is_ok for row in rows)
        state = "runs" if ran else f"{rows[0].status} (no error was shown)"
        yield f"  n_cpu_moe {host_layers:>3}: {speed:5.1f} t/s generated, {state}"
        if last is not None and not ran:
            yield (
                f"  boundary: {last[0]} fits, {host_layers} does not; "
                f"cliff: {last[0] - host_layers} layers more on the card leave "
                f"{speed / last[1]:.0%} of the speed"
            )
            return
        last = (host_layers, speed)


def _two_cards(task: TaskOptions) -> PlannedLayout:
    with tempfile.TemporaryDirectory(prefix="autofit-demo-") as folder:
        model = Path(folder) / "planned.gguf"
        write_model(_PLANNED, model)
        options = replace(
            task,
            model=model,
            dialect="llama_server",
            space="moe",
            workload="chat",
            devices_mib=_CARDS_MIB,
            pins={"threads": 8},
        )
        plan = make_plan(build_task(options, allow_missing=True), None)
    return plan.recommended or plan.layouts[0]
