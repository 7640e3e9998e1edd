"""Writes the header of a GGUF file (version 3, little endian)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autofit.model.gguf.block_type import BlockType, tensor_bytes

ALIGNMENT = 32
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9

Value = bool | int | float | str | Sequence[str] | Sequence[int]


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written; `shape[0]` is the length of a row."""

    name: str
    block_type: BlockType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data without padding."""
        nbytes = tensor_bytes(self.block_type.type_id, self.shape)
        if nbytes is None:
            raise ValueError(f"{self.name}: {self.block_type.name} does not divide {self.shape}")
        return nbytes

    @property
    def padded_bytes(self) -> int:
        """Bytes of its data up to the next tensor."""
        return aligned(self.nbytes)


def aligned(count: int) -> int:
    """Bytes rounded up to the alignment of tensors."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def header_bytes(metadata: Mapping[str, Value], tensors: Sequence[NewTensor]) -> bytes:
    """Everything before the data, padded; the tensors' data follow in the given order."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), _value(value)]
    offset = 0
    for tensor in tensors:
        parts += [
            _text(tensor.name),
            struct.pack("<I", len(tensor.shape)),
            struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape),
            struct.pack("<IQ", tensor.block_type.type_id, offset),
        ]
        offset += tensor.padded_bytes
    header = b"".join(parts)
    return header.ljust(aligned(len(header)), b"\0")


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    texts = [entry for entry in value if isinstance(entry, str)]
    if texts:
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(texts))
        return head + b"".join(map(_text, texts))
    numbers = [entry for entry in value if isinstance(entry, int)]
    return struct.pack(f"<IIQ{len(numbers)}i", _ARRAY, _I32, len(numbers), *numbers)
