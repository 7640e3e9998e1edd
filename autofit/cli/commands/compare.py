"""`autofit compare`: measure two presets, or one preset on two runtimes, against each other."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autofit.cli.options.count_option import CountOption
from autofit.cli.options.shared_options import (
    RunOptions,
    preset_options,
    read_run_options,
    run_options,
    seed_option,
    wait_option,
)
from autofit.cli.say import report
from autofit.errors import NothingFitsError, RegressionError, UsageError
from autofit.trial.metric import Metric

if TYPE_CHECKING:
    from autofit.study.study_header import StudyHeader


@click.command("compare")
@click.argument("a")
@click.argument("b", required=False)
@preset_options
@click.option(
    "--runtime",
    metavar="PATH",
    help="The runtime that starts both, instead of their own programs.",
)
@click.option("--runtime-a", metavar="PATH", help="Starts A.")
@click.option("--runtime-b", metavar="PATH", help="Starts B.")
@click.option("--section-a", metavar="NAME", help="The section of A's file.")
@click.option("--section-b", metavar="NAME", help="The section of B's file.")
@click.option(
    "--objective",
    type=click.Choice(["request_s", "pp", "tg", "ttft"]),
    default="request_s",
    show_default=True,
    help="The metric that decides: seconds per request, prompt or generation rate, or time to "
    "first token.",
)
@click.option(
    "--rounds",
    cls=CountOption,
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="The most launches of each; fewer than 3 decide nothing.",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="A smaller difference is a tie.",
)
@run_options(budget="60m")
@wait_option
@click.option("--fail", is_flag=True, help="Exit with 5 if B is worse.")
@seed_option
def command(*, fail: bool, as_json: bool, **given: Any) -> int:  # noqa: ANN401 - click's
    """Measure A and B in turns, in fresh processes, until it is clear which is faster.

    A and B are presets: files that autofit wrote, the folder of a tune, your own scripts,
    units, compose or llama-swap files, or launch commands in quotes.

    Without B, A is started with --runtime-a and with --runtime-b, and their answers are compared.
    What comes after `--` is passed unchanged to every launch.

    \b
    Examples:
      autofit compare results/STUDY ./my-server.sh
      autofit compare preset.json --runtime-a old/llama-server --runtime-b new/llama-server
    """  # noqa: D301 - click's mark for lines to keep
    from autofit.cli.machine_ready import ready_machine
    from autofit.output.text.console import make_console
    from autofit.output.text.last_screen import print_comparison

    run = read_run_options(given)
    with ready_machine(run.wait_s, "of a comparison"):
        result, header = _compare(run, **given)
    print_comparison(result, header, make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result))
    hint = f"`autofit show {shlex.quote(result['study'])}` lists the launches"
    if result["because"] == "failure" and result["verdict"] == "undecided":
        return report(NothingFitsError("neither A nor B runs", hint))
    if fail and result["verdict"] == "worse":
        return report(RegressionError("B is worse than A", hint))
    return 0


def _compare(
    run_options: RunOptions,
    *,
    a: str,
    b: str | None,
    extra_args: tuple[str, ...],
    model: Path | None,
    runtime: str | None,
    runtime_a: str | None,
    runtime_b: str | None,
    section: str | None,
    section_a: str | None,
    section_b: str | None,
    objective: Metric,
    rounds: int,
    min_effect: float,
    seed: int,
    **replaced: Any,  # noqa: ANN401 - the fields of PresetOptions
) -> tuple[dict[str, Any], StudyHeader]:
    """Compare, and return the result with the header of its study.

    `replaced` has dialect, workload, context and parallel.
    """
    from autofit.cli.run_setup import open_run
    from autofit.compare.compared_tasks import ComparedTasks, label_presets
    from autofit.compare.comparison import SIDES, Comparison, Side
    from autofit.compare.comparison_document import comparison_document
    from autofit.presets.preset_task import PresetOptions, build_preset_task
    from autofit.presets.read_preset import read_preset
    from autofit.session.events import PhaseStarted
    from autofit.study.fingerprint import file_digest

    if b is not None and b.startswith("-"):  # it came after `--`
        extra_args, b = (b, *extra_args), None
    if b is None and (runtime_a or runtime) == (runtime_b or runtime):
        raise UsageError(
            "there is nothing to compare A with",
            "give a second preset, or --runtime-a and --runtime-b",
        )
    presets = (
        read_preset(a, section=section_a or section, model=model),
        read_preset(a if b is None else b, section=section_b or section, model=model),
    )
    tuned_for = next((preset.workload for preset in presets if preset.workload), None)
    first, second = (
        build_preset_task(
            preset,
            PresetOptions(
                runtime=own_runtime or runtime, model=model, extra_args=extra_args, **replaced
            ),
            objective=objective,
            tuned_for=tuned_for,
        )
        for preset, own_runtime in zip(presets, (runtime_a, runtime_b), strict=True)
    )
    pair = ComparedTasks((first, second), label_presets(*presets))
    header = pair.header(seed=seed, argv=sys.argv)
    with open_run(
        run_options,
        header,
        pair.tasks,
        notices=pair.notices(),
        folder_name=f"compare-{header.model_name}",
    ) as run:
        side_a, side_b = (
            Side(
                name=name,
                task=task,
                runner=run.make_runner(task),
                model_digest=file_digest(task.inventory.files),
            )
            for name, task in zip(SIDES, pair.tasks, strict=True)
        )
        run.emit(PhaseStarted("confirm"))
        comparison = Comparison(
            sides=(side_a, side_b),
            workload=pair.workload,
            slot_context=pair.slot_context,
            metric=objective,
            note=run.notice,
            rounds=rounds,
            min_effect=min_effect / 100,
            seed=seed,
        )
        document = comparison_document(comparison.run(), pair.workload, objective, pair.facts())
        result = {
            "study": str(run.study.path),
            **document,
            "seconds": round(run.budget.spent_s, 1),
            "notes": run.notices[1:],
        }
        run.conclude(result)
    return result, header
