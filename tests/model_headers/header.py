"""The parts of headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
F32, I32, Q8_0, Q4_K, Q6_K, MXFP4 = T.F32, T.I32, T.Q8_0, T.Q4_K, T.Q6_K, T.MXFP4


@dataclass
class Header:
    """Metadata (without the architecture's prefix) and tensors, rows first as in the file."""

    arch: str
    keys: dict[str, object]
    tensors: dict[str, tuple[T, tuple[int, ...]]] = field(default_factory=dict)

    def add(self, name: str, *shape: int, type_: T = Q4_K) -> None:
        """Add a tensor; one-dimensional tensors are f32, as in every published file."""
        self.tensors[name] = (F32 if len(shape) == 1 else type_, shape)

    def write(self, path: Path, *, shards: int = 1) -> Path:
        """Write the file or its shards; return the path of the first."""
        names = list(self.tensors)
        if shards == 1:
            self._write(path, names, {})
            return path
        first = path
        for number in range(shards):
            name = f"{path.stem}-{number + 1:05d}-of-{shards:05d}.gguf"
            split = {"split.no": number, "split.count": shards, "split.tensors.count": len(names)}
            shard = path.with_name(name)
            self._write(shard, names[number::shards], split)
            first = shard if number == 0 else first
        return first

    def _write(self, path: Path, names: Sequence[str], split: dict[str, int]) -> None:
        writer = gguf.GGUFWriter(None, self.arch)
        for key, value in split.items():
            if key == "split.tensors.count":
                writer.add_int32(key, value)
            else:
                writer.add_uint16(key, value)
        if split.get("split.no", 0) == 0:
            writer.add_string("general.name", f"{self.arch} header")
            for key, value in self.keys.items():
                full = key if key.startswith("tokenizer.") else f"{self.arch}.{key}"
                _add(writer, full, value)
        size = 0
        for name in names:
            type_, shape = self.tensors[name]
            nbytes = tensor_bytes(type_, shape)
            writer.add_tensor_info(name, shape[::-1], np.dtype(np.float32), nbytes, type_)
            size += -(-nbytes // 32) * 32
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        with path.open("r+b") as file:
            end = file.seek(0, 2)
            file.truncate(-(-end // 32) * 32 + size)


def tensor_bytes(type_: T, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor by gguf-py."""
    elements, nbytes = gguf.GGML_QUANT_SIZES[type_]
    count = 1
    for length in shape:
        count *= length
    return count // elements * nbytes


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def model(
    arch: str, *, layers: int, embd: int, vocab: int, context: int, **keys: object
) -> Header:
    """Return keys and the tensors outside of blocks; double underscores in keys mean dots."""
    header = Header(
        arch,
        {
            "context_length": context,
            "embedding_length": embd,
            "block_count": layers,
            "vocab_size": vocab,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "tokenizer.ggml.model": "no_vocab",
            **{key.replace("__", "."): value for key, value in keys.items()},
        },
    )
    header.add("token_embd.weight", embd, vocab, type_=Q8_0)
    header.add("output_norm.weight", embd)
    return header


def attention(  # noqa: PLR0917 - the sizes in the order of configurations
    header: Header, block: str, embd: int, heads: int, kv: int, size: int, *, type_: T = Q4_K
) -> None:
    """Add grouped attention with a number of heads, and of K and V, of one size."""
    header.add(f"{block}.attn_norm.weight", embd)
    header.add(f"{block}.attn_q.weight", embd, heads * size, type_=type_)
    header.add(f"{block}.attn_k.weight", embd, kv * size, type_=type_)
    header.add(f"{block}.attn_v.weight", embd, kv * size, type_=type_)
    header.add(f"{block}.attn_output.weight", heads * size, embd, type_=type_)


def dense_ffn(header: Header, block: str, embd: int, ff: int, *, norm: bool = True) -> None:
    """Add a gated feed-forward network."""
    if norm:
        header.add(f"{block}.ffn_norm.weight", embd)
    header.add(f"{block}.ffn_gate.weight", embd, ff)
    header.add(f"{block}.ffn_up.weight", embd, ff)
    header.add(f"{block}.ffn_down.weight", ff, embd, type_=Q6_K)


def experts(
    header: Header,
    block: str,
    embd: int,
    ff: int,
    count: int,
    *,
    type_: T = Q4_K,
    fused: bool = False,
    norm: bool = True,
) -> None:
    """Add a router and its experts."""
    if norm:
        header.add(f"{block}.ffn_norm.weight", embd)
    header.add(f"{block}.ffn_gate_inp.weight", embd, count, type_=F32)
    if fused:
        header.add(f"{block}.ffn_gate_up_exps.weight", embd, 2 * ff, count, type_=type_)
    else:
        header.add(f"{block}.ffn_gate_exps.weight", embd, ff, count, type_=type_)
        header.add(f"{block}.ffn_up_exps.weight", embd, ff, count, type_=type_)
    header.add(f"{block}.ffn_down_exps.weight", ff, embd, count, type_=type_)


def shared_expert(header: Header, block: str, embd: int, ff: int) -> None:
    """Add the expert that every token uses."""
    header.add(f"{block}.ffn_gate_shexp.weight", embd, ff)
    header.add(f"{block}.ffn_up_shexp.weight", embd, ff)
    header.add(f"{block}.ffn_down_shexp.weight", ff, embd)
