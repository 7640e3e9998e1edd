"""`autofit probe`: find the fit boundary to the layer, and prove both sides."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.completion import complete_words, kv_types, layouts
from autofit.cli.options.count_option import CountOption
from autofit.cli.options.shared_options import (
    RunOptions,
    read_run_options,
    read_task_options,
    run_options,
    task_options,
    wait_option,
)
from autofit.cli.say import report
from autofit.errors import NothingFitsError
from autofit.session.task_options import TaskOptions

if TYPE_CHECKING:
    from autofit.study.study_header import StudyHeader


@click.command("probe")
@task_options
@click.option(
    "--kv",
    default="",
    metavar="TYPE,...",
    shell_complete=complete_words(kv_types, is_list=True),
    help="Only these KV cache types.",
)
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_words(layouts),
    help="Only this layout: balanced, capacity, first_device, single, single:DEVICE. Repeat "
    "for several.",
)
@click.option(
    "--ubatch",
    cls=CountOption,
    type=click.IntRange(1),
    help="The ubatch: tokens computed at once. Default: the first value of the search space.",
)
@run_options(budget="60m")
@wait_option
@click.option("--yes", is_flag=True, help="Do not ask, even if the machine is busy.")
def command(
    *,
    kv: str,
    layouts: tuple[str, ...],
    ubatch: int | None,
    as_json: bool,
    yes: bool,
    **given: Any,  # noqa: ANN401 - click's keyword arguments
) -> int:
    """Find the fewest layers of MODEL whose experts must stay in system RAM, by launches.

    For every layout and KV cache type, a launch with a full-length prompt proves the smallest
    count that fits, and another launch that one layer less does not fit. If the budget ends
    before that, the result says what is known. What comes after `--` is passed unchanged to
    every launch.
    """
    from autofit.cli.machine_ready import ready_machine

    run, options = read_run_options(given), read_task_options(given)
    if ubatch is not None:
        options = replace(options, pins={**options.pins, "ubatch": ubatch})
    with ready_machine(run.wait_s, f"of {options.model.stem}"):
        result, header = run_probe(
            options,
            run,
            cache_types=_split_lists(kv),
            layouts=_split_lists(*layouts),
            asks=not yes,
        )
    return print_result(result, header, as_json=as_json)


def _split_lists(*texts: str) -> tuple[str, ...]:
    """Split texts at commas."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def run_probe(
    options: TaskOptions,
    run_options: RunOptions,
    *,
    cache_types: tuple[str, ...] = (),
    layouts: tuple[str, ...] = (),
    asks: bool = False,
) -> tuple[dict[str, Any], StudyHeader]:
    """Probe a model and return the result with the header of its study.

    If the machine is busy and `asks` is set, ask the user whether to go on.
    """
    from autofit.cli.machine_ready import confirm_when_busy
    from autofit.cli.run_setup import open_run
    from autofit.memory.calibration import CalibrationStore
    from autofit.probe.boundary_line import choose_layouts, choose_points, make_lines
    from autofit.probe.find_boundaries import find_boundaries
    from autofit.session.build_task import build_task
    from autofit.session.candidate_factory import CandidateFactory
    from autofit.session.task_setup import make_planner, search_header

    task = build_task(options)
    factory = CandidateFactory(task)
    memory = task.memory_model(make_planner(task), CalibrationStore())
    names = choose_layouts(factory, layouts)
    points = choose_points(task, cache_types)
    header = search_header(task, options, seed=0, argv=sys.argv)
    own = {"command": "probe", "layouts": list(names), "cache_types": list(points)}
    header = replace(header, options={**header.options, **own})
    if asks and run_options.wait_s is None:
        confirm_when_busy()
    notices = (*task.inventory.notices, *task.notices)
    with open_run(run_options, header, [task], notices=notices, planner=memory.planner) as run:
        runner = run.make_runner(task, memory)
        lines = make_lines(factory, memory, names, points)
        result = find_boundaries(task, lines, memory, runner, run.emit)
        run.conclude(result)
    return result, header


def print_result(result: dict[str, Any], header: StudyHeader, *, as_json: bool) -> int:
    """Print the result of a probe on stdout, and return the exit code."""
    from autofit.output.text.console import make_console
    from autofit.output.text.last_screen import print_probe_result

    print_probe_result(result, header, make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result))
    if any(row["fits"] is not None for row in result["boundary"]):
        return 0
    study = shlex.quote(result["study"])
    if result["ended_by"] == "budget":
        message = "the budget was used up before any launch showed that something fits"
        hint = f"use a larger --budget, and --study {study} --resume to continue"
    else:
        message = "nothing fits in any of the layouts"
        hint = (
            f"`autofit show {study}` lists the launches; try a smaller --context, a smaller "
            "--ubatch or a narrower --kv"
        )
    return report(NothingFitsError(message, hint))
