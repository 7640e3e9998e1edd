"""Devices that a user names: which look misspelt."""

from __future__ import annotations

import pytest

from autofit.session.device_name import misspelt

HERE = ("CUDA0", "CUDA1", "RPC0")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CUDA00", "CUDA0"), ("cuda0", "CUDA0"), ("CUDA 0", "CUDA0"), ("CUDA:1", "CUDA1"),
        ("Cuda-1", "CUDA1"), ("CDUA0", "CUDA0"), ("rpc0", "RPC0"), ("VULKAN0", "Vulkan0"),
        ("rocm1", "ROCm1"), ("CUDA", "CUDA0"), ("cuda5", "CUDA5"),
    ],
)  # fmt: skip
def test_a_name_like_another_is_questioned(name, meant):
    """Case, blanks, marks, leading zeros and a slip lead to the name that was meant."""
    (told,) = misspelt([name], HERE)

    assert f"no device '{name}'; {meant} " in told


@pytest.mark.parametrize("name", ["CUDA0", "CUDA2", "CUDA15", "Vulkan0", "MTL0", "gpu", "Card7"])
def test_a_name_of_its_own_is_not(name):
    """A device that is here, one to be bought, and one that is like no other."""
    assert list(misspelt([name], HERE)) == []


def test_without_devices_the_names_of_backends_count():
    """A plan on a machine without a card may be for any, but they have names."""
    (told,) = misspelt(["cuda0", "CUDA1"], ())

    assert "CUDA0 is how such a device is called" in told
