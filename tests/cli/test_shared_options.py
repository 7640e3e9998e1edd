"""The options that all commands with a model share."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from autofit.cli.options.shared_options import read_task_options, task_options
from autofit.session.task_options import TaskOptions


def read(*words: str) -> TaskOptions:
    """Return the options of a command that has the shared ones."""
    found = []

    @click.command()
    @task_options
    def command(**given: object) -> None:
        found.append(read_task_options(given))

    CliRunner().invoke(command, ["m.gguf", *words], standalone_mode=False, catch_exceptions=False)
    return found[0]


@pytest.mark.parametrize("option", ["--context", "--parallel"])
@pytest.mark.parametrize("value", ["0", "2147483648", "99999999999999999999999"])
def test_a_count_must_be_one_that_a_runtime_takes(option, value):
    """Absurd numbers are refused with the range."""
    with pytest.raises(click.BadParameter, match="1<=x<=2147483647"):
        read(option, value)


def test_repeated_options_become_mappings():
    """Devices, pins and variables are read by name, and arguments after `--` are kept."""
    options = read("--device", "CUDA0=1GiB", "--set", "n-cpu-moe=3", "--env", "A=b", "--", "-x")

    assert options.devices_mib == {"CUDA0": 1024}
    assert options.pins == {"n_cpu_moe": 3}
    assert options.env == {"A": "b"}
    assert options.extra_args == ("-x",)
