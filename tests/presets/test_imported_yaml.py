"""Entries of llama-swap's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from autofit.presets.formats.read_yaml import entries_of_data


def _entry(cmd, **extra):
    (found,) = entries_of_data({"models": {"qwen": {"cmd": cmd}}, **extra}, Path())
    return found


@pytest.mark.parametrize("word", ["$HOME", "$$", "a$b", "100%"])
def test_a_dollar_without_braces_is_a_dollar(word):
    """llama-swap fills in `${NAME}` alone; what a shell would do to the rest is not done."""
    found = _entry(f"llama-server -m m.gguf --alias '{word}'")

    assert found.faults == ()
    assert word in found.argv


def test_a_macro_that_is_not_there_is_a_fault():
    """The name is told; macros that are there are filled in, one by another too."""
    found = _entry("${server} --alias ${nobody}", macros={"server": "${bin} -m ${file}",
                   "bin": "llama-server", "file": "m.gguf"})  # fmt: skip

    assert found.faults == ("${nobody} is no macro of this file",)
    assert found.argv[:3] == ("llama-server", "-m", "m.gguf")
