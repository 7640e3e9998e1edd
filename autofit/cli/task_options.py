"""The options that say what is tuned, shared by the commands that look at a model on a machine."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autofit.errors import UsageError
from autofit.trial.candidate import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options as given; see the command's help for each."""

    model: Path
    runtime: str | None
    dialect: str | None
    space: str | None
    workload: str
    context: int | None
    parallel: int | None
    devices_mib: dict[str, float]
    rpc: str
    pins: dict[str, ParamValue]
    env: dict[str, str]
    wrapper: tuple[str, ...]
    kv_floor: str
    extra_args: tuple[str, ...]


_OPTIONS = (
    click.option("--runtime", metavar="PATH", help="llama-server, or the folder it lies in."),
    click.option("--dialect", metavar="NAME", help="The runtime's dialect; found out by itself."),
    click.option("--space", metavar="NAME", help="Search space; chosen by the model."),
    click.option(
        "--workload",
        default="chat",
        show_default=True,
        metavar="NAME_OR_FILE",
        help="What will be asked of the model.",
    ),
    click.option("--context", type=click.IntRange(1), help="Tokens of context for all slots."),
    click.option("--parallel", type=click.IntRange(1), help="Requests side by side."),
    click.option(
        "--device",
        "device",
        multiple=True,
        metavar="NAME=MIB",
        help="Use this device, and of its memory so much. Repeat for several, in order.",
    ),
    click.option("--rpc", default="", metavar="HOST:PORT,...", help="Remote devices."),
    click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="PARAM=VALUE",
        help="Fix a parameter instead of searching it.",
    ),
    click.option("--env", multiple=True, metavar="K=V", help="A variable for every launch."),
    click.option("--wrapper", default="", help="Words before the program: 'numactl -N 0'."),
    click.option(
        "--kv-floor",
        default="q8_0",
        show_default=True,
        help="The narrowest KV cache type that is considered.",
    ),
)


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the model, the shared options, and the runtime's own after `--`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    function = click.argument("extra_args", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("model", type=click.Path(path_type=Path))(function)


def read_task_options(given: dict[str, Any]) -> TaskOptions:
    """Take the shared options out of a command's keyword arguments.

    Raises:
        UsageError: a `NAME=VALUE` is not one.
    """
    rpc = ",".join(part.strip() for part in given.pop("rpc").split(",") if part.strip())
    try:
        wrapper = tuple(shlex.split(given.pop("wrapper")))
    except ValueError as error:
        raise UsageError(f"--wrapper: {error}", "quote it as a shell would") from error
    return TaskOptions(
        devices_mib=read_devices(given.pop("device")),
        rpc=rpc,
        pins={
            name.replace("-", "_"): _value(text)
            for name, text in (_pair(t, "--set", "PARAM=VALUE") for t in given.pop("set_"))
        },
        env=dict(_pair(text, "--env", "NAME=VALUE") for text in given.pop("env")),
        wrapper=wrapper,
        **{
            name: given.pop(name)
            for name in (
                "model",
                "runtime",
                "dialect",
                "space",
                "workload",
                "context",
                "parallel",
                "kv_floor",
                "extra_args",
            )
        },
    )


def read_devices(texts: Iterable[str]) -> dict[str, float]:
    """Device names and their usable MiB of `NAME=MIB` texts, in order.

    Raises:
        UsageError: one is not such a text.
    """
    pairs = dict(_pair(text, "--device", "NAME=MIB") for text in texts)
    return {name: _mib(name, text) for name, text in pairs.items()}


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise UsageError(f"{option} '{text}' is not {form}", f"for example {option} {form}")
    return name, value


def _mib(name: str, text: str) -> float:
    try:
        mib = float(text)
    except ValueError:
        mib = 0.0
    if not 0 < mib < float("inf"):
        raise UsageError(f"--device {name}={text}: not a size in MiB", f"--device {name}=12288")
    return mib


def _value(text: str) -> ParamValue:
    try:
        return int(text)
    except ValueError:
        return text
