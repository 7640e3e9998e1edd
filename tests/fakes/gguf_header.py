"""Reads and writes the headers of GGUF files, tolerantly; tensor data is never touched.

Paths are text here: importing pathlib would slow every start of the fake server.
"""

# ruff: noqa: PTH123 -- see above

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

from fakes.model import TYPES, Model, Tensor

ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_STRING, _ARRAY = 8, 9
_CUT = "gguf_init_from_reader: failed to read key-value pairs"
_KEPT = 512  # longer arrays are skipped; nothing the physics needs is longer


class BadModelError(Exception):
    """The file is no complete GGUF; the text is what llama.cpp logs about it."""


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def take(self, form: str) -> Any:
        raw = self.file.read(struct.calcsize("<" + form))
        try:
            return struct.unpack("<" + form, raw)[0]
        except struct.error as error:
            raise BadModelError(_CUT) from error

    def text(self) -> str:
        length = self.take("Q")
        raw = self.file.read(length)
        if len(raw) < length:
            raise BadModelError(_CUT)
        return raw.decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        inner, count = self.take("I"), self.take("Q")
        if inner == _STRING:
            return self._texts(count)
        size = struct.calcsize("<" + _SCALARS[inner])
        raw = self.file.read(size * count)
        is_kept = count <= _KEPT
        return list(struct.unpack(f"<{count}{_SCALARS[inner]}", raw)) if is_kept else None

    def _texts(self, count: int) -> list[str] | None:
        if count <= _KEPT:
            return [self.text() for _ in range(count)]
        read, unpack = self.file.read, struct.Struct("<Q").unpack
        try:
            for _ in range(count):
                read(unpack(read(8))[0])
        except struct.error as error:
            raise BadModelError(_CUT) from error
        return None


def shards(path: str) -> list[str]:
    """All files of a model named by its first shard."""
    found = re.search(r"-00001-of-(\d{5})\.gguf$", path)
    if not found:
        return [path]
    stem, count = path[: found.start()], found.group(1)
    return [f"{stem}-{i:05}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def _read_one(path: str) -> tuple[dict[str, Any], list[Tensor]]:
    with open(path, "rb") as file:
        reader = _Reader(file)
        if file.read(4) != b"GGUF":
            raise BadModelError("gguf_init_from_reader: invalid magic characters")
        reader.take("I")
        n_tensors, n_values = reader.take("Q"), reader.take("Q")
        metadata = {}
        for _ in range(n_values):
            key = reader.text()
            metadata[key] = reader.value(reader.take("I"))
        tensors, end = [], 0
        for _ in range(n_tensors):
            name, rank = reader.text(), reader.take("I")
            shape = tuple(reader.take("Q") for _ in range(rank))
            tensor = Tensor(name, shape, reader.take("I"))
            if tensor.type_id not in TYPES:
                raise BadModelError(f"tensor '{name}' of type {tensor.type_id} is unknown")
            tensors.append(tensor)
            end = max(end, reader.take("Q") + tensor.nbytes)
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        size = file.seek(0, 2)
    if size < start + end:
        bad = tensors[-1].name
        raise BadModelError(
            f"tensor '{bad}' data is not within the file bounds, model is corrupted or incomplete"
        )
    return metadata, tensors


Header = tuple[dict[str, Any], list[tuple[str, tuple[int, ...], int]]]


def read_header(path: str) -> Header:
    """Metadata and tensors (name, shape, type) of a GGUF file and its further shards.

    Raises:
        FileNotFoundError: a file is missing.
        BadModelError: a file is no complete GGUF.
    """
    metadata: dict[str, Any] = {}
    tensors: list[tuple[str, tuple[int, ...], int]] = []
    for shard in shards(path):
        more, found = _read_one(shard)
        metadata = {**more, **metadata}
        tensors += map(tuple, found)
    return metadata, tensors


def read_model(path: str) -> Model:
    """The model in a GGUF file; raises as `read_header` does."""
    return model_of(read_header(path))


def model_of(header: Header) -> Model:
    """The model that a header describes."""
    metadata, tensors = header
    return Model.from_tensors(metadata, (Tensor(*tensor) for tensor in tensors))


def _pack_text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _pack_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value) if value < 0 else struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _pack_text(value)
    head = struct.pack("<II", _ARRAY, _STRING if isinstance(value[0], str) else 5)
    body = b"".join(
        _pack_text(item) if isinstance(item, str) else struct.pack("<i", item) for item in value
    )
    return head + struct.pack("<Q", len(value)) + body


def write_header(path: str, metadata: Mapping[str, Any], tensors: Iterable[Tensor]) -> None:
    """Write a GGUF file whose header is complete and whose data is a hole of the right size."""
    tensors = tuple(tensors)
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
        file.writelines(_pack_text(key) + _pack_value(value) for key, value in metadata.items())
        offset = 0
        for tensor in tensors:
            file.write(_pack_text(tensor.name) + struct.pack("<I", len(tensor.shape)))
            file.write(struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape))
            file.write(struct.pack("<IQ", tensor.type_id, offset))
            offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        file.truncate(start + offset)


def write_model(path: str, model: Model) -> None:
    """Write a model's header to a file, its data a hole."""
    write_header(path, model.metadata, model.tensors)
