"""Models of random weights: what is in them, and what cannot be written."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autofit.errors import AutofitError, UsageError
from autofit.model.gguf.header import read_header
from autofit.model.sizes.inventory import inventory
from autofit.model.synth.random_model import WEIGHT_TYPES, SynthSpec, check, write
from autofit.model.synth.synth_vocab import LARGEST, SMALLEST, UNUSED, vocabulary

SMALL = SynthSpec(
    layers=2, experts=4, used=2, embd=256, ff=256, heads=4, kv_heads=2, head_dim=64, vocab=600
)


@pytest.mark.parametrize("type_", WEIGHT_TYPES)
def test_weights_are_finite_and_of_the_size_that_keeps_signals(type_, tmp_path):
    """gguf-py decodes every matrix to finite numbers around 0, of deviation 1/sqrt(row)."""
    write(dataclasses.replace(SMALL, type=type_, embd_type=type_), tmp_path / "m.gguf")
    for tensor in gguf.GGUFReader(tmp_path / "m.gguf").tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert np.isfinite(values).all(), tensor.name
        if values.ndim == 1:
            assert (values == 1).all(), tensor.name
            continue
        if tensor.name == "output.weight":
            assert tensor.tensor_type.name.lower() == type_
            assert (values[:162] == 0).all(), "tokens that show nothing are unlikely"
            values = values[162:] / 3
        elif tensor.name != "token_embd.weight" and "ffn_gate_inp" not in tensor.name:
            assert tensor.tensor_type.name.lower() == type_
        assert values.std() * values.shape[-1] ** 0.5 == pytest.approx(1, abs=0.05), tensor.name
        assert abs(values.mean()) < 0.05 * values.std(), tensor.name


def test_experts_and_layers_differ(tmp_path):
    """No two experts and no two layers have the same weights."""
    write(SMALL, tmp_path / "m.gguf")
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    experts = [
        expert.tobytes()
        for tensor in tensors
        if tensor.name.endswith("ffn_up_exps.weight")
        for expert in tensor.data
    ]
    assert len(set(experts)) == len(experts) == 8


def test_one_seed_is_one_file(tmp_path):
    """The same spec gives the same bytes, another seed other weights of the same size."""
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write(dataclasses.replace(SMALL, seed=seed), path)
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same != other
    assert len(first) == len(other)


def test_a_dense_model_has_no_experts(tmp_path):
    """Without experts it is a qwen3 with one network per block."""
    write(dataclasses.replace(SMALL, experts=0), tmp_path / "m.gguf")
    model = inventory(tmp_path / "m.gguf")
    assert model.architecture == "qwen3"
    assert not model.is_moe
    assert all(block.dense_ffn_bytes for block in model.blocks)


def test_a_header_alone_takes_no_disk(tmp_path):
    """A hole has the size and the header of the whole file, but hardly a block on disk."""
    spec = dataclasses.replace(SMALL, layers=40, experts=128)
    write(dataclasses.replace(spec, header_only=True), tmp_path / "hole.gguf")
    status = (tmp_path / "hole.gguf").stat()
    assert status.st_size > 500 << 20
    assert status.st_blocks * 512 < 1 << 20
    header = read_header(tmp_path / "hole.gguf")
    assert header.total_bytes - spec.size_bytes < 100_000
    assert sum(t.nbytes for t in header.tensors) <= spec.size_bytes


def test_a_hole_is_the_header_of_the_real_file(tmp_path):
    """Header-only or not, the same header comes out."""
    write(SMALL, tmp_path / "whole.gguf")
    write(dataclasses.replace(SMALL, header_only=True), tmp_path / "hole.gguf")
    whole, hole = read_header(tmp_path / "whole.gguf"), read_header(tmp_path / "hole.gguf")
    assert whole.digest == hole.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"used": 5}, "--used 5: must be 1 to 4"),
        ({"used": 0}, "--used 0"),
        ({"experts": -1}, "--experts -1"),
        ({"layers": 0}, "--layers 0: must be at least 1"),
        ({"layers": 513}, "--layers 513"),
        ({"embd": 320}, "--embd 320: must be a multiple of 256"),
        ({"ff": 100, "type": "q8_0"}, "--ff 100: must be a multiple of 32"),
        ({"heads": 3, "kv_heads": 1}, "--heads x --head-dim 192"),
        ({"kv_heads": 3}, "multiple of --kv-heads 3"),
        ({"head_dim": 63, "heads": 256}, "--head-dim 63: must be even"),
        ({"vocab": 10}, "--vocab 10"),
        ({"vocab": 1 << 30}, "--vocab 1073741824"),
        ({"type": "q3_k"}, "--type q3_k: must be one of f16, q8_0"),
        ({"embd_type": "f32"}, "--embd-type f32: must be one of"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_sizes_that_do_not_go_together_are_told(change, message):
    """Each fault names the option, its value and what it must be."""
    with pytest.raises(UsageError) as error:
        check(dataclasses.replace(SMALL, **change))
    assert message in error.value.message
    assert error.value.hint


def test_all_faults_come_together():
    """One look is enough to repair the sizes."""
    with pytest.raises(UsageError) as error:
        check(dataclasses.replace(SMALL, used=9, kv_heads=3, vocab=1))
    assert len(error.value.message.splitlines()) == 3


class TestPlace:
    """Places that cannot be written to; nothing partial stays behind."""

    def test_a_missing_folder(self, tmp_path):
        """A folder is not made by itself."""
        with pytest.raises(UsageError, match="no such folder"):
            write(SMALL, tmp_path / "none" / "m.gguf")

    def test_a_folder_in_the_files_place(self, tmp_path):
        """A folder is not replaced."""
        with pytest.raises(UsageError, match="is a folder"):
            write(SMALL, tmp_path)

    def test_a_device_in_the_files_place(self):
        """A device is not replaced by a file."""
        with pytest.raises(UsageError, match="no regular file"):
            write(SMALL, Path("/dev/null"))

    def test_a_folder_that_may_not_be_written(self):
        """The system's own files are read-only even to the superuser."""
        with pytest.raises((UsageError, AutofitError)) as error:
            write(SMALL, Path("/proc/m.gguf"))
        assert "/proc" in error.value.message

    def test_a_model_larger_than_the_disk(self, tmp_path):
        """What cannot fit is not begun."""
        spec = dataclasses.replace(SMALL, layers=512, experts=100_000, ff=4096)
        with pytest.raises(AutofitError, match="free") as error:
            write(spec, tmp_path / "m.gguf")
        assert error.value.exit_code == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_fills_up(self, tmp_path):
        """A write that fails half-way leaves no file, and an existing one as it was."""
        (tmp_path / "m.gguf").write_bytes(b"before")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(AutofitError, match="cannot write") as error:
                write(SMALL, tmp_path / "m.gguf")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "space" in error.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
        assert (tmp_path / "m.gguf").read_bytes() == b"before"

    def test_an_existing_file_is_replaced(self, tmp_path):
        """Writing again gives the new file."""
        (tmp_path / "m.gguf").write_bytes(b"before")
        write(SMALL, tmp_path / "m.gguf")
        assert inventory(tmp_path / "m.gguf").block_count == 2


@given(size=st.one_of(st.integers(SMALLEST, SMALLEST + 5000), st.integers(8_000, 12_000)))
def test_a_vocabulary_of_any_size(size):
    """Tokens are as many as asked for, no two alike, and merges only join what is there."""
    words = vocabulary(size)
    assert len(words.tokens) == len(words.types) == size == len(set(words.tokens))
    known = set(words.tokens)
    for merge in words.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_every_byte_has_a_token_and_only_ascii_is_shown():
    """Any text can be tokenized; what a model says is printable ASCII."""
    words = vocabulary(2000)
    byte_of = {letter: byte for byte, letter in gguf_byte_letters().items()}
    assert set(byte_of) <= set(words.tokens)
    for token, type_ in zip(words.tokens, words.types, strict=True):
        if type_ == UNUSED:
            assert byte_of[token] < 0x20 or byte_of[token] >= 0x7F
        elif token != words.tokens[words.end_of_text]:
            shown = bytes(byte_of[letter] for letter in token)
            assert shown.decode("ascii").isprintable()


def test_a_large_vocabulary_is_made():
    """The vocabularies of the largest models fit."""
    assert LARGEST > 1_000_000
    assert len(vocabulary(262_144).tokens) == 262_144


def gguf_byte_letters() -> dict[int, str]:
    """GPT-2's table of bytes, as its authors wrote it."""
    bytes_ = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    codes = bytes_[:]
    for byte in range(256):
        if byte not in bytes_:
            bytes_.append(byte)
            codes.append(256 + len(codes) - 188)
    return dict(zip(bytes_, map(chr, codes), strict=True))


@pytest.mark.parametrize(
    "sizes", [{"ctx": 1 << 32}, {"ff": 1 << 40}, {"experts": 10**30}, {"ff": 1 << 30, "used": 8}]
)
def test_a_size_that_the_file_cannot_hold_is_refused(sizes):
    """Sizes beyond 32 bits are told by their option."""
    with pytest.raises(UsageError, match=r"must be at most 2147483647"):
        check(SynthSpec(**sizes))
