"""The options that describe a task, and parsers of their values such as NAME=MIB or HOST:PORT."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autofit.errors import UsageError
from autofit.trial.candidate import ParamValue
from autofit.units import MIB

# An example for each form, for hints.
_EXAMPLE_NAMES = {
    "NAME=MIB": "CUDA0",
    "PARAM=VALUE": "ubatch",
    "NAME=VALUE": "GGML_CUDA_NO_PINNED",
}
_EXAMPLE_VALUES = {"NAME=MIB": "12288", "PARAM=VALUE": "512", "NAME=VALUE": "1"}
_DEVICE_NAME = re.compile(r"[A-Za-z][^\s,=]*")
_HOST_PORT = re.compile(r"[^\s:]+:(\d{1,5})|\[[0-9a-fA-F:.]+\]:(\d{1,5})")
_SIZE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(|[MG]i?B?)", re.IGNORECASE)
_LARGEST_MIB = 1e9
# A plain number is MiB. `GB` is decimal, and `G` is short for the binary unit.
_UNITS_MIB = {
    "": 1.0,
    **dict.fromkeys(("m", "mi", "mib"), 1.0),
    **dict.fromkeys(("g", "gi", "gib"), 1024.0),
    "mb": 1e6 / MIB,
    "gb": 1e9 / MIB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """The options that describe a task, as the user gave them (see `autofit tune --help`)."""

    model: Path
    runtime: str | None = None
    dialect: str | None = None
    space: str | None = None
    workload: str = "chat"
    context: int | None = None
    parallel: int | None = None
    devices_mib: Mapping[str, float | None] = field(default_factory=dict)
    rpc: str = ""
    pins: dict[str, ParamValue] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    wrapper: tuple[str, ...] = ()
    kv_floor: str = "q8_0"
    extra_args: tuple[str, ...] = ()
    headroom_mib: float | None = 0.0  # None for the default of each device


def parse_devices(texts: Iterable[str]) -> dict[str, float | None]:
    """Parse `NAME=MIB` texts: map each device to its usable MiB, in order.

    The MiB are None for a name alone, which means all the free memory of the device.

    Raises:
        UsageError: a text has another form, or a device is named twice.
    """
    devices: dict[str, float | None] = {}
    for text in texts:
        name, size = text.strip(), ""
        if "=" in text or not _DEVICE_NAME.fullmatch(name):
            name, size = _parse_pair(text, "--device", "NAME=MIB")
        if name in devices:
            raise UsageError(f"--device {name} is given twice", "name each device once")
        devices[name] = parse_mib(size, f"--device {name}=", 12288) if size else None
    return devices


def parse_pins(texts: Iterable[str]) -> dict[str, ParamValue]:
    """Parse `PARAM=VALUE` texts: map each parameter to its value, a number if it is one.

    Raises:
        UsageError: a text has another form.
    """
    pairs = (_parse_pair(text, "--set", "PARAM=VALUE") for text in texts)
    return {name.replace("-", "_"): _parse_value(value) for name, value in pairs}


def parse_env(texts: Iterable[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` texts: map each variable to its value, which may be empty.

    Raises:
        UsageError: a text has another form.
    """
    return dict(_parse_pair(text, "--env", "NAME=VALUE", may_be_empty=True) for text in texts)


def parse_rpc(text: str) -> str:
    """Return a list of remote servers, `HOST:PORT` separated by commas, without blanks.

    Raises:
        UsageError: a part does not have the form HOST:PORT.
    """
    servers = [part.strip() for part in text.split(",") if part.strip()]
    for server in servers:
        found = _HOST_PORT.fullmatch(server)
        if found is None or not 0 < int(found[1] or found[2]) < 1 << 16:
            raise UsageError(
                f"--rpc '{server}' must have the form HOST:PORT",
                "for example --rpc 10.0.0.2:50052",
            )
    return ",".join(servers)


def parse_wrapper(text: str) -> tuple[str, ...]:
    """Split a wrapper command as a shell does.

    Raises:
        UsageError: a quotation mark is missing.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--wrapper: {error}", "quote it as in a shell") from error


def _parse_pair(
    text: str, option: str, form: str, *, may_be_empty: bool = False
) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not (value or may_be_empty):
        example = f"{name or _EXAMPLE_NAMES[form]}={_EXAMPLE_VALUES[form]}"
        raise UsageError(
            f"{option} '{text}' must have the form {form}", f"for example {option} {example}"
        )
    return name, value


def parse_headroom(text: str | None) -> float | None:
    """Parse the MiB that are to stay free on each device; None if they are not given.

    Raises:
        UsageError: the text is no size.
    """
    return None if text is None else parse_mib(text, "--headroom ", 512, least=0.0)


def parse_mib(text: str, option: str, example: int, *, least: float = 1e-9) -> float:
    """Return the MiB of a size such as 512 or 12GiB; `option` and `example` are for the message.

    Raises:
        UsageError: the text is no possible size.
    """
    found = _SIZE.fullmatch(text.strip())
    mib = float(found[1]) * _UNITS_MIB[found[2].lower()] if found else -1.0
    if not least <= mib <= _LARGEST_MIB:
        raise UsageError(
            f"{option}{text}: '{text}' is not a possible size in MiB",
            f"use MiB or a unit: {option}{example} or {option}{example / 1024:g}GiB",
        )
    return mib


def _parse_value(text: str) -> ParamValue:
    try:
        return int(text)
    except ValueError:
        return text
