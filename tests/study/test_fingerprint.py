"""Results are comparable only for the same machine, build and model."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from study.study_sample import ENVIRONMENT

from autofit.study.fingerprint import Environment, file_digest


def test_environment_survives_json():
    """An environment read from its JSON has the same digest."""
    again = Environment.from_dict(json.loads(json.dumps(ENVIRONMENT.to_dict())))

    assert again == ENVIRONMENT
    assert again.digest == ENVIRONMENT.digest


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"cpu": "Intel i7"}, 0),
        ({"memory_mib": 32000.0}, 0),
        ({"devices": ()}, 0),
        ({"driver": "NVIDIA 590.1"}, 0),
        ({"build": "11500"}, 1),
        ({"model_digest": "ff"}, 2),
    ],
)
def test_the_check_value_has_a_part_for_each_difference(changes, part):
    """Machine, build and model each have their own part of the check value."""
    other = replace(ENVIRONMENT, **changes)
    here, there = ENVIRONMENT.check_value.split("-"), other.check_value.split("-")

    assert [index for index in range(3) if here[index] != there[index]] == [part]
    assert len(ENVIRONMENT.differences(other)) == 1
    assert ENVIRONMENT.digest != other.digest


@pytest.mark.parametrize("usable_mib", [1900, 7800, 15900, 31900, 64000, 128500, 515000])
def test_a_few_mib_of_memory_and_the_system_make_no_difference(usable_mib):
    """Another kernel on the same machine gives the same digest."""
    here = replace(ENVIRONMENT, memory_mib=usable_mib)
    other = replace(here, memory_mib=usable_mib + 120, system="Linux 6.18")

    assert here.differences(other) == []
    assert here.check_value == other.check_value


def test_file_digest_depends_on_size_order_and_content(tmp_path):
    """Another size, byte at either end, or order of shards changes the digest."""
    big = tmp_path / "a.gguf"
    with big.open("wb") as file:
        file.truncate(40 << 20)
    small = tmp_path / "b.gguf"
    small.write_bytes(b"GGUF")
    seen = {file_digest([big, small]), file_digest([small, big]), file_digest([big])}
    for offset in (0, (40 << 20) - 1):
        with big.open("r+b") as file:
            file.seek(offset)
            file.write(b"\x01")
        seen.add(file_digest([big]))
    with big.open("ab") as file:
        file.write(b"\x00")
    seen.add(file_digest([big]))

    assert len(seen) == 6
    assert file_digest([big]) == file_digest([big])
