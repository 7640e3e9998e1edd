"""GGUF headers as bytes: of a new model, and of a copy without a vocabulary.

Files are of version 3 and little endian:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autofit.model.gguf.block_type import BlockType, tensor_bytes
from autofit.model.gguf.header import TensorInfo, read_header, read_metadata_entries

ALIGNMENT = 32
COPY_N_VOCAB = 32  # tokens of a copy without a vocabulary
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
# Tensors with a row for each token. Among them are those of blocks that predict further tokens
# (GLM, DeepSeek) and the table of experts by token of DeepSeek V4.
_ROW_PER_TOKEN = re.compile(r"^output\.|token_embd\.|nextn\.(embed_tokens|shared_head)|_tid2eid\.")
_NOT_COPIED = ("tokenizer.", "split.", "general.alignment")

Value = bool | int | float | str | Sequence[str] | Sequence[int]


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor of a new model; `shape[0]` is the length of a row."""

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
        return _pad(self.nbytes)


def encode_header(metadata: Mapping[str, Value], tensors: Sequence[NewTensor]) -> bytes:
    """Return everything before the data, padded; the data follows in the order of the tensors."""
    entries = [_encode_text(key) + _encode_value(value) for key, value in metadata.items()]
    infos = []
    offset = 0
    for tensor in tensors:
        infos.append(_encode_tensor(tensor.name, tensor.shape, tensor.block_type.type_id, offset))
        offset += tensor.padded_bytes
    return _join(entries, infos)


def write_copy_without_vocabulary(model: Path, copy: Path) -> None:
    """Write the header of a whole model with a vocabulary of only `COPY_N_VOCAB` tokens.

    The data of the new file is a hole, which takes no disk. A program that only plans memory
    reads nothing else. Its report on the copy lacks the logits: the planner counts them for a
    whole batch, whereas a server keeps a few rows, and they hide the size of the other buffers.

    Raises:
        UsageError: the model cannot be read, or has no token embedding.
        OSError: the copy cannot be written.
    """
    header = read_header(model)
    n_vocab = header.n_vocab
    size_key = f"{header.metadata.get('general.architecture', '')}.vocab_size"
    entries = [
        entry
        for key, entry in read_metadata_entries(header.files[0])
        if not key.startswith(_NOT_COPIED) and key != size_key
    ]
    entries += [
        _encode_text("tokenizer.ggml.model") + _encode_value("no_vocab"),
        _encode_text(size_key) + _encode_value(COPY_N_VOCAB),
    ]
    infos = []
    offset = 0
    for tensor in header.tensors:
        shape, nbytes = _shrink(tensor, n_vocab)
        infos.append(_encode_tensor(tensor.name, shape, tensor.type_id, offset))
        offset += _pad(nbytes)
    data = _join(entries, infos)
    with copy.open("wb") as file:
        file.write(data)
        file.truncate(len(data) + offset)


def _shrink(tensor: TensorInfo, n_vocab: int) -> tuple[tuple[int, ...], int]:
    """Return the shape and bytes of a tensor in the copy, where tokens have fewer rows."""
    if tensor.shape[-1] != n_vocab or not _ROW_PER_TOKEN.search(tensor.name):
        return tensor.shape, tensor.nbytes
    return (*tensor.shape[:-1], COPY_N_VOCAB), tensor.nbytes // n_vocab * COPY_N_VOCAB


def _join(entries: Sequence[bytes], infos: Sequence[bytes]) -> bytes:
    counts = struct.pack("<IQQ", 3, len(infos), len(entries))
    header = b"".join((b"GGUF", counts, *entries, *infos))
    return header.ljust(_pad(len(header)), b"\0")


def _encode_tensor(name: str, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    layout = f"<I{len(shape)}QIQ"
    return _encode_text(name) + struct.pack(layout, len(shape), *shape, type_id, offset)


def _encode_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode_value(value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _encode_text(value)
    texts = [entry for entry in value if isinstance(entry, str)]
    if texts:
        head = struct.pack("<IIQ", _ARRAY, _STRING, len(texts))
        return head + b"".join(map(_encode_text, texts))
    numbers = [entry for entry in value if isinstance(entry, int)]
    return struct.pack(f"<IIQ{len(numbers)}i", _ARRAY, _I32, len(numbers), *numbers)


def _pad(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT
