"""A copy of a model's header without its vocabulary."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader
from model_headers import MODELS
from real_llama_cpp import fit_print, rpc_device

from autofit.errors import UsageError
from autofit.model.gguf.header import read_header
from autofit.model.gguf.header_writer import (
    COPY_N_VOCAB,
    write_copy_without_vocabulary,
)
from autofit.model.synth.random_model import SynthSpec, write_model

SPEC = SynthSpec(layers=2, experts=4, used=2, embd=256, heads=4, vocab=3000, header_only=True)


def test_the_copy_has_everything_except_the_vocabulary(tmp_path: Path) -> None:
    """gguf-py reads every tensor and setting, with rows for a few tokens."""
    model, copy = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    write_model(SPEC, model)
    write_copy_without_vocabulary(model, copy)
    before, after = read_header(model), read_header(copy)
    assert (before.n_vocab, after.n_vocab) == (3000, COPY_N_VOCAB)
    assert after.n_embd == before.n_embd == 256
    by_name = {tensor.name: tensor for tensor in before.tensors}
    for tensor in GGUFReader(copy).tensors:
        whole = by_name[tensor.name]
        shape = tuple(int(length) for length in tensor.shape)
        has_tokens = tensor.name in {"token_embd.weight", "output.weight"}
        assert shape == ((256, COPY_N_VOCAB) if has_tokens else whole.shape)
        assert tensor.tensor_type == whole.type_id
    kept = {k: v for k, v in before.metadata.items() if not k.startswith("tokenizer.")}
    for key, value in kept.items():
        expected = COPY_N_VOCAB if key == "qwen3moe.vocab_size" else value
        assert after.metadata[key] == expected, key
    assert after.metadata["tokenizer.ggml.model"] == "no_vocab"
    assert "tokenizer.ggml.tokens" not in after.metadata


def test_the_data_takes_no_disk(tmp_path: Path) -> None:
    """The copy has a hole instead of data."""
    model, copy = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    write_model(SPEC, model)
    write_copy_without_vocabulary(model, copy)
    stat = copy.stat()
    assert stat.st_size > 1_000_000
    assert stat.st_blocks * 512 < 100_000


def test_a_file_that_is_no_model_is_an_error(tmp_path: Path) -> None:
    """A file that is not GGUF is a usage error."""
    (tmp_path / "x.gguf").write_bytes(b"hello")
    with pytest.raises(UsageError):
        write_copy_without_vocabulary(tmp_path / "x.gguf", tmp_path / "copy.gguf")


@pytest.mark.runtime
@pytest.mark.parametrize(
    "name", ["llama_8b", "gemma3_27b", "glm45_air", "qwen35moe", "deepseek_v3", "deepseek_v4"]
)
def test_the_planner_reports_the_same_for_the_copy(
    name: str, llama_cpp: Path, tmp_path: Path
) -> None:
    """The planner reports the same for copy and model, except for the output."""
    model, copy = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    MODELS[name]().write(model)
    write_copy_without_vocabulary(model, copy)
    with rpc_device(llama_cpp) as first, rpc_device(llama_cpp) as second:
        words = ["--rpc", f"{first},{second}", "-ngl", "999", "-ts", "1,1", "-ncmoe", "5"]
        words += ["-fa", "on", "-c", "20000", "-ub", "2048"]
        whole = fit_print(llama_cpp, model, *words).rows
        small = fit_print(llama_cpp, copy, *words).rows
    assert small["RPC0"][1:] == whole["RPC0"][1:]
    assert small["RPC1"][1] == whole["RPC1"][1]
    assert small["Host"][1:] == whole["Host"][1:]
    assert 0 < small["RPC1"][2] <= whole["RPC1"][2]
    assert small["RPC1"][0] < whole["RPC1"][0]
