"""Models of random weights: their contents, and errors while writing."""

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
from autofit.model.sizes.inventory import read_inventory
from autofit.model.synth.architectures import ARCHITECTURES
from autofit.model.synth.random_model import WEIGHT_TYPES, SynthSpec, check_spec, write_model
from autofit.model.synth.vocabulary import (
    LARGEST_VOCABULARY,
    SMALLEST_VOCABULARY,
    UNUSED,
    build_vocabulary,
)

SMALL = SynthSpec(
    layers=2, experts=4, used=2, embd=256, ff=256, heads=4, kv_heads=2, head_dim=64, vocab=600
)


@pytest.mark.parametrize("type_", WEIGHT_TYPES)
def test_weights_are_finite_with_the_requested_deviation(type_, tmp_path):
    """gguf-py decodes every matrix to finite numbers of mean 0 and deviation 1/sqrt(row)."""
    write_model(dataclasses.replace(SMALL, type=type_, embd_type=type_), tmp_path / "m.gguf")
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


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_has_its_name_and_finite_weights(arch, tmp_path):
    """gguf-py reads every tensor of every architecture; matrices have the deviation."""
    write_model(dataclasses.replace(SMALL, arch=arch, layers=4), tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.get_field("general.architecture").contents() == arch
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert np.isfinite(values).all(), tensor.name
        if values.ndim == 3:
            assert values.std() * values.shape[-1] ** 0.5 == pytest.approx(1, abs=0.05)


def test_architectures_differ_in_their_memory(tmp_path):
    """Windows, latents, recurrent states, dense first blocks and a nextn block are read back."""
    models = {}
    for arch in ARCHITECTURES:
        write_model(dataclasses.replace(SMALL, arch=arch, layers=4), tmp_path / "m.gguf")
        models[arch] = read_inventory(tmp_path / "m.gguf")
        assert not models[arch].notices
    kinds = {arch: [b.attention for b in m.blocks] for arch, m in models.items()}
    assert kinds["gpt-oss"] == ["swa", "full"] * 2
    assert kinds["deepseek2"] == ["mla"] * 4
    assert kinds["qwen3next"] == ["recurrent"] * 3 + ["full"]
    assert [b.is_nextn for b in models["glm4moe"].blocks] == [False] * 4 + [True]
    for arch in ("deepseek2", "glm4moe"):
        blocks = models[arch].blocks
        assert [bool(b.dense_ffn_bytes) for b in blocks[:3]] == [True, False, False]
        assert [bool(b.expert_bytes) for b in blocks[:3]] == [False, True, True]
        assert blocks[1].shared_expert_bytes


def test_experts_and_layers_differ(tmp_path):
    """Two experts or two layers never have the same weights."""
    write_model(SMALL, tmp_path / "m.gguf")
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    experts = [
        expert.tobytes()
        for tensor in tensors
        if tensor.name.endswith("ffn_up_exps.weight")
        for expert in tensor.data
    ]
    assert len(set(experts)) == len(experts) == 8


def test_the_seed_determines_the_file(tmp_path):
    """Equal specs give equal bytes; another seed gives other weights of the same size."""
    paths = [tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (1, 1, 2), strict=True):
        write_model(dataclasses.replace(SMALL, seed=seed), path)
    first, same, other = (path.read_bytes() for path in paths)
    assert first == same != other
    assert len(first) == len(other)


def test_a_dense_model_has_no_experts(tmp_path):
    """A model without experts is a qwen3 with one network per block."""
    write_model(dataclasses.replace(SMALL, experts=0), tmp_path / "m.gguf")
    model = read_inventory(tmp_path / "m.gguf")
    assert model.architecture == "qwen3"
    assert not model.is_moe
    assert all(block.dense_ffn_bytes for block in model.blocks)


def test_a_header_alone_takes_no_disk(tmp_path):
    """A header-only file has the size of the whole file, but almost no blocks on disk."""
    spec = dataclasses.replace(SMALL, layers=40, experts=128)
    write_model(dataclasses.replace(spec, header_only=True), tmp_path / "hole.gguf")
    status = (tmp_path / "hole.gguf").stat()
    assert status.st_size > 500 << 20
    assert status.st_blocks * 512 < 1 << 20
    header = read_header(tmp_path / "hole.gguf")
    assert header.total_bytes - spec.size_bytes < 100_000
    assert sum(t.nbytes for t in header.tensors) <= spec.size_bytes


def test_header_only_files_have_the_same_header(tmp_path):
    """A file has the same header with and without data."""
    write_model(SMALL, tmp_path / "whole.gguf")
    write_model(dataclasses.replace(SMALL, header_only=True), tmp_path / "hole.gguf")
    whole, hole = read_header(tmp_path / "whole.gguf"), read_header(tmp_path / "hole.gguf")
    assert whole.digest == hole.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"used": 5}, "--used 5: must be 1 to 4"),
        ({"used": 0}, "--used 0"),
        ({"experts": -1}, "--experts -1"),
        ({"layers": 0}, "--layers 0: must be 1 to"),
        ({"layers": 513}, "--layers 513"),
        ({"embd": 320}, "--embd 320: must be a multiple of 256"),
        ({"ff": 100, "type": "q8_0"}, "--ff 100: must be a multiple of 32"),
        ({"heads": 3, "kv_heads": 1}, "--heads x --head-dim 192"),
        ({"kv_heads": 3}, "multiple of --kv-heads 3"),
        ({"head_dim": 63, "heads": 256}, "--head-dim 63: must be a multiple of 2"),
        ({"head_dim": 68, "arch": "qwen3next"}, "--head-dim 68: must be a multiple of 8"),
        ({"arch": "bert"}, "--arch bert: must be one of qwen3moe, gpt-oss"),
        ({"arch": "gpt-oss", "experts": 0}, "--experts 0: must be at least 1"),
        ({"vocab": 10}, "--vocab 10"),
        ({"vocab": 1 << 30}, "--vocab 1073741824"),
        ({"type": "q3_k"}, "--type q3_k: must be one of f16, q8_0"),
        ({"embd_type": "f32"}, "--embd-type f32: must be one of"),
        ({"seed": -1}, "--seed -1"),
    ],
)
def test_sizes_that_do_not_match(change, message):
    """Each fault names the option, its value and the rule."""
    with pytest.raises(UsageError) as error:
        check_spec(dataclasses.replace(SMALL, **change))
    assert message in error.value.message
    assert error.value.hint


def test_all_faults_are_reported_together():
    """One error lists all faults."""
    with pytest.raises(UsageError) as error:
        check_spec(dataclasses.replace(SMALL, used=9, kv_heads=3, vocab=1))
    assert len(error.value.message.splitlines()) == 3


class TestPath:
    """Paths that cannot be written; no partial file stays behind."""

    def test_a_missing_folder(self, tmp_path):
        """A missing folder is not created."""
        with pytest.raises(UsageError, match="no such folder"):
            write_model(SMALL, tmp_path / "none" / "m.gguf")

    def test_a_path_of_a_folder(self, tmp_path):
        """A folder is not replaced."""
        with pytest.raises(UsageError, match="is a folder"):
            write_model(SMALL, tmp_path)

    def test_a_path_of_a_device(self):
        """A device is not replaced by a file."""
        with pytest.raises(UsageError, match="not a regular file"):
            write_model(SMALL, Path("/dev/null"))

    def test_a_read_only_folder(self):
        """A folder of the system is read-only even to the superuser."""
        with pytest.raises((UsageError, AutofitError)) as error:
            write_model(SMALL, Path("/proc/m.gguf"))
        assert "/proc" in error.value.message

    def test_a_model_larger_than_the_disk(self, tmp_path):
        """A model that cannot fit is not started."""
        spec = dataclasses.replace(SMALL, layers=512, experts=100_000, ff=4096)
        with pytest.raises(AutofitError, match="free") as error:
            write_model(spec, tmp_path / "m.gguf")
        assert error.value.exit_code == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_fills_up(self, tmp_path):
        """A write that fails leaves no partial file and does not change an existing one."""
        (tmp_path / "m.gguf").write_bytes(b"before")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
        try:
            with pytest.raises(AutofitError, match="cannot write") as error:
                write_model(SMALL, tmp_path / "m.gguf")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "space" in error.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
        assert (tmp_path / "m.gguf").read_bytes() == b"before"

    def test_an_existing_file_is_replaced(self, tmp_path):
        """A second write replaces the file."""
        (tmp_path / "m.gguf").write_bytes(b"before")
        write_model(SMALL, tmp_path / "m.gguf")
        assert read_inventory(tmp_path / "m.gguf").block_count == 2


@given(
    size=st.one_of(
        st.integers(SMALLEST_VOCABULARY, SMALLEST_VOCABULARY + 5000), st.integers(8_000, 12_000)
    )
)
def test_a_vocabulary_of_any_size(size):
    """All tokens differ, their number is the requested one, and merges join known tokens."""
    words = build_vocabulary(size)
    assert len(words.tokens) == len(words.types) == size == len(set(words.tokens))
    known = set(words.tokens)
    for merge in words.merges:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= known


def test_every_byte_has_a_token_and_only_ascii_is_shown():
    """Any text can be tokenized, and only printable ASCII is visible in answers."""
    words = build_vocabulary(2000)
    byte_of = {letter: byte for byte, letter in gguf_byte_letters().items()}
    assert set(byte_of) <= set(words.tokens)
    for token, type_ in zip(words.tokens, words.types, strict=True):
        if type_ == UNUSED:
            assert byte_of[token] < 0x20 or byte_of[token] >= 0x7F
        elif token != words.tokens[words.end_of_text]:
            shown = bytes(byte_of[letter] for letter in token)
            assert shown.decode("ascii").isprintable()


def test_a_large_vocabulary_is_made():
    """A vocabulary can be as large as those of the largest models."""
    assert LARGEST_VOCABULARY > 1_000_000
    assert len(build_vocabulary(262_144).tokens) == 262_144


def gguf_byte_letters() -> dict[int, str]:
    """Return GPT-2's table of bytes, as its authors wrote it."""
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
def test_sizes_beyond_32_bits_are_errors(sizes):
    """A size beyond 32 bits is an error that names the limit."""
    with pytest.raises(UsageError, match="2147483647"):
        check_spec(SynthSpec(**sizes))
