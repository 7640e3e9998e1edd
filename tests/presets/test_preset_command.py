"""A preset's command, parsed by the help of its runtime."""

from __future__ import annotations

import pytest

from autofit.errors import UsageError
from autofit.presets.preset_command import parse_preset_command
from autofit.presets.read_preset import read_preset
from autofit.runtime.discovery.find_runtime import make_offline_runtime


def test_a_bare_flag_is_on_where_the_build_is_missing():
    """Older builds take no value for --flash-attn; a build that needs one refuses it by name."""
    preset = read_preset("llama-server -m a.gguf --flash-attn --jinja")
    runtime = make_offline_runtime()

    found = parse_preset_command(preset, runtime, is_other_build=True)
    with pytest.raises(UsageError, match="--flash-attn"):
        parse_preset_command(preset, runtime)

    assert found.command.params == {"flash_attn": "on"}
    assert found.command.rest == ("--jinja",)
