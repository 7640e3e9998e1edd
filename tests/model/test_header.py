"""The header reader, compared with gguf-py, and on damaged files."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_headers import MODELS, Header

from autofit.errors import UsageError
from autofit.model.gguf.header import OmittedArray, read_header


def small_header() -> Header:
    """Return a small file with keys of every kind and two tensors."""
    header = Header(
        "llama",
        {
            "block_count": 1,
            "rope.freq_base": 10000.0,
            "use_parallel_residual": True,
            "attention.head_count_kv": [2, 0, 4],
            "tokenizer.ggml.tokens": ["a", "b", "ü"],
        },
    )
    header.add("token_embd.weight", 256, 3)
    header.add("blk.0.attn_norm.weight", 5)
    return header


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> bytes:
    """Return the bytes of the small file."""
    return small_header().write(tmp_path_factory.mktemp("small") / "s.gguf").read_bytes()


@pytest.mark.parametrize("name", ["qwen35moe", "gpt_oss_20b", "gemma4_26b", "deepseek_v4"])
def test_headers_read_like_with_gguf_py(name, tmp_path):
    """Names, shapes, types, offsets, sizes and metadata equal those of gguf-py."""
    path = MODELS[name]().write(tmp_path / "m.gguf")
    header = read_header(path)
    reader = gguf.GGUFReader(path)
    assert [(t.name, t.shape, t.type_id, t.nbytes) for t in header.tensors] == [
        (t.name, tuple(t.shape), t.tensor_type.value, t.n_bytes) for t in reader.tensors
    ]
    assert [reader.data_offset + t.offset for t in header.tensors] == [
        t.data_offset for t in reader.tensors
    ]
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            value = field.contents()
            assert header.metadata[key] == (tuple(value) if isinstance(value, list) else value)
    assert header.total_bytes == path.stat().st_size
    assert header.files == (path,)
    assert header.notices == ()


def test_long_arrays_are_read_as_their_length(tmp_path):
    """Lists of up to 1024 entries are read; of longer ones only the length is."""
    header = small_header()
    header.keys |= {
        "tokenizer.ggml.tokens": [f"token {i}" for i in range(152_000)],
        "tokenizer.ggml.scores": [0.5] * 152_000,
        "attention.head_count": [7] * 1024,
        "feed_forward_length": [7] * 1025,
    }
    metadata = read_header(header.write(tmp_path / "m.gguf")).metadata
    assert metadata["tokenizer.ggml.tokens"] == OmittedArray(152_000)
    assert len(metadata["tokenizer.ggml.scores"]) == 152_000
    assert metadata["llama.attention.head_count"] == (7,) * 1024
    assert metadata["llama.feed_forward_length"] == OmittedArray(1025)
    assert metadata["llama.block_count"] == 1, "what follows the long lists must be read too"


def test_all_shards_are_one_model(tmp_path):
    """A model in shards has the tensors and the size of all its files."""
    whole = read_header(MODELS["qwen3moe"]().write(tmp_path / "m.gguf"))
    first = MODELS["qwen3moe"]().write(tmp_path / "s.gguf", shards=3)
    header = read_header(first)
    sizes = {t.name: t.nbytes for t in whole.tensors}
    assert {t.name: t.nbytes for t in header.tensors} == sizes
    assert [file.name for file in header.files] == [f"s-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    assert header.total_bytes == sum(file.stat().st_size for file in header.files)


def test_the_digest_does_not_depend_on_the_name(tmp_path):
    """The digest depends on the header and the size, not on the path or the time."""
    one = small_header().write(tmp_path / "one.gguf")
    other = small_header().write(tmp_path / "other.gguf")
    assert read_header(one).digest == read_header(other).digest
    changed = small_header()
    changed.keys["block_count"] = 2
    assert read_header(changed.write(tmp_path / "c.gguf")).digest != read_header(one).digest
    with other.open("ab") as file:
        file.write(b"more")
    assert read_header(other).digest != read_header(one).digest


def test_a_tensor_of_unknown_type_extends_to_the_next(tmp_path, small):
    """An unknown type gets its size from offsets, with a notice."""
    position = small.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    path = tmp_path / "m.gguf"
    path.write_bytes(small[:position] + struct.pack("<I", 77) + small[position + 4 :])
    header = read_header(path)
    assert header.tensors[0].type_id == 77
    assert header.tensors[0].nbytes == header.tensors[1].offset
    assert "type 77" in header.notices[0]
    assert "m.gguf" in header.notices[0]


def test_version_2_is_read(tmp_path, small):
    """Files of version 2 have the same layout."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small[:4] + struct.pack("<I", 2) + small[8:])
    assert len(read_header(path).tensors) == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(100), "is not a GGUF file"),
        (b"GG", "is not a GGUF file"),
        (b"GGUF", "ends inside its header"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1"),
        (b"GGUF" + struct.pack("<I", 4) + bytes(64), "version 4"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0) + bytes(64), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 9, 0) + bytes(64), "ends inside its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40) + bytes(64), "keys"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + b"\xff" * 64, "ends inside its header"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99) + bytes(9),
            "unknown kind 99",
        ),
        (
            b"GGUF"
            + struct.pack("<IQQQ", 3, 0, 1, 1)
            + b"k"
            + struct.pack("<II", 9, 9)
            + bytes(8),
            "list of unknown kind 9",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff" + struct.pack("<II", 4, 1),
            "not UTF-8",
        ),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 5) + bytes(60),
            "5 dimensions",
        ),
    ],
)
def test_files_that_are_no_gguf(data, message, tmp_path):
    """Each fault of a header has a message with the path, and a hint."""
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message) as error:
        read_header(path)
    assert error.value.hint
    assert str(path) in error.value.message


def test_a_hole_for_a_header_is_an_error(tmp_path):
    """A list of strings in a hole, which never ends, is an error at once."""
    path = tmp_path / "m.gguf"
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 36)
    path.write_bytes(start)
    os.truncate(path, 1 << 42)
    with pytest.raises(UsageError, match="68719476736 strings"):
        read_header(path)


def test_missing_data_is_reported_with_both_sizes(tmp_path):
    """A file that is shorter than its header describes is an error with both sizes."""
    path = MODELS["qwen3moe"]().write(tmp_path / "m.gguf")
    size = path.stat().st_size
    os.truncate(path, size - 100)
    with pytest.raises(UsageError, match=f"cut off: {size - 100} bytes.* {size}") as error:
        read_header(path)
    assert "download" in error.value.hint


@given(cut=st.integers(1, 100_000))
def test_a_file_cut_anywhere_is_an_error(cut, small):
    """A file that ends anywhere before its end is a usage error."""
    kept = small[: len(small) - 1 - cut % (len(small) - 1)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(kept)
        # The padding after the last tensor may be missing.
        if len(small) - len(kept) > 12:
            with pytest.raises(UsageError):
                read_header(path)


@settings(max_examples=200)
@given(changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1))
def test_a_damaged_header_is_read_or_an_error(changes, small):
    """Any changed bytes give a header or a usage error."""
    data = bytearray(small)
    for position, value in changes:
        data[position % len(data)] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        path.write_bytes(data)
        with contextlib.suppress(UsageError):
            header = read_header(path)
            assert all(tensor.nbytes >= 0 for tensor in header.tensors)


@pytest.mark.parametrize("alignment", [0, 24])
def test_an_invalid_alignment_is_an_error(alignment, tmp_path):
    """The alignment of the data must be a power of two."""
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_uint32("general.alignment", alignment)
    path = tmp_path / "m.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UsageError, match=f"alignment is {alignment}"):
        read_header(path)


def test_another_alignment_is_used(tmp_path):
    """The data starts at a multiple of the file's own alignment."""
    writer = gguf.GGUFWriter(None, "llama")
    writer.add_custom_alignment(256)
    writer.add_tensor_info("a.weight", (4,), np.dtype(np.float32), 16)
    path = tmp_path / "m.gguf"
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, 256 + 16)
    assert read_header(path).tensors[0].nbytes == 16
    os.truncate(path, 256 + 15)
    with pytest.raises(UsageError, match="cut off"):
        read_header(path)


def test_a_duplicate_tensor_is_an_error(tmp_path, small):
    """Two tensors with one name are an error."""
    path = tmp_path / "m.gguf"
    long, short = b"token_embd.weight", b"blk.0.attn_norm.weight"
    twice = small.replace(struct.pack("<Q", len(short)) + short, struct.pack("<Q", 17) + long, 1)
    path.write_bytes(twice.ljust(len(small) + 64, b"\0"))
    with pytest.raises(UsageError, match="twice"):
        read_header(path)


class TestPath:
    """Paths without a readable file."""

    def test_a_missing_file(self, tmp_path):
        """A path without a file is an error."""
        with pytest.raises(UsageError, match="no such file"):
            read_header(tmp_path / "none.gguf")

    def test_a_folder(self, tmp_path):
        """A folder is not a model, and the hint names the kind of file."""
        with pytest.raises(UsageError, match="is a folder") as error:
            read_header(tmp_path)
        assert ".gguf" in error.value.hint

    def test_a_pipe(self, tmp_path):
        """A pipe is an error, and not waited for."""
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(UsageError, match="not a regular file"):
            read_header(tmp_path / "pipe")

    def test_a_name_that_is_too_long(self, tmp_path):
        """The error contains the system's reason."""
        with pytest.raises(UsageError, match="too long"):
            read_header(tmp_path / ("n" * 300))

    def test_a_nul_in_the_name(self):
        """A NUL character in a path is an error."""
        with pytest.raises(UsageError, match="NUL"):
            read_header(Path("a\0b"))

    def test_a_file_without_permission(self, tmp_path):
        """The error contains the reason why the file cannot be opened."""
        path = tmp_path / "m.gguf"
        path.write_bytes(b"GGUF")
        path.chmod(0)
        was = os.geteuid()
        if was == 0:  # the superuser reads everything
            os.seteuid(65534)
        try:
            with pytest.raises(UsageError, match="Permission denied"):
                read_header(path)
        finally:
            os.seteuid(was)


class TestShards:
    """Models in shards that are not complete."""

    @pytest.fixture
    def first(self, tmp_path) -> Path:
        """Return the first of three shards."""
        return MODELS["mixtral"]().write(tmp_path / "s.gguf", shards=3)

    def test_a_missing_shard_is_named(self, first):
        """The message has the number and the names of missing shards."""
        first.with_name("s-00002-of-00003.gguf").unlink()
        with pytest.raises(UsageError, match=r"1 of 3 shards .*s-00002-of-00003\.gguf"):
            read_header(first)

    def test_only_the_first_shard_is_accepted(self, first):
        """The hint names the first shard, which runtimes need."""
        with pytest.raises(UsageError, match="not the first shard") as error:
            read_header(first.with_name("s-00002-of-00003.gguf"))
        assert str(first) in error.value.hint

    def test_a_renamed_shard_is_an_error(self, first):
        """The hint gives the names that shards need to be found."""
        renamed = first.rename(first.with_name("model.gguf"))
        with pytest.raises(UsageError, match="one of 3 shards") as error:
            read_header(renamed)
        assert "00001-of-00003" in error.value.hint

    def test_a_damaged_shard_is_named(self, first):
        """The message names the shard that is cut off."""
        third = first.with_name("s-00003-of-00003.gguf")
        os.truncate(third, third.stat().st_size - 999)
        with pytest.raises(UsageError, match=r"s-00003-of-00003\.gguf: is cut off"):
            read_header(first)

    def test_shards_in_the_wrong_order_are_an_error(self, first):
        """A shard with another number than its name is an error."""
        second, third = (first.with_name(f"s-0000{n}-of-00003.gguf") for n in (2, 3))
        held = second.rename(first.with_name("held"))
        third.rename(second)
        held.rename(third)
        with pytest.raises(UsageError, match="is shard 2 by its metadata, but 1 by its name"):
            read_header(first)

    def test_shards_of_different_models_are_an_error(self, first, tmp_path):
        """A wrong number of tensors is an error."""
        other = MODELS["llama_8b"]().write(tmp_path / "o.gguf", shards=3)
        other.with_name("o-00002-of-00003.gguf").replace(first.with_name("s-00002-of-00003.gguf"))
        with pytest.raises(UsageError, match="tensors"):
            read_header(first)


def _text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _list_of(kind: int, number: int) -> bytes:
    return _text(b"key") + struct.pack("<IIQ", 9, kind, number)


@pytest.mark.parametrize(
    ("tensors", "keys", "start"),
    [
        (0, 1, _list_of(8, 1 << 22)),
        (0, 1 << 16, _list_of(8, 1 << 22)),
        (0, 1 << 16, _list_of(12, 1 << 20)),
        (0, 1, _list_of(8, 2000) + struct.pack("<Q", 1 << 39)),
        (0, 1, _text(b"key") + struct.pack("<IQ", 8, 1 << 39)),
        (1 << 17, 0, b""),
        (1 << 40, 1 << 40, b""),
    ],
)
def test_a_hole_is_no_header(tensors, keys, start, tmp_path):
    """A file of 1 TiB without data is not read to its end, whatever its counts and lengths say."""
    path = tmp_path / "sparse.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + start)
        file.truncate(1 << 40)
    with contextlib.suppress(UsageError):
        header = read_header(path)
        assert not header.tensors


def test_lists_of_long_texts_have_a_limit(tmp_path):
    """Texts that are kept have a limit together, not only each."""
    header = small_header()
    header.keys["notes"] = ["x" * (1 << 20)] * 100
    with pytest.raises(UsageError, match="MiB"):
        read_header(header.write(tmp_path / "m.gguf"))
