"""The header of a GGUF model: metadata and tensors of all shards, without data.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A damaged file can give
any length, so each length is compared with the size of the file before it is used.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from autofit.errors import MissingError, UsageError
from autofit.input_files import open_regular
from autofit.model.gguf.block_type import tensor_bytes
from autofit.units import MIB

_KEPT_ENTRIES = 1024  # longer arrays are vocabularies; lists by layer are shorter
_KEPT_TEXT_BYTES = 1 << 20
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 17  # models with a tensor for each expert have 50,000
# A hole in a file reads as endless empty strings. The largest vocabulary takes 15 MiB.
_MAX_HEADER_BYTES = 64 * MIB
_MAX_KEPT_BYTES = 32 * MIB
_ENTRY_BYTES = 32  # of a number in memory
_MAX_DIMENSIONS = 4

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_REFETCH = "download the file again, or compare its size with the publisher's"


@dataclass(frozen=True, slots=True)
class OmittedArray:
    """The length of an array that was not read: a vocabulary, its scores, its merges."""

    length: int

    def __len__(self) -> int:
        return self.length


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as the header describes it; `shape[0]` is the length of a row.

    `offset` counts from the start of the data of its file. `nbytes` has no padding.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a model; it combines all shards.

    `metadata` is that of the first shard: numbers, text, short arrays as tuples, long ones as
    `OmittedArray`. `total_bytes` is the size of all files. `digest` depends on the header and
    the size of each file, and not on its name.
    """

    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    files: tuple[Path, ...]
    total_bytes: int
    digest: str
    notices: tuple[str, ...] = ()

    @property
    def n_vocab(self) -> int:
        """Rows of the token embedding; raises UsageError if the model has none."""
        return self._token_embedding.shape[-1]

    @property
    def n_embd(self) -> int:
        """Width of the hidden state; raises UsageError if the model has no token embedding."""
        return self._token_embedding.shape[0]

    @property
    def _token_embedding(self) -> TensorInfo:
        for tensor in self.tensors:
            if tensor.name == "token_embd.weight":
                return tensor
        raise UsageError(f"{self.files[0]}: has no token embedding; use a language model")


def read_header(path: Path) -> GgufHeader:
    """Read metadata and tensors of a model; a split model is read from its first shard.

    Raises:
        UsageError: a file is missing, unreadable, not GGUF, of an unsupported version,
            damaged, or shorter than its header says.
    """
    first = _read_file(path)
    paths = _shards(path, first.metadata)
    files = [first, *map(_read_file, paths[1:])]
    tensors = tuple(tensor for file in files for tensor in file.tensors)
    _check_split(files, tensors)
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(bytes.fromhex(file.digest))
    return GgufHeader(
        metadata=first.metadata,
        tensors=tensors,
        files=tuple(paths),
        total_bytes=sum(file.total_bytes for file in files),
        digest=digest.hexdigest(),
        notices=tuple(notice for file in files for notice in file.notices),
    )


def read_metadata_entries(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each metadata key of a valid file, with the bytes of its key, type and value."""
    with _mapped(path) as data:
        cursor = _Cursor(data, path)
        cursor.at = 16  # after the magic, the version and the number of tensors
        for _ in range(cursor.u64()):
            start = cursor.at
            key = cursor.text()
            cursor.value(cursor.u32())
            yield key, data[start : cursor.at]


def list_shards(path: Path) -> list[Path]:
    """Return all files of a model from one of them, or only that file if it is not a shard."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [
        path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf")
        for number in range(1, count + 1)
    ]


def _shards(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """Return all files of a model from the first one."""
    count = metadata.get("split.count", 0)
    if not isinstance(count, int) or count <= 1:
        return [path]
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise UsageError(
            f"{path}: is one of {count} shards, but its name is not a shard's",
            f"name the shards NAME-00001-of-{count:05d}.gguf and so on, as they were published",
        )
    paths = list_shards(path)
    if metadata.get("split.no", 0) != 0 or int(match["number"]) != 1:
        raise UsageError(f"{path}: is not the first shard", f"give the first one: {paths[0]}")
    missing = [shard.name for shard in paths if not shard.exists()]
    if missing:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")  # noqa: PLR2004
        raise UsageError(
            f"{path}: {len(missing)} of {count} shards are missing: {shown}",
            f"copy them to {path.parent}",
        )
    return paths


def _check_split(files: list[GgufHeader], tensors: tuple[TensorInfo, ...]) -> None:
    for number, file in enumerate(files[1:], start=1):
        given = file.metadata.get("split.no")
        if given != number:
            raise UsageError(
                f"{file.files[0]}: is shard {given} by its metadata, but {number} by its name",
                "shards of another model or a renamed file: " + _REFETCH,
            )
    path = files[0].files[0]
    expected = files[0].metadata.get("split.tensors.count")
    if len(files) > 1 and isinstance(expected, int) and expected != len(tensors):
        raise UsageError(
            f"{path}: the shards have {len(tensors)} tensors, not {expected}",
            "shards of different models are mixed: " + _REFETCH,
        )
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise UsageError(f"{path}: contains a tensor twice", _REFETCH)


def _read_file(path: Path) -> GgufHeader:
    """Read the header of one file."""
    with _mapped(path) as data:
        try:
            return _parse(path, data)
        except (struct.error, IndexError):
            raise UsageError(
                f"{path}: ends inside its header after {len(data)} bytes", _REFETCH
            ) from None
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path}: the header contains text that is not UTF-8", _REFETCH
            ) from error


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    if "\0" in str(path):
        raise UsageError("the path of the model contains a NUL character")
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise UsageError(f"{path}: is empty", _REFETCH)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data
    except FileNotFoundError:
        raise MissingError(f"{path}: no such file", "give the path of a .gguf file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a folder", "give the .gguf file in it") from None
    except OSError as error:
        is_forbidden = isinstance(error, PermissionError)
        hint = "check its permissions" if is_forbidden else "give the path of a .gguf file"
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error


class _Cursor:
    """A position in a file; reading past the end raises `struct.error`."""

    __slots__ = ("_kept_bytes", "at", "data", "path")

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self._kept_bytes = 0

    def check_size(self) -> None:
        """Refuse a header that is far larger than that of any model."""
        if self.at > _MAX_HEADER_BYTES or self._kept_bytes > _MAX_KEPT_BYTES:
            raise UsageError(f"{self.path}: its header has over {self.at / MIB:.0f} MiB", _REFETCH)

    def scalar(self, layout: struct.Struct) -> Any:  # noqa: ANN401 - depends on the layout
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def u32(self) -> int:
        return int(self.scalar(_U32))

    def u64(self) -> int:
        return int(self.scalar(_U64))

    def count(self, what: str, limit: int, least_bytes: int) -> int:
        """Read and check the number of items that follow, each of at least `least_bytes`."""
        number = self.u64()
        if number > limit:
            raise UsageError(f"{self.path}: impossible count of {number} {what}", _REFETCH)
        if number * least_bytes > len(self.data) - self.at:
            raise struct.error
        return number

    def text(self) -> str:
        length = self.u64()
        end = self.at + length
        if end > len(self.data):
            raise struct.error
        if length > _KEPT_TEXT_BYTES:
            self.at = end
            return ""
        raw = self.data[self.at : end]
        self.at = end
        self._kept_bytes += length + _ENTRY_BYTES
        return raw.decode("utf-8")

    def value(self, kind: int) -> Any:  # noqa: ANN401 - metadata can be anything
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        layout = _SCALARS.get(kind)
        if layout is None:
            raise UsageError(f"{self.path}: has a value of unknown kind {kind}", _REFETCH)
        return self.scalar(layout)

    def _array(self) -> tuple[Any, ...] | OmittedArray:
        kind = self.u32()
        if kind == _STRING:
            number = self.count("strings in one list", _MAX_HEADER_BYTES // _U64.size, _U64.size)
            if number > _KEPT_ENTRIES:
                self._skip_strings(number)
                return OmittedArray(number)
            return tuple(self._texts(number))
        layout = _SCALARS.get(kind)
        if layout is None:
            raise UsageError(f"{self.path}: has a list of unknown kind {kind}", _REFETCH)
        number = self.count("entries in one list", 1 << 40, layout.size)
        if number > _KEPT_ENTRIES:
            self.at += number * layout.size
            return OmittedArray(number)
        self._kept_bytes += number * _ENTRY_BYTES
        return tuple(self.scalar(layout) for _ in range(number))

    def _texts(self, number: int) -> Iterator[str]:
        for _ in range(number):
            yield self.text()
            self.check_size()

    def _skip_strings(self, number: int) -> None:
        """Skip strings by their lengths: a vocabulary has some 100,000 of them."""
        data, at, unpack = self.data, self.at, _U64.unpack_from
        end = min(len(data), at + _MAX_HEADER_BYTES)
        for _ in range(number):
            at += unpack(data, at)[0] + 8
            if at > end:
                break
        self.at = at
        if at > len(data):
            raise struct.error
        self.check_size()


def _parse(path: Path, data: mmap.mmap) -> GgufHeader:
    if data[:4] != b"GGUF":
        raise UsageError(f"{path}: is not a GGUF file", "convert the model to GGUF first")
    cursor = _Cursor(data, path)
    cursor.at = 4
    _check_version(path, cursor.u32())
    tensor_count = cursor.count("tensors", _MAX_TENSORS, 24)
    key_count = cursor.count("keys", _MAX_KEYS, 13)
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.u32())
        cursor.check_size()
    entries = [_read_tensor(cursor) for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise UsageError(f"{path}: general.alignment is {alignment}, not a power of two", _REFETCH)
    start = -(-cursor.at // alignment) * alignment
    tensors, notices = _add_sizes(entries, path, len(data) - start)
    needed = start + max((tensor.offset + tensor.nbytes for tensor in tensors), default=0)
    if tensors and needed > len(data):
        raise UsageError(
            f"{path}: is cut off: {len(data)} bytes, its header describes {needed}", _REFETCH
        )
    digest = hashlib.blake2b(_U64.pack(len(data)), digest_size=16)
    with memoryview(data) as view, view[: cursor.at] as header:
        digest.update(header)
    return GgufHeader(metadata, tensors, (path,), len(data), digest.hexdigest(), notices)


def _check_version(path: Path, version: int) -> None:
    if version in (2, 3):
        return
    if version and not version & 0xFFFF:
        raise UsageError(
            f"{path}: is a big-endian GGUF file",
            "only little-endian files are supported: convert it with gguf_convert_endian.py",
        )
    raise UsageError(
        f"{path}: is GGUF version {version}; only 2 and 3 are supported",
        "convert the model again with a current llama.cpp",
    )


def _read_tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Read a tensor's name, shape, type and offset."""
    name = cursor.text()
    dimensions = cursor.u32()
    if dimensions > _MAX_DIMENSIONS:
        raise UsageError(f"{cursor.path}: tensor {name!r} has {dimensions} dimensions", _REFETCH)
    shape = tuple(cursor.u64() for _ in range(dimensions)) or (1,)
    cursor.check_size()
    return name, shape, cursor.u32(), cursor.u64()


def _add_sizes(
    entries: list[tuple[str, tuple[int, ...], int, int]], path: Path, data_bytes: int
) -> tuple[tuple[TensorInfo, ...], tuple[str, ...]]:
    """Return tensors with their bytes, and notices.

    A tensor of an unknown type extends to the next one.
    """
    starts = sorted({offset for *_, offset in entries} | {data_bytes})
    following = dict(pairwise(starts))
    tensors = []
    unknown: Counter[int] = Counter()
    for name, shape, type_id, offset in entries:
        nbytes = tensor_bytes(type_id, shape)
        if nbytes is None:
            unknown[type_id] += 1
            nbytes = following.get(offset, offset) - offset
        tensors.append(TensorInfo(name, shape, type_id, offset, nbytes))
    notices = (
        f"{path.name}: the block size of type {type_id} is unknown; the sizes of {count} "
        "tensors are computed from their offsets"
        for type_id, count in sorted(unknown.items())
    )
    return tuple(tensors), tuple(notices)
