"""`autofit probe`: the fit boundary to the layer, both sides proven."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.shared_options import read_task_options, task_options
from autofit.errors import NothingFitsError, UsageError
from autofit.session.task_options import TaskOptions


@click.command("probe")
@task_options
@click.option("--kv", default="", metavar="TYPE,...", help="Only these KV cache types.")
@click.option(
    "--layout",
    "layouts",
    multiple=True,
    metavar="NAME",
    help="Only this layout: balanced, capacity, first_device, single, single:DEVICE. Repeat.",
)
@click.option(
    "--ubatch",
    type=click.IntRange(1),
    help="Tokens computed at once; else the first of the space.",
)
@click.option("--budget", default="60m", show_default=True, help="Time to spend: 90s, 30m, 2h.")
@click.option("--study", type=click.Path(path_type=Path), help="The study's folder.")
@click.option("--resume", is_flag=True, help="Go on with the study; repeats no launch.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--yes", is_flag=True, help="Do not ask, even when the machine is busy.")
def command(  # noqa: PLR0917 - click passes them by name
    kv: str,
    layouts: tuple[str, ...],
    ubatch: int | None,
    budget: str,
    study: Path | None,
    resume: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    yes: bool,  # noqa: FBT001
    **given: Any,  # noqa: ANN401 - click's keyword arguments
) -> int:
    """Find the fewest layers of MODEL whose experts must stay in system RAM, by launches.

    For every layout and KV cache type the last count that fits is shown to hold a full-length
    prompt, and the next one not to. A budget that is spent before leaves boundaries open, and
    says what is known of them. What comes after `--` goes unchanged to every launch.
    """
    if resume and study is None:
        raise UsageError("--resume needs --study DIR", "`ls results/` shows your studies")
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415 - heavy

    options = read_task_options(given)
    if ubatch is not None:
        options = replace(options, pins={**options.pins, "ubatch": ubatch})
    result = run_probe(
        options,
        cache_types=_listed(kv),
        layouts=_listed(*layouts),
        total_s=parse_duration_s(budget),
        study=study,
        resume=resume,
        yes=yes,
    )
    return told(result, as_json=as_json)


def _listed(*texts: str) -> tuple[str, ...]:
    """The parts of lists with commas between."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def run_probe(
    options: TaskOptions,
    *,
    cache_types: tuple[str, ...] = (),
    layouts: tuple[str, ...] = (),
    total_s: float | None = None,
    study: Path | None = None,
    resume: bool = False,
    yes: bool = False,
) -> dict[str, Any]:
    """Probe for at most `total_s` seconds, without a limit where None; returns the result."""
    from autofit.cli.stopping import Stopping  # noqa: PLC0415
    from autofit.cli.study_run import ask_when_busy, opened_study  # noqa: PLC0415
    from autofit.memory.store import MemoryStore  # noqa: PLC0415
    from autofit.probe.find_boundaries import Probe  # noqa: PLC0415
    from autofit.probe.probe_task import chosen_layouts, chosen_points  # noqa: PLC0415
    from autofit.runtime.planner.planner import PlannerUsage  # noqa: PLC0415
    from autofit.session.budget import Budget  # noqa: PLC0415
    from autofit.session.build_task import build_task  # noqa: PLC0415 - heavy
    from autofit.session.candidates import CandidateFactory  # noqa: PLC0415
    from autofit.session.events import Finished, MemoryRead  # noqa: PLC0415
    from autofit.session.runner import TrialRunner  # noqa: PLC0415
    from autofit.session.task_setup import (  # noqa: PLC0415
        make_launcher,
        make_planner,
        search_header,
    )

    task = build_task(options)
    maker = CandidateFactory(task, make_planner(task), MemoryStore())
    names = chosen_layouts(maker, layouts)
    points = chosen_points(task, cache_types)
    head = search_header(task, options, seed=0, argv=sys.argv)
    asked = {"command": "probe", "layouts": list(names), "cache_types": list(points)}
    head = replace(head, options={**head.options, **asked})
    if not yes:
        ask_when_busy()
    stopping, launching = Stopping(), make_launcher(task)
    with opened_study(study, head, task, resume=resume, stopping=stopping, budget_s=total_s) as (
        folder,
        tell,
    ):
        runner = TrialRunner(
            study=folder,
            launching=launching,
            budget=Budget(
                time.monotonic,
                total_s,
                asked=maker.estimator.asked if maker.estimator else PlannerUsage(),
            ),
            emit=tell,
            wall_clock=time.time,
            should_stop=stopping.is_asked,
        )
        launching.on_reading = lambda reading: tell(MemoryRead(reading))
        probe = Probe(task, maker, runner, tell, names, points)
        launching.unreported_mib = probe.record.unreported_mib
        launching.wanted_slots = probe.record.wanted_slots
        result = probe.run()
        folder.conclude(result)
        tell(Finished(result))
    return result


def told(result: dict[str, Any], *, as_json: bool) -> int:
    """Tell a probe's result on stdout; returns the exit code."""
    from autofit.output.text.conclusion import answer  # noqa: PLC0415 - heavy, and --help must be quick
    from autofit.output.text.console import make_console  # noqa: PLC0415
    from autofit.output.text.study_text import print_answer  # noqa: PLC0415

    print_answer(answer(result), make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result))
    if any(row["fits"] is not None for row in result["boundary"]):
        return 0
    if result["ended_by"] == "budget":
        click.echo("autofit: nothing was shown to fit before the budget was spent", err=True)
        where = shlex.quote(result["study"])
        click.echo(
            f"hint: give a larger --budget, and --study {where} --resume to go on", err=True
        )
        return NothingFitsError.exit_code
    click.echo("autofit: nothing fits, in no layout that was asked for", err=True)
    click.echo(
        f"hint: `autofit show {shlex.quote(result['study'])}` tells what was tried and why it "
        "failed; try less --context, a smaller --ubatch or a narrower --kv",
        err=True,
    )
    return NothingFitsError.exit_code
