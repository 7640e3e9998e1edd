"""Block sizes of ggml's types, compared with gguf-py."""

from __future__ import annotations

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.model.gguf.block_type import BLOCK_TYPES, find_block_type, tensor_bytes

REFEREE = {
    type_.value: (type_.name.lower(), *gguf.GGML_QUANT_SIZES[type_])
    for type_ in gguf.GGMLQuantizationType
}


def test_the_table_equals_that_of_gguf_py():
    """The table has every type of gguf-py with the same name and size."""
    ours = {t.type_id: (t.name, t.elements, t.nbytes) for t in BLOCK_TYPES.values()}
    assert {type_id: ours.get(type_id) for type_id in REFEREE} == REFEREE


@pytest.mark.parametrize(
    ("name", "row", "nbytes"),
    [("q4_K", 4096, 2304), ("Q8_0", 2880, 3060), ("mxfp4", 2880, 1530), ("f16", 3, 6)],
)
def test_a_row_takes_whole_blocks(name, row, nbytes):
    """A row has the bytes of its blocks; the case of a type's name does not matter."""
    block_type = find_block_type(name)
    assert block_type is not None
    assert block_type.row_bytes(row) == nbytes


@given(
    st.sampled_from(sorted(BLOCK_TYPES)),
    st.integers(1, 40),
    st.lists(st.integers(1, 300), max_size=3),
)
def test_bytes_of_a_tensor(type_id, blocks, lengths):
    """A tensor has the bytes of all its rows."""
    block_type = BLOCK_TYPES[type_id]
    rows = 1
    for length in lengths:
        rows *= length
    shape = (blocks * block_type.elements, *lengths)
    assert tensor_bytes(type_id, shape) == blocks * block_type.nbytes * rows


@pytest.mark.parametrize(("type_id", "shape"), [(99, (32,)), (12, (100, 4)), (0, ())])
def test_unknown_tensor_sizes_are_none(type_id, shape):
    """An unknown type, a row that ends inside a block, and an empty shape have no size."""
    assert tensor_bytes(type_id, shape) is None


def test_an_unknown_name_is_none():
    """A name without a type gives None."""
    assert find_block_type("q9_9") is None
