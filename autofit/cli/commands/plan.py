"""`autofit plan`: show the memory of a model on each device, without a launch."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.shared_options import read_task_options, task_options
from autofit.cli.say import report
from autofit.errors import NothingFitsError
from autofit.session.task_options import TaskOptions

if TYPE_CHECKING:
    from autofit.plan.memory_plan import Plan
    from autofit.session.task import Task


@click.command("plan")
@task_options
@click.option(
    "--fresh",
    "is_fresh",
    is_flag=True,
    help="Expect no rates from earlier studies.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(*, is_fresh: bool, as_json: bool, **given: Any) -> int:  # noqa: ANN401 - click's keyword arguments
    """Show the memory of MODEL on each device and in system RAM, and the layouts that fit.

    Nothing is launched. A device named with --device need not exist: plan before you buy.
    Without any device, the plan is for system RAM. If earlier studies have shown something about
    this machine, each layout has expected rates, which are not measured.
    """
    from autofit.knowledge.knowledge_folder import read_knowledge
    from autofit.knowledge.study_knowledge import machine_of
    from autofit.output.text.console import make_console
    from autofit.output.text.plan_table import print_plan
    from autofit.plan.memory_plan import make_plan
    from autofit.session.build_task import build_task
    from autofit.session.task_setup import make_planner

    options = read_task_options(given)
    task = build_task(options, allow_missing=True)
    known = () if is_fresh else read_knowledge(machine_of(task)).studies
    plan = make_plan(task, make_planner(task), known, time.time())
    if as_json:
        click.echo(json.dumps({**plan.to_dict(), "launch": _launch_document(task, options, plan)}))
    else:
        print_plan(plan, make_console(sys.stdout))
    if plan.recommended is not None:
        return 0
    place = "these devices" if task.devices else "system RAM"
    hint = "try a smaller --context, --set cache_type=q8_0, or --set ubatch=512"
    return report(NothingFitsError(f"no layout fits {place}", hint))


def _launch_document(task: Task, options: TaskOptions, plan: Plan) -> dict[str, Any] | None:
    """Return the recommended layout's command and task in the form that `autofit export` reads."""
    from autofit.runtime.command.argv_writer import UnsupportedSetting
    from autofit.session.task_setup import plan_launch, search_header

    if plan.recommended is None:
        return None
    launch = plan_launch(task, plan.recommended.candidate, purpose="preset")
    if isinstance(launch, UnsupportedSetting):
        return None
    header = search_header(task, options, seed=0, argv=sys.argv)
    shown = launch.shown
    return {"argv": list(shown.argv), "env": dict(shown.env), "task": header.to_dict()}
