"""`autofit plan`: what a model takes on each device, without launching anything."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from autofit.cli.task_options import read_task_options, task_options
from autofit.errors import NothingFitsError


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

    situation = look(read_task_options(given), may_imagine=True)
    plan = make_plan(situation, planner(situation))
    if as_json:
        click.echo(json.dumps(plan.to_dict()))
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
