"""The KV cache by block, compared with llama.cpp's log, and its properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_headers import MODELS

from autofit.errors import UsageError
from autofit.model.sizes.inventory import BlockInventory, ModelInventory, read_inventory
from autofit.model.sizes.kv_cache import (
    KV_TYPES,
    Cells,
    kv_cache_bytes,
    kv_element_bytes,
    kv_types,
    recurrent_bytes,
)
from autofit.trial.candidate import Candidate
from autofit.units import MIB

CELLS = Cells(context=4096)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, ModelInventory]:
    """Return the inventories of all headers."""
    folder = tmp_path_factory.mktemp("models")
    return {n: read_inventory(make().write(folder / f"{n}.gguf")) for n, make in MODELS.items()}


@pytest.mark.parametrize(
    ("name", "attention", "recurrent"),
    [
        ("llama_8b", 2048.00, 0),
        ("mixtral", 2048.00, 0),
        ("qwen3moe", 1536.00, 0),
        ("qwen3next", 384.00, 75.38),
        ("qwen35moe", 320.00, 62.81),
        ("nemotron3_nano", 96.00, 47.62),
        ("lfm2_8b", 192.00, 0.28),
        ("falcon_h1", 288.00, 27.74),
        ("mamba2", 0, 163.94),
        ("deepseek_v3", 1098.00, 0),
        ("deepseek_v3_unsplit", 78080.00, 0),
        ("kimi_linear", 126.00, 42.81),
        ("glm5", 1404.00 + 312.00, 0),
        ("deepseek_v4", 32.25 + 84.00 + 5.00 + 21.00, 11.64),
        ("gpt_oss_20b", 384.00 + 18.00, 0),
        ("glm45_air", 2944.00, 0),
        ("llama4_scout", 768.00 + 1224.00, 0),
        ("gemma2_9b", 2688.00 + 756.00, 0),
        ("gemma3_27b", 1280.00 + 624.00, 0),
        ("gemma4_26b", 320.00 + 300.00, 0),
        ("deci_uneven", 448.00, 0),
    ],
)
def test_the_cache_has_the_size_that_llama_cpp_logs(name, attention, recurrent, models):
    """16,384 tokens of f16 at ubatch 512 have the size that llama.cpp b11434 logs."""
    sizes = kv_cache_bytes(models[name], Cells(context=16384, ubatch=512))
    assert sum(sizes) / MIB == pytest.approx(attention, abs=0.005)
    assert sum(recurrent_bytes(models[name])) / MIB == pytest.approx(recurrent, abs=0.005)


def test_every_model_has_an_expectation():
    """The table above has every header."""
    (mark,) = test_the_cache_has_the_size_that_llama_cpp_logs.pytestmark
    assert {row[0] for row in mark.args[1]} == set(MODELS)


def test_bytes_of_each_kv_type():
    """One token with 256 numbers of K and V has a known size in every type."""
    block = BlockInventory(index=0, attention="full", n_head_kv=2, head_k=128, head_v=128)
    sizes = {
        name: sum(kv_cache_bytes(_model(block), Cells(context=256), (name, name))) / 256
        for name in KV_TYPES
    }
    assert sizes == {
        "f32": 2048,
        "f16": 1024,
        "bf16": 1024,
        "q8_0": 544,
        "q5_1": 384,
        "q5_0": 352,
        "q4_1": 320,
        "iq4_nl": 288,
        "q4_0": 288,
    }


def test_k_and_v_with_different_types(models):
    """K and V have separate types; latent attention has no V."""
    both = kv_cache_bytes(models["qwen3moe"], CELLS, ("q8_0", "q4_0"))
    assert both[0] == 4096 * (544 + 288)
    latent = models["deepseek_v3"]
    assert kv_cache_bytes(latent, CELLS, ("f16", "q4_0")) == kv_cache_bytes(latent, CELLS)


def test_nextn_blocks_have_no_cache(models):
    """Blocks for multi-token prediction have no cache; the order of blocks is kept."""
    sizes = kv_cache_bytes(models["glm45_air"], CELLS)
    assert len(sizes) == 47
    assert sizes[46] == 0 < sizes[45]


@pytest.mark.parametrize(
    ("context", "parallel", "unified", "expected"),
    [
        (1000, 3, False, (512, 3)),
        (1000, 3, True, (1024, 1)),
        (16384, 1, False, (16384, 1)),
        (20000, 3, False, (6912, 3)),
        (33000, 4, False, (8448, 4)),
    ],
)
def test_the_context_is_divided_and_rounded_up(context, parallel, unified, expected):
    """Sequences get equal shares in steps of 256, or share one unified cache."""
    cells = Cells(context=context, parallel=parallel, unified=unified)
    assert (cells.full, cells.streams) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (Cells(context=16384, ubatch=512), 768),
        (Cells(context=20000, parallel=3, ubatch=2048), 2304),
        (Cells(context=33000, parallel=4, ubatch=1024), 1280),
        (Cells(context=8192, parallel=4, ubatch=512, unified=True), 1024),
        (Cells(context=256, ubatch=512), 256),
        (Cells(context=16384, ubatch=512, swa_full=True), 16384),
    ],
)
def test_a_windowed_cache_has_room_for_a_ubatch(cells, expected):
    """A cache with a window of 128 tokens has room for it and a ubatch, per sequence."""
    assert cells.windowed(128) == expected


def test_without_flash_attention_v_has_the_widest_rows(models):
    """V is padded to the widest block if it is transposed, even in blocks without V."""
    model = models["deci_uneven"]
    even = kv_cache_bytes(model, CELLS)
    padded = kv_cache_bytes(model, CELLS, flash_attn=False)
    assert padded[0] == even[0]
    assert even[1] == 0
    assert padded[1] == 4096 * 2 * 8 * 128
    assert padded[3] - even[3] == 4096 * 2 * (8 - 2) * 128


def test_an_unknown_kv_type_is_an_error(models):
    """The hint lists the KV types."""
    with pytest.raises(UsageError, match="q3_9") as error:
        kv_cache_bytes(models["mixtral"], CELLS, ("q3_9", "f16"))
    assert "q8_0" in error.value.hint


@pytest.mark.parametrize("name", ["q4_k", "q6_k", "q8_1"])
def test_a_weight_type_is_no_kv_type(name, models):
    """A type that only weights can have is an error too."""
    with pytest.raises(UsageError, match=name):
        kv_cache_bytes(models["mixtral"], CELLS, ("f16", name))


@given(
    name=st.sampled_from(sorted(MODELS)),
    settings=st.fixed_dictionaries(
        {
            "context": st.integers(1, 200_000),
            "parallel": st.integers(1, 8),
            "ubatch": st.integers(1, 8192),
            "unified": st.booleans(),
        }
    ),
    flash_attn=st.booleans(),
)
def test_larger_settings_never_shrink_the_cache(name, settings, flash_attn, models):
    """A larger context or ubatch, or whole windows, never make the cache smaller."""
    model = models[name]
    size = sum(kv_cache_bytes(model, Cells(**settings), flash_attn=flash_attn))
    more = {"context": settings["context"] + 777}, {"ubatch": settings["ubatch"] + 100}
    for change in (*more, {"swa_full": True}):
        larger = Cells(**settings | change)
        assert size <= sum(kv_cache_bytes(model, larger, flash_attn=flash_attn))
    parallel = settings["parallel"]
    assert sum(recurrent_bytes(model, parallel)) == parallel * sum(recurrent_bytes(model))


def _model(*blocks: BlockInventory) -> ModelInventory:
    return ModelInventory(
        architecture="llama",
        name="made",
        path=Path("made.gguf"),
        files=(),
        blocks=blocks,
        embedding_bytes=0,
        output_bytes=0,
        is_output_tied=False,
        n_vocab=0,
        n_embd=0,
        n_head=0,
        n_ff=0,
        n_ff_exp=0,
        n_expert=0,
        n_expert_used=0,
        context_train=0,
        total_bytes=0,
    )


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [("f32", "f16"), ("f16", "q8_0"), ("q8_0", "q5_1"), ("q5_1", "q5_0"), ("q4_1", "q4_0")],
)
def test_wider_kv_types_take_more_bytes(wide, narrow):
    """A wider type takes more bytes for each number."""
    assert kv_element_bytes(wide) > kv_element_bytes(narrow) > 0


def test_bytes_of_an_unknown_kv_type():
    """A type that ggml lacks takes 0 bytes, or the number that the caller gives."""
    assert kv_element_bytes("turbo3c") == 0
    assert kv_element_bytes("turbo3c", unknown=7.0) == 7.0


def test_kv_types_of_a_candidate():
    """An absent KV type is the default of llama.cpp."""
    assert kv_types(Candidate({"cache_type_v": "q8_0"})) == ("f16", "q8_0")
