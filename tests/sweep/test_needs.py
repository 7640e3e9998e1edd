"""The abilities that an entry of a suite asks of a machine."""

from __future__ import annotations

import platform

import pydantic
import pytest

from autofit.sweep.needs import Needs


@pytest.mark.parametrize(
    "needs",
    [{}, {"host": "*"}, {"host": platform.node()}, {"cores": 1}, {"memory": "1MiB", "cores": 1}],
)
def test_this_machine_meets_small_needs(needs):
    """No need is unmet, and none asks for the devices of a runtime."""
    assert Needs(**needs).find_unmet("/no/such/runtime", None, "") == ""


@pytest.mark.parametrize(
    "needs",
    [{"host": "no-such-*"}, {"cores": 100_000}, {"memory": "900000GiB"}, {"devices": 1}],
)
def test_unmet_need_is_named(needs):
    """A missing ability, or a missing runtime whose devices are needed, has a reason."""
    assert Needs(**needs).find_unmet("/no/such/runtime", None, "")


def test_devices_are_those_of_the_runtime(fake_card):
    """The number, the description and the memory of devices are compared with the runtime's."""
    server = str(fake_card.server)
    dialect = "llama_server"
    assert Needs(devices=1, device="fake").find_unmet(server, dialect, "") == ""
    assert Needs(device_memory="1GiB").find_unmet(server, dialect, "") == ""
    for needs in ({"devices": 2}, {"device": "RTX"}, {"device_memory": "900GiB"}):
        assert "needs" in Needs(**needs).find_unmet(server, dialect, "")


@pytest.mark.parametrize(
    "needs", [{"memory": "lots"}, {"devices": 0}, {"device": ""}, {"gpus": 2}, {"cores": -1}]
)
def test_impossible_needs_are_refused(needs):
    """Sizes, counts and keys that make no sense are faults of the suite."""
    with pytest.raises(pydantic.ValidationError):
        Needs(**needs)


@pytest.fixture
def fake_card(tmp_path):
    """A machine with one card."""
    from tune_machine import TuneMachine  # noqa: PLC0415 - only one test needs it

    return TuneMachine(tmp_path, 4000)
