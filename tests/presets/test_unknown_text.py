"""Marks in place of text that is not known."""

from __future__ import annotations

import shlex

from hypothesis import given
from hypothesis import strategies as st

from autofit.presets.unknown_text import mark_unknown, unknown_reasons, without_marks


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_a_mark_survives_splitting(reason):
    """Any reason is read back from a word that a shell has split."""
    (word,) = shlex.split(f"a={mark_unknown(reason)}/b")

    assert unknown_reasons([word, word]) == (reason,)
    assert without_marks(word) == "a=?/b"
