"""Record a grid of settings of one model on one machine, as a table that `replay` reads.

    python benchmarks/cards/record_grid.py MODEL --runtime PATH --device CUDA0=12288 \
        --grid 'n_cpu_moe=17,18,19 ubatch=512,2048 cache_type=f16,q8_0' \
        --grid 'n_cpu_moe=24,32,40 ubatch=512,1024,4096 cache_type=f16,q8_0' \
        --prompt 2048 --generate 64 --repeats 2 --seconds 500 --study DIR --output FILE.csv

Grids are launched one after another, the points of each in random order, and all of them before
the first is repeated, so that a table for which the time did not suffice is a fair sample. An
existing study is gone on with. `layout=balanced,single:CUDA0` is an axis, too, and `n_cpu_moe`
takes `fewest+1`: the fewest that the estimate says will fit, and one more.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from autofit.cli.options.shared_options import RunOptions
from autofit.cli.run_setup import open_run
from autofit.memory.memory_model import MemoryModel
from autofit.runtime.server.request_plan import plan_measurement
from autofit.search.space import HOST_LAYERS_AXIS, LAYOUT_AXIS, Point
from autofit.session.build_task import build_task
from autofit.session.candidate_factory import CandidateFactory
from autofit.session.rounds import round_purpose
from autofit.session.task import Task
from autofit.session.task_options import TaskOptions, parse_devices
from autofit.session.task_setup import make_planner, search_header
from autofit.study.study_folder import Study
from autofit.trial.candidate import Candidate
from autofit.trial.metric import Metric, median_metric
from autofit.trial.trial import Trial
from autofit.trial.workload import Workload

COLUMNS = [
    "ncmoe",
    "batch",
    "ubatch",
    "ctk",
    "ctv",
    "tensor_split",
    "prefetch_slots",
    "load_mode",
    "n_ctx",
    "n_prompt",
    "n_gen",
    "pp_tps",
    "tg_tps",
    "status",
    "vram_mib",
    "notes",
]
_RATES: dict[str, Metric] = {"pp_tps": "pp", "tg_tps": "tg"}
_SETS = {"cache_type": ["cache_type_k", "cache_type_v"]}
# What a grid calls an axis, and what a point does.
_AXES = {"layout": LAYOUT_AXIS, "n_cpu_moe": HOST_LAYERS_AXIS}

Grid = dict[str, list[Any]]  # the values of each axis


def main() -> None:
    """Record the grid that the command line asks for."""
    given = _arguments()
    grids = [dict(_axis(text) for text in grid.split()) for grid in given.grid]
    folder = given.study.with_suffix(".task")
    folder.mkdir(parents=True, exist_ok=True)
    options = _task(given, _union(grids), folder)
    task = build_task(options)
    factory, memory = CandidateFactory(task), task.memory_model(make_planner(task))
    for grid in grids:
        grid.setdefault("layout", list(factory.layout_names()[:1]))
        grid.setdefault("n_cpu_moe", [0])
    with open_run(
        RunOptions(given.study, resume=(given.study / "study.json").exists()),
        search_header(task, options, seed=given.seed, argv=sys.argv),
        [task],
        notices=(*task.inventory.notices, *task.notices),
    ) as run:
        runner = run.make_runner(task)
        started = time.monotonic()
        for repeat in range(1, given.repeats + 1):
            for point in _shuffled(grids, given.seed + repeat):
                if time.monotonic() - started > given.seconds:
                    return
                candidate = _placed(factory, memory, point)
                if candidate is None:
                    continue
                ubatch = candidate.get_int("ubatch", 512)
                request_plan = plan_measurement(task.workload, ubatch, repeats=given.requests)
                layout = str(point[LAYOUT_AXIS])
                runner.run(round_purpose(repeat), candidate, request_plan, layout=layout)
                write_table(run.study, task, given.output)


def _shuffled(grids: Sequence[Grid], seed: int) -> Iterator[Point]:
    """The points of each grid in random order, those of the first before those of the next."""
    for grid in grids:
        points = [
            {_AXES.get(name, name): value for name, value in zip(grid, values, strict=True)}
            for values in itertools.product(*grid.values())
        ]
        random.Random(seed).shuffle(points)
        yield from points


def _placed(factory: CandidateFactory, memory: MemoryModel, point: Point) -> Candidate | None:
    """Return the candidate of a point; host layers may count from the fewest that should fit."""
    given = point[HOST_LAYERS_AXIS]
    if isinstance(given, int):
        return factory.candidate_of(point)
    _, _, more = str(given).partition("+")
    for layers in range(factory.most_host_layers() + 1):
        candidate = factory.candidate_of({**point, HOST_LAYERS_AXIS: layers})
        if candidate is None or not _fits(memory, candidate):
            continue
        memory.ask_planner(candidate)
        if _fits(memory, candidate):
            host_layers = min(layers + int(more or 0), factory.most_host_layers())
            return factory.candidate_of({**point, HOST_LAYERS_AXIS: host_layers})
    return None


def _fits(memory: MemoryModel, candidate: Candidate) -> bool:
    predicted = memory.predict(candidate)
    return predicted is None or predicted.fits


def _union(grids: Sequence[Grid]) -> Grid:
    """All values of each axis of the search space; where layers lie is no parameter there."""
    union: Grid = {}
    for grid in grids:
        for name, values in grid.items():
            if name not in _AXES:
                union[name] = list(dict.fromkeys([*union.get(name, []), *values]))
    return union


def write_table(study: Study, task: Task, path: Path) -> None:
    """Write all launches of a study as one table, whole or not at all."""
    devices = "; ".join(
        f"{device.name} {device.description}, {device.usable_mib:.0f} MiB free"
        for device in task.devices
    )
    source = ", ".join((
        f"measured by autofit {datetime.now(UTC):%Y-%m-%d}",
        devices or "no device",
        f"{task.runtime.name} {task.runtime.version.version}",
        task.model_path.name,
    ))  # fmt: skip
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# source: {source}\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_row(trial, task.workload) for trial in study.trials())
    temporary.replace(path)


def _row(trial: Trial, workload: Workload) -> dict[str, Any]:
    params, request = trial.candidate.params, workload.requests[0]
    rates: dict[str, Any] = dict.fromkeys(_RATES, "")
    if trial.is_completed:
        for column, metric in _RATES.items():
            rate = median_metric(trial.measurement, workload, metric)
            rates[column] = f"{rate:.4g}" if rate else ""
    # What others held before does not belong to the launch: ballast may be most of a peak.
    taken = trial.measurement.taken_mib() if trial.measurement else {}
    return {
        "ncmoe": params.get("n_cpu_moe", 0),
        "batch": params.get("batch", ""),
        "ubatch": params.get("ubatch", ""),
        "ctk": params.get("cache_type_k", ""),
        "ctv": params.get("cache_type_v", ""),
        "tensor_split": params.get("tensor_split", ""),
        "prefetch_slots": params.get("prefetch_slots", ""),
        "load_mode": params.get("load_mode", ""),
        "n_ctx": workload.context,
        "n_prompt": request.prompt_tokens,
        "n_gen": request.predicted_tokens,
        **rates,
        "status": _status(trial),
        "vram_mib": "/".join(f"{mib:.0f}" for name, mib in taken.items() if name != "host"),
        "notes": f"{trial.layout}; {trial.description}",
    }


def _status(trial: Trial) -> str:
    kind = trial.outcome.kind
    if kind == "completed":
        return "ok"
    if kind == "spilled":
        return "spill"
    if kind == "out_of_memory":
        is_loaded = trial.outcome.stage in {"warmup", "prompt", "generate"}
        return "oom_run" if is_loaded else "oom_load"
    return "crash" if kind == "crashed" else "abort"


def _task(given: argparse.Namespace, axes: Grid, folder: Path) -> TaskOptions:
    yaml = YAML(typ="safe")
    parameters = {
        name: {"values": values, "sets": _SETS.get(name, [])} for name, values in axes.items()
    }
    space, workload = folder / "grid.yaml", folder / "request.yaml"
    layouts = ["balanced", "capacity", "first_device", "single"]
    yaml.dump({"layouts": layouts, "parameters": parameters}, space)
    request = {"prompt_tokens": given.prompt, "predicted_tokens": given.generate}
    yaml.dump({"context": given.context, "requests": [request]}, workload)
    return TaskOptions(
        model=given.model, runtime=given.runtime, dialect=given.dialect, space=str(space),
        workload=str(workload), rpc=given.rpc, kv_floor="q4_0",
        devices_mib=parse_devices(tuple(given.device)),
    )  # fmt: skip


def _axis(text: str) -> tuple[str, list[Any]]:
    name, _, values = text.partition("=")
    return name, [_number(value) for value in values.split(",")]


def _number(text: str) -> int | str:
    with suppress(ValueError):
        return int(text)
    return text


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--runtime")
    parser.add_argument("--dialect")
    parser.add_argument("--device", action="append", default=[], metavar="NAME=MIB")
    parser.add_argument("--rpc", default="")
    parser.add_argument("--grid", action="append", required=True, metavar="'NAME=V,V NAME=V,V'")
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2, help="launches of each point")
    parser.add_argument("--requests", type=int, default=1, help="measured requests a launch")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
