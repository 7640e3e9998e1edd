"""Expansion of `${NAME}` and `$NAME`, and marks for unknown text."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.presets.formats.variable_expansion import (
    expand,
    mark_unknown,
    parameter_value,
    unknown_reasons,
    without_marks,
)


@given(st.text(), st.dictionaries(st.sampled_from(["A", "B"]), st.text()))
def test_text_without_dollars_stays(text, values):
    """Text without a dollar is unchanged."""
    plain = text.replace("$", "")

    assert expand(plain, values.get, "here") == plain


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("A", "1"),
        ("A:-x", "1"),
        ("B:-x", "x"),
        ("B-x", ""),
        ("C-x", "x"),
        ("C", None),
        ("#A", None),
    ],
)
def test_a_default_replaces_a_missing_value(inner, value):
    """With a colon the default replaces an empty value as well."""
    assert parameter_value(inner, {"A": "1", "B": ""}) == value


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_a_mark_survives_splitting(reason):
    """Any reason is read back from a word that a shell has split."""
    (word,) = shlex.split(f"a={mark_unknown(reason)}/b")

    assert unknown_reasons([word, word]) == (reason,)
    assert without_marks(word) == "a=?/b"
