"""`autofit plan`: what a model takes on each device, without launching anything."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.task_options import TaskOptions, read_task_options, task_options
from autofit.errors import NothingFitsError

if TYPE_CHECKING:
    from autofit.tuning.plan import Plan
    from autofit.tuning.situation import Situation


@click.command("plan")
@task_options
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(*, as_json: bool, **given: Any) -> int:  # noqa: ANN401 - click's keyword arguments
    """Show what MODEL takes on each device and in system RAM, and which layouts fit.

    Launches nothing. A device named with --device need not be there: plan before you buy.
    Without any device, all is planned for system RAM.
    """
    from autofit.cli.preparation import look, planner  # noqa: PLC0415 - heavy
    from autofit.output.console import make_console  # noqa: PLC0415
    from autofit.output.plan_table import print_plan  # noqa: PLC0415
    from autofit.tuning.plan import make_plan  # noqa: PLC0415

    options = read_task_options(given)
    situation = look(options, may_imagine=True)
    plan = make_plan(situation, planner(situation))
    if as_json:
        click.echo(json.dumps({**plan.to_dict(), "launch": _launch(situation, options, plan)}))
    else:
        print_plan(plan, make_console(sys.stdout))
    if plan.recommended is not None:
        return 0
    place = "these devices" if situation.devices else "system RAM"
    click.echo(f"autofit: no layout fits {place}", err=True)
    click.echo(
        "hint: less --context, a narrower --kv-floor with --set cache_type=q8_0, or a smaller "
        "ubatch with --set ubatch=512",
        err=True,
    )
    return NothingFitsError.exit_code


def _launch(situation: Situation, options: TaskOptions, plan: Plan) -> dict[str, Any] | None:
    """How the recommended layout would be served, and on what: what `autofit export` needs."""
    from autofit.cli.preparation import header  # noqa: PLC0415
    from autofit.runtime.argv import Unsupported, launch_plan  # noqa: PLC0415

    if plan.recommended is None:
        return None
    launch = launch_plan(
        situation.runtime,
        situation.model_path,
        plan.recommended.candidate,
        purpose="preset",
        rpc=situation.rpc,
        extra_args=situation.extra_args,
        env=situation.env,
        wrapper=situation.wrapper,
    )
    if isinstance(launch, Unsupported):
        return None
    task = header(situation, options, seed=0, argv=sys.argv)
    return {"argv": list(launch.argv), "env": dict(launch.env), "task": task.to_dict()}
