"""A copy of a model's header with next to no vocabulary and a hole for data.

A program that only plans memory reads nothing else. What it reports for a graph then lacks
the logits, which are counted for a whole batch where a server keeps a few rows, and which
hide how large the rest of the graph is.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader, TensorInfo, read_header

VOCABULARY = 32
# Tensors with a row for each token, among them those of blocks that predict further tokens
# (GLM, DeepSeek) and DeepSeek V4's table of experts by token.
_BY_TOKEN = re.compile(r"^output\.|token_embd\.|nextn\.(embed_tokens|shared_head)|_tid2eid\.")
_ALIGNMENT = 32
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _STRING, _ARRAY = 4, 8, 9
_DROPPED = (b"tokenizer.", b"split.", b"general.alignment")


def write_copy_without_vocabulary(model: Path, copy: Path) -> None:
    """Write the copy of a model (all its shards) to a new file; its data takes no disk.

    Raises:
        UsageError: the model cannot be read, or has no vocabulary to leave out.
        OSError: the copy cannot be written.
    """
    header = read_header(model)
    n_vocab = vocabulary_size(header)
    architecture = str(header.metadata.get("general.architecture", ""))
    size_key = f"{architecture}.vocab_size".encode()
    entries = [
        span
        for key, span in _entries(header.files[0])
        if not key.startswith(_DROPPED) and key != size_key
    ]
    entries += [
        _text(b"tokenizer.ggml.model") + struct.pack("<I", _STRING) + _text(b"no_vocab"),
        _text(size_key) + struct.pack("<II", _U32, VOCABULARY),
    ]
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(header.tensors), len(entries)), *entries]
    offset = 0
    for tensor in header.tensors:
        shape, nbytes = _lean(tensor, n_vocab)
        parts += [
            _text(tensor.name.encode()),
            struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, tensor.type_id, offset),
        ]
        offset += _aligned(nbytes)
    data = b"".join(parts)
    with copy.open("wb") as file:
        file.write(data)
        file.truncate(_aligned(len(data)) + offset)


def vocabulary_size(header: GgufHeader) -> int:
    """The number of tokens that a model knows.

    Raises:
        UsageError: it has no token embedding.
    """
    return _embedding(header).shape[-1]


def embedding_length(header: GgufHeader) -> int:
    """The width of a model's hidden state.

    Raises:
        UsageError: it has no token embedding.
    """
    return _embedding(header).shape[0]


def _embedding(header: GgufHeader) -> TensorInfo:
    for tensor in header.tensors:
        if tensor.name == "token_embd.weight":
            return tensor
    raise UsageError(f"{header.files[0]}: has no token embedding")


def _lean(tensor: TensorInfo, n_vocab: int) -> tuple[tuple[int, ...], int]:
    """Shape and bytes of a tensor; a row a token becomes a row for each of a few tokens."""
    if tensor.shape[-1] != n_vocab or not _BY_TOKEN.search(tensor.name):
        return tensor.shape, tensor.nbytes
    return (*tensor.shape[:-1], VOCABULARY), tensor.nbytes // n_vocab * VOCABULARY


def _entries(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Each key of a file's metadata with the bytes of key, type and value."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (count,) = struct.unpack_from("<Q", data, 16)
        position = 24
        for _ in range(count):
            start = position
            (length,) = struct.unpack_from("<Q", data, position)
            key = data[position + 8 : position + 8 + length]
            position += 8 + length
            (kind,) = struct.unpack_from("<I", data, position)
            position = _end(data, kind, position + 4)
            yield key, data[start:position]


def _end(data: mmap.mmap, kind: int, position: int) -> int:
    """Where a value ends."""
    if kind == _STRING:
        (length,) = struct.unpack_from("<Q", data, position)
        return int(position + 8 + length)
    if kind != _ARRAY:
        return position + _SIZES[kind]
    inner, count = struct.unpack_from("<IQ", data, position)
    position += 12
    if inner in _SIZES:
        return int(position + _SIZES[inner] * count)
    for _ in range(count):
        position = _end(data, inner, position)
    return position


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _aligned(count: int) -> int:
    return -(-count // _ALIGNMENT) * _ALIGNMENT
