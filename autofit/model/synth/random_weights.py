"""A fast generator of random weights in ggml's block formats.

Random numbers fill one pattern of some megabytes. Tensors are parts of it that start at random
blocks. Every block decodes to finite numbers of mean 0 and the requested standard deviation.
The block layouts are the structs of ggml's `ggml-common.h`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autofit.model.gguf.block_type import BlockType

PATTERN_BYTES = 8 << 20

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


class RandomBlocks:
    """An endless source of random blocks with one type and one standard deviation."""

    def __init__(self, block_type: BlockType, deviation: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._block_bytes = block_type.nbytes
        self._blocks = PATTERN_BYTES // block_type.nbytes
        fill = _FILLS[block_type.name]
        self._pattern = memoryview(
            np.ascontiguousarray(fill(self._rng, self._blocks, deviation)).reshape(-1).data
        ).cast("B")

    def views(self, nbytes: int) -> Iterator[memoryview]:
        """Yield views of `nbytes` in total, which must be a whole number of blocks."""
        half = self._blocks // 2
        while nbytes > 0:
            start = int(self._rng.integers(half)) * self._block_bytes
            taken = min(nbytes, half * self._block_bytes)
            yield self._pattern[start : start + taken]
            nbytes -= taken


def _random_bytes(rng: np.random.Generator, blocks: int, nbytes: int) -> Bytes:
    return rng.integers(0, 256, (blocks, nbytes), dtype=np.uint8)


def _halves(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | float, blocks: int
) -> Bytes:
    column = np.broadcast_to(np.asarray(values, dtype="<f2"), (blocks,))
    return np.ascontiguousarray(column).view(np.uint8).reshape(blocks, 2)


def _f32(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    return (rng.standard_normal(blocks, dtype=np.float32) * deviation).view(np.uint8)


def _f16(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    values = rng.standard_normal(blocks, dtype=np.float32) * deviation
    return values.astype("<f2").view(np.uint8)


def _q8_0(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """Return blocks of a scale and 32 signed bytes, whose deviation is 74."""
    return np.hstack([_halves(deviation / 74, blocks), _random_bytes(rng, blocks, 32)])


def _q4_0(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """Return blocks of a scale and 32 nibbles minus 8, whose deviation is 4.6.

    Random signs of the scale keep the mean at 0.
    """
    signs = rng.choice([-1.0, 1.0], blocks)
    return np.hstack([_halves(signs * deviation / 4.6, blocks), _random_bytes(rng, blocks, 16)])


def _q4_k(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """Return blocks of two scales, 12 bytes of 6-bit scales and minima, and 256 nibbles.

    A number is scale x s x q - scale_min x m. With scale_min = 7.5 x scale the mean is 0 and
    the deviation is 258 x scale.
    """
    scale = deviation / 258
    scales = [_halves(scale, blocks), _halves(7.5 * scale, blocks)]
    return np.hstack([*scales, _random_bytes(rng, blocks, 12 + 128)])


def _q6_k(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """Return blocks of 256 6-bit numbers minus 32, 16 signed scales, and a scale.

    The deviation is 1368 x scale.
    """
    return np.hstack(
        [_random_bytes(rng, blocks, 128 + 64 + 16), _halves(deviation / 1368, blocks)]
    )


def _mxfp4(rng: np.random.Generator, blocks: int, deviation: float) -> Bytes:
    """Return blocks of an exponent and 32 numbers of 4 bits, whose deviation is 2.93.

    Scales are powers of two. Blocks with the two next to the exact scale are mixed so that all
    together have the deviation.
    """
    scale = deviation / math.sqrt(68.5 / 8)  # the mean square of 0, 0.5, 1, 1.5, 2, 3, 4 and 6
    exponent = math.floor(math.log2(scale))
    share = ((scale / 2.0**exponent) ** 2 - 1) / 3  # of blocks with twice the lower scale
    exponents = 127 + exponent + (rng.random((blocks, 1)) < share)
    return np.hstack([exponents.astype(np.uint8), _random_bytes(rng, blocks, 16)])


_FILLS = {
    "f32": _f32,
    "f16": _f16,
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_k": _q4_k,
    "q6_k": _q6_k,
    "mxfp4": _mxfp4,
}
