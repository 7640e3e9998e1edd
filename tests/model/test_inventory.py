"""Bytes by block, from headers of real models."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_headers import MODELS, Header, tensor_bytes
from model_headers.header import model

from autofit.errors import UsageError
from autofit.model.gguf.header import GgufHeader, OmittedArray, TensorInfo
from autofit.model.sizes.inventory import ModelInventory, build_inventory, read_inventory
from autofit.model.sizes.kv_cache import Cells, kv_cache_bytes, recurrent_bytes
from autofit.model.synth.random_model import SynthSpec, write_model
from autofit.units import MIB


def read(header: Header, folder) -> ModelInventory:
    """Return the inventory of a header."""
    return read_inventory(header.write(folder / "m.gguf"))


@pytest.mark.parametrize("name", MODELS)
def test_bytes_add_up_to_all_tensors(name, tmp_path):
    """Blocks, embedding and output add up to all tensors, plus the copy of a tied output."""
    header = MODELS[name]()
    model = read(header, tmp_path)
    tensors = {key: tensor_bytes(*value) for key, value in header.tensors.items()}
    twice = tensors["token_embd.weight"] if model.is_output_tied else 0
    blocks = sum(block.total_bytes for block in model.blocks)
    assert blocks + model.embedding_bytes + model.output_bytes == sum(tensors.values()) + twice
    assert model.is_output_tied == ("output.weight" not in tensors)
    assert model.notices == ()


@pytest.mark.parametrize("name", MODELS)
def test_experts_match_the_runtimes_pattern(name, tmp_path):
    """Experts and dense networks of a block are what --n-cpu-moe and --n-cpu-ffn match."""
    header = MODELS[name]()
    for block in read(header, tmp_path).blocks:
        moe = re.compile(rf"blk\.{block.index}\.ffn_(up|down|gate|gate_up)_(ch|)exps")
        ffn = re.compile(rf"blk\.{block.index}\.ffn_(up|down|gate)\.")
        sizes = {key: tensor_bytes(*value) for key, value in header.tensors.items()}
        experts = {key: size for key, size in sizes.items() if moe.search(key)}
        assert set(block.expert_tensors) == set(experts)
        assert block.expert_bytes == sum(experts.values())
        assert block.expert_bytes == block.expert_up_gate_bytes + block.expert_down_bytes
        assert block.expert_max_bytes == max(experts.values(), default=0)
        assert block.dense_ffn_bytes == sum(size for key, size in sizes.items() if ffn.search(key))


@pytest.mark.parametrize(
    ("name", "kinds", "experts", "nextn"),
    [
        ("llama_8b", {"full": 32}, 0, 0),
        ("mixtral", {"full": 32}, 32, 0),
        ("qwen3moe", {"full": 48}, 48, 0),
        ("qwen3next", {"full": 12, "recurrent": 36}, 48, 0),
        ("qwen35moe", {"full": 11, "recurrent": 30}, 40, 1),
        ("nemotron3_nano", {"full": 6, "recurrent": 23, "none": 23}, 23, 0),
        ("lfm2_8b", {"full": 6, "recurrent": 18}, 22, 0),
        ("falcon_h1", {"full": 36}, 0, 0),
        ("mamba2", {"recurrent": 64}, 0, 0),
        ("deepseek_v3", {"mla": 61}, 58, 0),
        ("deepseek_v3_unsplit", {"full": 61}, 58, 0),
        ("kimi_linear", {"mla": 7, "recurrent": 20}, 26, 0),
        ("glm5", {"mla": 79}, 75, 1),
        ("deepseek_v4", {"mla": 43}, 43, 0),
        ("gpt_oss_20b", {"full": 12, "swa": 12}, 24, 0),
        ("glm45_air", {"full": 47}, 45, 1),
        ("llama4_scout", {"full": 12, "swa": 36}, 48, 0),
        ("gemma2_9b", {"full": 21, "swa": 21}, 0, 0),
        ("gemma3_27b", {"full": 10, "swa": 52}, 0, 0),
        ("gemma4_26b", {"full": 5, "swa": 25}, 30, 0),
        ("deci_uneven", {"full": 12, "none": 4}, 0, 0),
    ],
)
def test_blocks_of_real_models(name, kinds, experts, nextn, tmp_path):
    """Each block has its kind of attention, its experts, and a mark for prediction."""
    model = read(MODELS[name](), tmp_path)
    assert Counter(block.attention for block in model.blocks) == kinds
    assert len(model.expert_blocks) == experts
    assert model.is_moe == bool(experts)
    assert [block.is_nextn for block in model.blocks] == [False] * (model.block_count - nextn) + [
        True
    ] * nextn
    assert model.units == model.block_count + 1


def test_every_model_has_an_expectation():
    """The table above has every header."""
    (mark,) = test_blocks_of_real_models.pytestmark
    assert {row[0] for row in mark.args[1]} == set(MODELS)


def test_sizes_of_a_mixture_of_experts(tmp_path):
    """The sizes that memory depends on come from the metadata."""
    model = read(MODELS["qwen3moe"](), tmp_path)
    assert (model.architecture, model.name) == ("qwen3moe", "qwen3moe header")
    assert (model.n_vocab, model.n_embd, model.n_head) == (151936, 2048, 32)
    assert (model.n_expert, model.n_expert_used, model.n_ff_exp) == (128, 8, 768)
    assert model.n_ff == 6144
    assert model.context_train == 40960
    block = model.blocks[7]
    assert (block.n_head_kv, block.head_k, block.head_v, block.window) == (4, 128, 128, 0)
    assert block.router_bytes == 2048 * 128 * 4
    assert block.expert_bytes == 3 * 2048 * 768 * 128 * 144 // 256
    assert block.norm_bytes == (2048 + 2048 + 128 + 128) * 4
    assert block.device_bytes == block.total_bytes - block.expert_bytes


def test_shared_experts_are_counted_separately(tmp_path):
    """A shared expert follows its layer, like the router and its correction."""
    model = read(MODELS["deepseek_v3"](), tmp_path)
    dense, sparse = model.blocks[2], model.blocks[3]
    assert dense.expert_bytes == dense.shared_expert_bytes == dense.router_bytes == 0
    assert dense.dense_ffn_bytes > 0
    assert sparse.dense_ffn_bytes == 0
    assert sparse.shared_expert_bytes == 3 * 7168 * 2048 * 144 // 256
    assert sparse.router_bytes == (7168 * 256 + 256) * 4


def test_heads_that_differ_by_block(tmp_path):
    """A list gives the number of heads of each block; 0 means no attention."""
    model = read(MODELS["deci_uneven"](), tmp_path)
    assert [block.n_head_kv for block in model.blocks[:5]] == [8, 0, 4, 2, 8]
    assert model.n_head == 64
    assert model.n_ff == 28672


def test_a_model_measured_on_a_gpu(tmp_path):
    """Weights match those in llama.cpp's table for such a file on CUDA.

    40 layers of 256 experts, Q4_K, embeddings Q8_0; 24 layers' experts on the host: 7465.71
    MiB on the device and 10,436 on the host, a cache of 1280.00 MiB for 16,384 tokens.
    """
    spec = SynthSpec(
        layers=40,
        experts=256,
        used=8,
        embd=2048,
        ff=512,
        heads=16,
        kv_heads=2,
        head_dim=256,
        vocab=32768,
        ctx=32768,
        type="Q4_K",
        embd_type="Q8_0",
        header_only=True,
    )
    write_model(spec, tmp_path / "m.gguf")
    model = read_inventory(tmp_path / "m.gguf")
    moved = sum(block.expert_bytes for block in model.blocks[:24])
    device = sum(block.total_bytes for block in model.blocks) + model.output_bytes - moved
    assert device / MIB == pytest.approx(7465.71, rel=1e-5)
    assert (moved + model.embedding_bytes) / MIB == pytest.approx(10436, abs=0.5)
    assert sum(kv_cache_bytes(model, Cells(context=16384, ubatch=2048))) == 1280 * MIB


class TestUnknown:
    """Models of an unknown architecture."""

    def sizes(self) -> dict[str, object]:
        """Return keys that most architectures have."""
        return {"attention__head_count": 8, "attention__head_count_kv": 2}

    def header(self, **keys) -> Header:
        """Return four blocks of an unknown architecture."""
        header = model("future9", layers=4, embd=1024, vocab=500, context=4096, **keys)
        header.add("output.weight", 1024, 500)
        for index in range(4):
            header.add(f"blk.{index}.attn_k.weight", 1024, 256)
            header.add(f"blk.{index}.ffn_up_exps.weight", 1024, 256, 4)
            header.add(f"blk.{index}.ffn_down_chexps.weight", 256, 1024, 4)
            header.add(f"blk.{index}.flux_capacitor.weight", 1024, 64)
        return header

    def test_an_unknown_architecture_is_read_by_names_and_usual_keys(self, tmp_path):
        """Weights come from tensor names, the cache from the usual keys, with a notice."""
        model = read(self.header(**self.sizes()), tmp_path)
        assert "future9" in model.notices[0]
        block = model.blocks[1]
        assert block.expert_bytes == 2 * 1024 * 256 * 4 * 144 // 256
        assert block.expert_down_bytes == block.expert_bytes // 2
        assert block.other_bytes == 1024 * 64 * 144 // 256
        assert (block.n_head_kv, block.head_k) == (2, 128)

    def test_without_any_key_blocks_are_counted_by_their_tensors(self, tmp_path):
        """A file without metadata still has its bytes by block."""
        header = self.header()
        for key in ("block_count", "embedding_length", "vocab_size"):
            del header.keys[key]
        model = read(header, tmp_path)
        assert model.block_count == 4
        assert model.n_vocab == 500
        assert model.n_ff_exp == 0
        assert sum(kv_cache_bytes(model, Cells(context=4096))) == 0

    def test_a_window_without_a_known_pattern_is_ignored(self, tmp_path):
        """If the pattern of windows is unknown, the whole context is cached, with a notice."""
        model = read(self.header(attention__sliding_window=128, **self.sizes()), tmp_path)
        assert {block.window for block in model.blocks} == {0}
        assert any("128 tokens" in notice for notice in model.notices)

    def test_a_listed_window_needs_no_architecture(self, tmp_path):
        """A list of the blocks with a window applies to any architecture."""
        pattern = [True, False, True, True]
        header = self.header(
            attention__sliding_window=128,
            attention__sliding_window_pattern=pattern,
            **self.sizes(),
        )
        model = read(header, tmp_path)
        assert [block.window for block in model.blocks] == [128, 0, 128, 128]


def test_a_projector_is_an_error(tmp_path):
    """A file without blocks is a usage error, and the hint names the possible kinds."""
    header = Header("clip", {"vision.block_count": 3})
    header.add("v.blk.0.attn_q.weight", 256, 256)
    with pytest.raises(UsageError, match="has no blocks") as error:
        read(header, tmp_path)
    assert "projector" in error.value.hint


def test_an_impossible_number_of_blocks_is_an_error(tmp_path):
    """An impossible number of blocks does not fill the memory."""
    header = MODELS["mixtral"]()
    header.keys["block_count"] = 4_000_000_000
    with pytest.raises(UsageError, match="4000000000 blocks"):
        read(header, tmp_path)


KEYS = (
    "attention.compress_ratios",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.key_length",
    "attention.key_length",
    "attention.key_length_mla",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length",
    "attention.value_length_mla",
    "embedding_length",
    "full_attention_interval",
    "kda.head_dim",
    "nextn_predict_layers",
    "shortconv.l_cache",
    "ssm.conv_kernel",
    "ssm.group_count",
    "ssm.inner_size",
    "ssm.state_size",
    "vocab_size",
    "wkv.head_size",
)
NUMBERS = st.one_of(st.integers(-5, 300), st.sampled_from([0, 1 << 31, 1 << 63]))
VALUES = st.one_of(
    NUMBERS,
    st.booleans(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.one_of(NUMBERS, st.booleans()), max_size=6).map(tuple),
    st.just(OmittedArray(5000)),
)


@given(
    arch=st.sampled_from(["qwen35moe", "deepseek4", "gemma3n", "rwkv6", "minimax-01", "new"]),
    values=st.dictionaries(st.sampled_from(KEYS), VALUES),
    names=st.lists(
        st.sampled_from(
            ["attn_k.weight", "attn_qkv.weight", "ssm_a", "time_mix_w1", "indexer.proj.weight"]
        )
    ),
)
def test_any_metadata_gives_sizes(arch, values, names):
    """Any metadata gives sizes that are not negative."""
    metadata = {"general.architecture": arch, **{f"{arch}.{k}": v for k, v in values.items()}}
    tensors = [TensorInfo("blk.3.ffn_up.weight", (4,), 0, 0, 16)]
    tensors += [TensorInfo(f"blk.{i % 4}.{name}", (4,), 0, 0, 16) for i, name in enumerate(names)]
    model = build_inventory(GgufHeader(metadata, tuple(tensors), (Path("m.gguf"),), 99, "digest"))
    assert model.block_count == 4
    assert min(kv_cache_bytes(model, Cells(context=1000, parallel=2), flash_attn=False)) >= 0
    assert min(recurrent_bytes(model, 2)) >= 0
    assert all(block.is_nextn is False for block in model.blocks[:1])


@pytest.mark.parametrize("number", ["9" * 5000, "1234567", "\u0663", "\u00b2", "-1", ""])
def test_a_number_that_is_no_block_is_outside_of_all_blocks(number, tmp_path):
    """Only short numbers of plain digits are blocks."""
    header = Header("llama", {"block_count": 1, "embedding_length": 32})
    header.add("token_embd.weight", 32, 4)
    header.add("blk.0.ffn_down.weight", 32, 32)
    header.add(f"blk.{number}.ffn_down.weight", 32, 32)
    assert read_inventory(header.write(tmp_path / "m.gguf")).block_count == 1
