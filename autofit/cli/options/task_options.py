"""The options that say what is tuned, shared by the commands that look at a model on a machine."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from autofit.cli.options.completion import names_of, parameter_pins
from autofit.errors import UsageError
from autofit.trial.candidate import ParamValue
from autofit.units import MIB


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


_COUNT = click.IntRange(1, 2**31 - 1)  # an int of the runtime
_LARGEST_MIB = 1e9
_HOST_PORT = re.compile(r"[^\s:]+:(\d{1,5})|\[[0-9a-fA-F:.]+\]:(\d{1,5})")

_OPTIONS = (
    click.option("--runtime", metavar="PATH", help="llama-server, or the folder it lies in."),
    click.option(
        "--dialect",
        metavar="NAME",
        shell_complete=names_of("dialect"),
        help="The runtime's dialect; found out by itself.",
    ),
    click.option(
        "--space",
        metavar="NAME",
        shell_complete=names_of("space"),
        help="Search space; chosen by the model.",
    ),
    click.option(
        "--workload",
        default="chat",
        show_default=True,
        metavar="NAME_OR_FILE",
        shell_complete=names_of("workload"),
        help="What will be asked of the model.",
    ),
    click.option("--context", type=_COUNT, help="Tokens of context for all slots."),
    click.option("--parallel", type=_COUNT, help="Requests side by side."),
    click.option(
        "--device",
        "device",
        multiple=True,
        metavar="NAME=MIB",
        help="Use this device, and of its memory so much (12288, 12GiB). Repeat for several, in "
        "order.",
    ),
    click.option("--rpc", default="", metavar="HOST:PORT,...", help="Remote devices."),
    click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="PARAM=VALUE",
        shell_complete=parameter_pins,
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


# Examples for hints, by the form that a text should have.
_EXAMPLE_NAMES = {
    "NAME=MIB": "CUDA0",
    "PARAM=VALUE": "ubatch",
    "NAME=VALUE": "GGML_CUDA_NO_PINNED",
}
_EXAMPLE_VALUES = {"NAME=MIB": "12288", "PARAM=VALUE": "512", "NAME=VALUE": "1"}
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(|[MG]i?B?)", re.IGNORECASE)
# A plain number is MiB; as elsewhere `GB` is decimal, and `G` is short for the binary unit.
_UNITS_MIB = {
    "": 1.0,
    **dict.fromkeys(("m", "mi", "mib"), 1.0),
    **dict.fromkeys(("g", "gi", "gib"), 1024.0),
    "mb": 1e6 / MIB,
    "gb": 1e9 / MIB,
}


def task_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the model, the shared options, and the runtime's own after `--`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    function = click.argument("extra_args", nargs=-1, type=click.UNPROCESSED)(function)
    return click.argument("model", type=click.Path(path_type=Path))(function)


def read_task_options(given: dict[str, Any]) -> TaskOptions:
    """Take the shared options out of a command's keyword arguments.

    Raises:
        UsageError: a `NAME=VALUE` or a `HOST:PORT` is not one.
    """
    rpc = _read_rpc(given.pop("rpc"))
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
        env=dict(
            _pair(text, "--env", "NAME=VALUE", may_be_empty=True) for text in given.pop("env")
        ),
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
        UsageError: one is not such a text, or a device is named twice.
    """
    devices: dict[str, float] = {}
    for name, text in (_pair(text, "--device", "NAME=MIB") for text in texts):
        if name in devices:
            raise UsageError(f"--device {name}: given twice", "name each device once")
        devices[name] = _mib(name, text)
    return devices


def _read_rpc(text: str) -> str:
    """Remote servers separated by commas, each seen to be HOST:PORT."""
    servers = [part.strip() for part in text.split(",") if part.strip()]
    for server in servers:
        found = _HOST_PORT.fullmatch(server)
        if found is None or not 0 < int(found[1] or found[2]) < 1 << 16:
            raise UsageError(f"--rpc '{server}' is not HOST:PORT", "as in --rpc 10.0.0.2:50052")
    return ",".join(servers)


def _pair(text: str, option: str, form: str, *, may_be_empty: bool = False) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not (value or may_be_empty):
        example = f"{name or _EXAMPLE_NAMES[form]}={_EXAMPLE_VALUES[form]}"
        raise UsageError(f"{option} '{text}' is not {form}", f"for example {option} {example}")
    return name, value


def _mib(name: str, text: str) -> float:
    found = _SIZE.fullmatch(text.strip())
    mib = float(found[1]) * _UNITS_MIB[found[2].lower()] if found else 0.0
    if not 0 < mib <= _LARGEST_MIB:
        raise UsageError(
            f"--device {name}={text}: not a size in MiB",
            f"--device {name}=12288 or --device {name}=12GiB",
        )
    return mib


def _value(text: str) -> ParamValue:
    try:
        return int(text)
    except ValueError:
        return text
