"""The shared options as a user gives them, and what is refused before anything is asked."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from autofit.cli.options.task_options import (
    TaskOptions,
    read_devices,
    read_task_options,
    task_options,
)
from autofit.errors import UsageError


def read(*words: str) -> TaskOptions:
    """The options of a command that takes the shared ones."""
    found = []

    @click.command()
    @task_options
    def command(**given: object) -> None:
        found.append(read_task_options(given))

    CliRunner().invoke(command, ["m.gguf", *words], standalone_mode=False, catch_exceptions=False)
    return found[0]


@pytest.mark.parametrize("option", ["--context", "--parallel"])
@pytest.mark.parametrize("value", ["0", "2147483648", "99999999999999999999999"])
def test_a_count_is_one_that_a_runtime_can_take(option, value):
    """Absurd numbers are refused with the range."""
    with pytest.raises(click.BadParameter, match="1<=x<=2147483647"):
        read(option, value)


def test_a_variable_may_be_empty():
    """An empty value is a value."""
    assert read("--env", "A=", "--env", "B=c=d").env == {"A": "", "B": "c=d"}


@pytest.mark.parametrize("rpc", ["foo", ":0", "host:0", "host:65536", "host:x", "a:1,b", "a b:1"])
def test_a_remote_server_is_a_host_and_a_port(rpc):
    """Anything else is refused before a runtime hangs on it."""
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        read("--rpc", rpc)


def test_remote_servers_are_kept_in_order():
    """Names, addresses and IPv6 in brackets are taken; blanks are dropped."""
    assert read("--rpc", "b:1, 10.0.0.2:50052,[::1]:65535,").rpc == (
        "b:1,10.0.0.2:50052,[::1]:65535"
    )


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "1e10", "much"])
def test_a_device_has_a_size_that_can_be(size):
    """Sizes that are none, or beyond any device, are refused."""
    with pytest.raises(UsageError, match="not a size in MiB"):
        read_devices([f"CUDA0={size}"])


def test_a_device_is_named_once():
    """Two sizes of one device are a mistake."""
    with pytest.raises(UsageError, match="CUDA0: given twice"):
        read_devices(["CUDA0=1", "CUDA1=1", "CUDA0=2"])
