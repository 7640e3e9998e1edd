"""The options of all commands that take a model, with shell completion."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.arguments import MODEL, choose_model, hf_option
from autofit.cli.options.completion import (
    complete_names,
    complete_parameters,
    complete_words,
    devices,
    kv_types,
)
from autofit.cli.options.count_option import CountOption
from autofit.errors import UsageError
from autofit.session.task_options import (
    TaskOptions,
    parse_devices,
    parse_env,
    parse_headroom,
    parse_pins,
    parse_rpc,
    parse_wrapper,
)

_NUMBER = re.compile(r"\d+\.?\d*|\.\d+")
_NO_LIMIT = "without limit"
_COUNT = click.IntRange(1, 2**31 - 1)  # an int of the runtime
extra_args_argument = click.argument(
    "extra_args", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVER_ARGS...]"
)
_OPTIONS = (
    hf_option,
    click.option(
        "--runtime", metavar="PATH", help="llama-server, or the folder that contains it."
    ),
    click.option(
        "--dialect",
        metavar="NAME",
        shell_complete=complete_names("dialect"),
        help="How the runtime spells its flags (a dialect). Default: detected.",
    ),
    click.option(
        "--space",
        metavar="NAME",
        shell_complete=complete_names("space"),
        help="What is searched: moe, dense, quick, cpu, or your own file. Default: by the model.",
    ),
    click.option(
        "--workload",
        default="chat",
        show_default=True,
        metavar="NAME_OR_FILE",
        shell_complete=complete_names("workload"),
        help="The requests to measure: chat, agent, long, batch, or your own file.",
    ),
    click.option(
        "--context",
        cls=CountOption,
        type=_COUNT,
        help="Tokens of context for all slots together. Default: the workload's.",
    ),
    click.option(
        "--parallel",
        cls=CountOption,
        type=_COUNT,
        help="Requests at the same time (slots). Default: the workload's.",
    ),
    click.option(
        "--device",
        "device",
        multiple=True,
        metavar="NAME[=MIB]",
        shell_complete=complete_words(devices),
        help="Use this device, with all its free memory or at most MIB (12288, 12GiB). Repeat "
        "for several devices, in the order of their layers.",
    ),
    click.option(
        "--headroom",
        metavar="SIZE",
        help="Memory that stays free on each device (500MiB). Default: 512 MiB if a screen is "
        "attached to the card, else 0.5% of its memory, at most 128 MiB.",
    ),
    click.option(
        "--rpc", default="", metavar="HOST:PORT,...", help="Remote devices: RPC servers of ggml."
    ),
    click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="PARAM=VALUE",
        shell_complete=complete_parameters,
        help="Fix a parameter instead of searching it: ubatch=1024.",
    ),
    click.option(
        "--env", multiple=True, metavar="K=V", help="An environment variable for every launch."
    ),
    click.option(
        "--wrapper", default="", metavar="WORDS", help="Words before the program: 'numactl -N 0'."
    ),
    click.option(
        "--kv-floor",
        default="q8_0",
        show_default=True,
        shell_complete=complete_words(kv_types),
        metavar="TYPE",
        help="The narrowest KV cache type that may be used: f16, q8_0, q4_0.",
    ),
)


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the model, the shared options and the arguments after `--` to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    model = click.argument("model", type=MODEL, required=False, metavar="MODEL")
    return model(extra_args_argument(function))


# The options of `compare` and `bisect`, which replace parts of presets.
_PRESET_OPTIONS = (
    click.option("--model", type=MODEL, help="The model to serve instead of the presets' own."),
    click.option("--section", metavar="NAME", help="The section of the preset's file."),
    click.option("--dialect", metavar="NAME", help="The runtimes' dialect; detected if left out."),
    click.option(
        "--workload",
        metavar="NAME_OR_FILE",
        help="The requests to measure. Default: the workload of the first preset, or chat if that "
        "is not known. A .args file does not store its workload. Only .json stores a prompt "
        "text of your own.",
    ),
    click.option("--context", cls=CountOption, type=_COUNT, help="Tokens of context."),
    click.option(
        "--parallel", cls=CountOption, type=_COUNT, help="Requests at the same time (slots)."
    ),
    extra_args_argument,
)


def preset_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that replace parts of presets, and the arguments after `--`."""
    for option in reversed(_PRESET_OPTIONS):
        function = option(function)
    return function


seed_option = click.option(
    "--seed",
    cls=CountOption,
    type=int,
    default=1,
    show_default=True,
    help="Decides the order of launches.",
)


def read_task_options(given: dict[str, Any]) -> TaskOptions:
    """Remove the shared options from a command's keyword arguments, and return them.

    Raises:
        UsageError: the value of an option has the wrong form.
    """
    model, extra_args = choose_model(
        *(given.pop(name) for name in ("model", "hf_model", "extra_args"))
    )
    return TaskOptions(
        model=model,
        extra_args=extra_args,
        devices_mib=parse_devices(given.pop("device")),
        rpc=parse_rpc(given.pop("rpc")),
        pins=parse_pins(given.pop("set_")),
        env=parse_env(given.pop("env")),
        headroom_mib=parse_headroom(given.pop("headroom")),
        wrapper=parse_wrapper(given.pop("wrapper")),
        **{
            name: given.pop(name)
            for name in (
                "runtime",
                "dialect",
                "space",
                "workload",
                "context",
                "parallel",
                "kv_floor",
            )
        },
    )


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run: its study folder (None makes a new one) and its budget in seconds.

    A `verbose` run prints all settings and figures of each launch. `wait_s` is the time to wait
    for a free and quiet machine; None does not wait. `locks_machine` is false if a wait has
    locked it for the run, or if others may measure meanwhile. With `locked_devices` only these
    are locked. `keeps_knowledge` is false if the launches say nothing about other models on this
    machine.
    """

    study: Path | None = None
    resume: bool = False
    budget_s: float | None = None
    verbose: bool = False
    wait_s: float | None = None
    locks_machine: bool = True
    keeps_knowledge: bool = True
    locked_devices: tuple[str, ...] = ()


def run_options(*, budget: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options of all commands that launch servers."""
    options = (
        click.option(
            "--budget",
            default=budget,
            show_default=True,
            metavar="TIME",
            help="Time for all launches: 90s, 30m, 2h. A proof is finished even after it.",
        ),
        click.option(
            "--study",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="The folder for all measurements (the study). Default: a new one in results/.",
        ),
        click.option(
            "--resume", is_flag=True, help="Continue the study in --study; no launch is repeated."
        ),
        click.option(
            "-v", "--verbose", is_flag=True, help="Print all settings and figures of each launch."
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
        ),
    )

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _parse_wait(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of `--wait`, or None without it.

    Raises:
        UsageError: the text is no duration.
    """
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415 - heavy, --help is quick

    if text is None or text == _NO_LIMIT:
        return None if text is None else math.inf
    try:
        return parse_duration_s(text)
    except UsageError as error:
        hint = "use --wait=30m, or --wait as the last option for no limit"
        raise UsageError(f"--wait: {error.message}", hint) from error


wait_option = click.option(
    "--wait",
    "wait_s",
    is_flag=False,
    flag_value=_NO_LIMIT,
    callback=_parse_wait,
    metavar="[DURATION]",
    help="Wait until no other autofit measures and the machine is quiet, at most for a time "
    "(--wait=2h).",
)


def read_run_options(given: dict[str, Any]) -> RunOptions:
    """Remove the options of a run, except `--json`, from keyword arguments, and return them.

    Raises:
        UsageError: there is nothing to resume, or the budget is no duration with a unit.
    """
    from autofit.session.budget import parse_duration_s  # noqa: PLC0415 - heavy, --help is quick

    study, resume, budget, verbose = (
        given.pop(name) for name in ("study", "resume", "budget", "verbose")
    )
    require_study(study, resume=resume)
    if _NUMBER.fullmatch(budget.strip()):
        given_number = budget.strip()
        raise UsageError(
            f"--budget {given_number} has no unit",
            f"use --budget {given_number}s for seconds or --budget {given_number}m for minutes",
        )
    wait_s = given.pop("wait_s", None)
    return RunOptions(
        study, resume, parse_duration_s(budget), verbose, wait_s, locks_machine=wait_s is None
    )


def require_study(study: Path | None, *, resume: bool) -> None:
    """Refuse `--resume` without the study to continue.

    Raises:
        UsageError: no study is given.
    """
    if resume and study is None:
        raise UsageError(
            "--resume needs --study DIR", "use `autofit studies` to list your studies"
        )
