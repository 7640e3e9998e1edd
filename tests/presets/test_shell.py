"""Commands on one line."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st
from presets.preset_sample import make_preset

from autofit.presets.formats.registry import write_preset

awkward = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12
).map("x".__add__)


@given(st.lists(awkward, max_size=4), awkward)
def test_any_arguments_are_read_back(arguments, value):
    """`shlex` splits the line into the same arguments and variables."""
    special = make_preset(arguments=tuple(arguments), address=(), env={"A": value}, help=None)

    read = shlex.split(write_preset("args", special))

    assert read == ["env", f"A={value}", "/opt/llama.cpp/llama-server", *arguments]
