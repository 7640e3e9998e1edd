"""The tensor types of ggml and their block sizes.

Source: `type_traits` in ggml's `ggml.c`, and `GGML_QUANT_SIZES` of gguf-py. A type's id is the
number that GGUF files contain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """A ggml type, which stores `elements` numbers together in a block of `nbytes` bytes."""

    type_id: int
    name: str
    elements: int
    nbytes: int

    def row_bytes(self, elements: int) -> int:
        """Return the bytes of a row; a block that is only partly filled counts in full."""
        return -(-elements // self.elements) * self.nbytes


BLOCK_TYPES = {
    block_type.type_id: block_type
    for block_type in (
        BlockType(0, "f32", 1, 4),
        BlockType(1, "f16", 1, 2),
        BlockType(2, "q4_0", 32, 18),
        BlockType(3, "q4_1", 32, 20),
        BlockType(6, "q5_0", 32, 22),
        BlockType(7, "q5_1", 32, 24),
        BlockType(8, "q8_0", 32, 34),
        BlockType(9, "q8_1", 32, 40),
        BlockType(10, "q2_k", 256, 84),
        BlockType(11, "q3_k", 256, 110),
        BlockType(12, "q4_k", 256, 144),
        BlockType(13, "q5_k", 256, 176),
        BlockType(14, "q6_k", 256, 210),
        BlockType(15, "q8_k", 256, 292),
        BlockType(16, "iq2_xxs", 256, 66),
        BlockType(17, "iq2_xs", 256, 74),
        BlockType(18, "iq3_xxs", 256, 98),
        BlockType(19, "iq1_s", 256, 50),
        BlockType(20, "iq4_nl", 32, 18),
        BlockType(21, "iq3_s", 256, 110),
        BlockType(22, "iq2_s", 256, 82),
        BlockType(23, "iq4_xs", 256, 136),
        BlockType(24, "i8", 1, 1),
        BlockType(25, "i16", 1, 2),
        BlockType(26, "i32", 1, 4),
        BlockType(27, "i64", 1, 8),
        BlockType(28, "f64", 1, 8),
        BlockType(29, "iq1_m", 256, 56),
        BlockType(30, "bf16", 1, 2),
        BlockType(34, "tq1_0", 256, 54),
        BlockType(35, "tq2_0", 256, 66),
        BlockType(39, "mxfp4", 32, 17),
        BlockType(40, "nvfp4", 64, 36),
        BlockType(41, "q1_0", 128, 18),
        BlockType(42, "q2_0", 64, 18),
    )
}

_BY_NAME = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}


def find_block_type(name: str) -> BlockType | None:
    """Return the type of a name in any case (`Q4_K`, `q4_k`), or None if there is none."""
    return _BY_NAME.get(name.lower())


def tensor_bytes(type_id: int, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor's data without padding; `shape[0]` is the length of a row.

    Returns None for an unknown type, and for a row that is no whole number of blocks. Its size can
    then be computed only from the offset of the next tensor in the file.
    """
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None or not shape or shape[0] % block_type.elements:
        return None
    return block_type.row_bytes(shape[0]) * math.prod(shape[1:])
