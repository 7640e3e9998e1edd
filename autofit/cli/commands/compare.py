"""`autofit compare`: two presets, or one on two runtimes, against each other."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from autofit.errors import AutofitError, NothingFitsError, RegressionError, UsageError
from autofit.trial.metric import Metric


@click.command("compare")
@click.argument("a")
@click.argument("b", required=False)
@click.argument("extra_args", nargs=-1, type=click.UNPROCESSED)
@click.option("--model", type=click.Path(path_type=Path), help="The model, in place of theirs.")
@click.option("--runtime", metavar="PATH", help="What starts both, in place of their programs.")
@click.option("--runtime-a", metavar="PATH", help="What starts A.")
@click.option("--runtime-b", metavar="PATH", help="What starts B.")
@click.option("--section", metavar="NAME", help="The part of the presets' files that is meant.")
@click.option("--section-a", metavar="NAME", help="The part of A's file.")
@click.option("--section-b", metavar="NAME", help="The part of B's file.")
@click.option("--dialect", metavar="NAME", help="The runtimes' dialect; found out by itself.")
@click.option(
    "--workload",
    metavar="NAME_OR_FILE",
    help="What is asked; by default what A, or else B, was tuned for, or else chat. A .args file "
    "does not tell it, and only .json tells a text of your own.",
)
@click.option("--context", type=click.IntRange(1), help="Tokens of context, for both.")
@click.option("--parallel", type=click.IntRange(1), help="Requests side by side, for both.")
@click.option(
    "--objective",
    type=click.Choice(["request_s", "pp", "tg", "ttft"]),
    default="request_s",
    show_default=True,
    help="What decides: seconds per request, prompt or generation rate, first token.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="At most so many launches of each; fewer than 3 decide nothing.",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="A smaller difference is a tie.",
)
@click.option("--budget", default="60m", show_default=True, help="Time to spend: 90s, 30m, 2h.")
@click.option("--fail", is_flag=True, help="Exit 5 when B is worse.")
@click.option("--study", type=click.Path(path_type=Path), help="The study's folder.")
@click.option("--resume", is_flag=True, help="Go on with the study; repeats no launch.")
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(fail: bool, as_json: bool, **given: Any) -> int:  # noqa: ANN401, FBT001 - click's
    """Measure A and B in turns, in fresh processes, until it is known which one is faster.

    A and B are presets (files that autofit has written, the folder of a tune, your own scripts,
    units, compose or llama-swap files, or launch commands, quoted).

    Without B, A is started by --runtime-a and by --runtime-b. Their answers
    are compared, too. What comes after `--` goes unchanged to every launch.
    """
    from autofit.output.text.comparison_text import print_comparison  # noqa: PLC0415 - heavy
    from autofit.output.text.console import make_console  # noqa: PLC0415

    result = run_compare(**given)
    print_comparison(result, make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    if result["because"] == "failure" and result["verdict"] == "undecided":
        return _ended("neither A nor B runs", NothingFitsError, result)
    if fail and result["verdict"] == "worse":
        return _ended("B is worse than A", RegressionError, result)
    return 0


def _ended(what: str, error: type[AutofitError], result: dict[str, Any]) -> int:
    """Say on stderr why this is no success; stdout has its one document already."""
    click.echo(f"autofit: {what}", err=True)
    click.echo(f"hint: `autofit show {shlex.quote(result['study'])}` lists the launches", err=True)
    return error.exit_code


def run_compare(
    a: str,
    b: str | None = None,
    *,
    extra_args: tuple[str, ...] = (),
    model: Path | None = None,
    runtime: str | None = None,
    runtime_a: str | None = None,
    runtime_b: str | None = None,
    section: str | None = None,
    section_a: str | None = None,
    section_b: str | None = None,
    dialect: str | None = None,
    workload: str | None = None,
    context: int | None = None,
    parallel: int | None = None,
    objective: Metric = "request_s",
    rounds: int = 12,
    min_effect: float = 3.0,
    budget: str = "60m",
    study: Path | None = None,
    resume: bool = False,
    seed: int = 1,
) -> dict[str, Any]:
    """Compare and print; returns the result."""
    from autofit.cli.compare_run import CompareRun  # noqa: PLC0415 - heavy, --help is quick
    from autofit.cli.options.preset_argument import PresetOptions  # noqa: PLC0415
    from autofit.presets.read_preset import read_preset  # noqa: PLC0415
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415

    if b is not None and b.startswith("-"):  # it came after `--`
        extra_args, b = (b, *extra_args), None
    if b is None and (runtime_a or runtime) == (runtime_b or runtime):
        raise UsageError(
            "nothing to compare A with", "give a second preset, or --runtime-a and --runtime-b"
        )
    if resume and study is None:
        raise UsageError("--resume needs --study DIR", "`ls results/` shows your studies")
    total_s = parse_duration_s(budget)
    presets = (
        read_preset(a, section=section_a or section, model=model),
        read_preset(a if b is None else b, section=section_b or section, model=model),
    )
    tuned_for = next((preset.workload for preset in presets if preset.workload), None)
    own = tuned_for if workload is None and context is None and parallel is None else None

    def options(of_side: str | None) -> PresetOptions:
        return PresetOptions(
            runtime=of_side or runtime,
            dialect=dialect,
            model=model,
            workload=workload or "chat",
            context=context,
            parallel=parallel,
            extra_args=extra_args,
        )

    run = CompareRun.of(
        presets,
        (options(runtime_a), options(runtime_b)),
        objective=objective,
        workload=own,
        rounds=rounds,
        min_effect=min_effect / 100,
        total_s=total_s,
        seed=seed,
    )
    return run.execute(study, resume=resume, argv=sys.argv)
