"""Parsers of the texts of options."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.session.task_options import parse_devices, parse_env, parse_rpc


def test_a_variable_may_be_empty():
    """An empty value is a value."""
    assert parse_env(["A=", "B=c=d"]) == {"A": "", "B": "c=d"}


@pytest.mark.parametrize("rpc", ["foo", ":0", "host:0", "host:65536", "host:x", "a:1,b", "a b:1"])
def test_a_remote_server_is_a_host_and_a_port(rpc):
    """Anything else is refused before a runtime hangs on it."""
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_rpc(rpc)


def test_remote_servers_keep_their_order():
    """Names, addresses and IPv6 in brackets are accepted; blanks are dropped."""
    assert parse_rpc("b:1, 10.0.0.2:50052,[::1]:65535,") == "b:1,10.0.0.2:50052,[::1]:65535"


@pytest.mark.parametrize(
    ("text", "mib"),
    [("12288", 12288), ("11GiB", 11264), ("11 gib", 11264), ("1.5G", 1536), ("512MiB", 512),
     ("11GB", 11e9 / 2**20), ("500MB", 500e6 / 2**20)],
)  # fmt: skip
def test_a_device_size_may_have_a_unit(text, mib):
    """A plain number is MiB; GiB and GB are different units."""
    assert parse_devices([f"CUDA0={text}"]) == {"CUDA0": pytest.approx(mib)}


@pytest.mark.parametrize("size", ["0", "-1", "nan", "inf", "1e10", "much"])
def test_an_impossible_device_size_is_refused(size):
    """A size must be a positive number below the largest device."""
    with pytest.raises(UsageError, match="MiB"):
        parse_devices([f"CUDA0={size}"])


def test_a_device_is_named_once():
    """Two sizes of one device are refused."""
    with pytest.raises(UsageError, match="CUDA0"):
        parse_devices(["CUDA0=1", "CUDA1=1", "CUDA0=2"])


def test_a_device_without_a_size_has_all_its_free_memory():
    """A name alone has no limit."""
    assert parse_devices(["CUDA1", "CUDA0=100"]) == {"CUDA1": None, "CUDA0": 100.0}
