"""Weights and caches, compared with the planner of the real llama.cpp."""

from __future__ import annotations

import pytest
from model_headers import MODELS
from model_headers.header import model
from model_headers.transformer import gemma3_block
from real_llama_cpp import caches_mib, fit_print, rpc_device, server_log

from autofit.model.sizes.inventory import ModelInventory, read_inventory
from autofit.model.sizes.kv_cache import Cells, kv_cache_bytes, recurrent_bytes
from autofit.model.synth.vocabulary import build_vocabulary
from autofit.units import MIB

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def paths(tmp_path_factory) -> dict[str, object]:
    """Return header-only files of all models."""
    folder = tmp_path_factory.mktemp("models")
    return {name: make().write(folder / f"{name}.gguf") for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def device(llama_cpp):
    """Yield a device of the runtime: an RPC server of this machine."""
    with rpc_device(llama_cpp) as address:
        yield address


def matches_mib(mib: int, nbytes: float) -> bool:
    """Return whether a size matches one that is rounded down to MiB, within 0.1 %."""
    return nbytes / MIB * 0.999 - 1 <= mib <= nbytes / MIB * 1.001


def loaded(model: ModelInventory) -> int:
    """Return the bytes that are always loaded, without embedding and output."""
    return sum(block.total_bytes for block in model.blocks if not block.is_nextn)


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_cache_match_the_planner(name, llama_cpp, paths, device):
    """With the experts of five layers on the host, all three rows match."""
    model = read_inventory(paths[name])
    arguments = ["--rpc", device, "-ngl", "999", "-ncmoe", "5", "-fa", "on"]
    arguments += ["-c", "20000", "-np", "2", "-b", "2048", "-ub", "1024"]
    arguments += ["-ctk", "q8_0", "-ctv", "q8_0"]
    planned = fit_print(llama_cpp, paths[name], *arguments)
    cells = Cells(context=20000, parallel=2, ubatch=1024)
    kv = sum(kv_cache_bytes(model, cells, ("q8_0", "q8_0")))
    moved = sum(block.expert_bytes for block in model.blocks[:5])
    weights, context, _ = planned.rows["RPC0"]
    assert matches_mib(weights, loaded(model) + model.output_bytes - moved)
    assert matches_mib(planned.rows["Host"][0], moved + model.embedding_bytes)
    assert matches_mib(context, kv + sum(recurrent_bytes(model, 2)))
    assert planned.kv_mib == pytest.approx(kv / MIB, rel=0.001, abs=0.02)


@pytest.mark.parametrize("name", ["gemma4_26b", "gpt_oss_20b", "deci_uneven", "qwen35moe"])
def test_the_cache_without_flash_attention(name, llama_cpp, paths):
    """A transposed V has the size that llama.cpp reports."""
    arguments = ["-c", "8192", "-ub", "256", "-fa", "off", "-ctk", "q8_0"]
    planned = fit_print(llama_cpp, paths[name], *arguments)
    cells = Cells(context=8192, ubatch=256)
    model = read_inventory(paths[name])
    sizes = kv_cache_bytes(model, cells, ("q8_0", "f16"), flash_attn=False)
    assert planned.kv_mib == pytest.approx(sum(sizes) / MIB, rel=0.001, abs=0.02)


@pytest.mark.parametrize("name", ["gemma3_27b", "llama4_scout", "deepseek_v4"])
def test_the_cache_with_whole_windows(name, llama_cpp, paths):
    """With --swa-full windowed blocks cache the whole context."""
    planned = fit_print(llama_cpp, paths[name], "-c", "8192", "-ub", "256", "--swa-full")
    sizes = kv_cache_bytes(
        read_inventory(paths[name]), Cells(context=8192, ubatch=256, swa_full=True)
    )
    assert planned.kv_mib == pytest.approx(sum(sizes) / MIB, rel=0.001, abs=0.02)


def test_a_unified_cache_has_room_for_all_windows(llama_cpp, tmp_path):
    """For four sequences in one cache the server allocates four windows."""
    words = build_vocabulary(1000)
    header = model(
        "gemma3",
        layers=12,
        embd=256,
        vocab=1000,
        context=131072,
        feed_forward_length=256,
        attention__head_count=4,
        attention__head_count_kv=2,
        attention__key_length=64,
        attention__value_length=64,
        attention__sliding_window=1024,
        tokenizer__ggml__model="gpt2",
        tokenizer__ggml__pre="gpt-2",
        tokenizer__ggml__tokens=words.tokens,
        tokenizer__ggml__token_type=words.types,
        tokenizer__ggml__merges=words.merges,
    )
    for i in range(12):
        gemma3_block(header, f"blk.{i}", embd=256, ff=256, heads=4, kv=2, size=64)
    path = header.write(tmp_path / "m.gguf")
    arguments = ["-c", "16384", "-np", "4", "-kvu", "-ub", "256", "-fit", "off"]
    log = server_log(llama_cpp, path, tmp_path / "log", *arguments)
    sizes = kv_cache_bytes(
        read_inventory(path), Cells(context=16384, parallel=4, ubatch=256, unified=True)
    )
    assert caches_mib(log) == pytest.approx(sum(sizes) / MIB, rel=0.001, abs=0.02)
